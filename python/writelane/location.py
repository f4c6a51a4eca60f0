"""Where in the application's code something was begun."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

__all__ = ["caller", "of_thread"]

#: Frames of these folders are not the application's: this package, the standard library, and what was installed.
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})

#: Frames looked at. An application's own frame is rarely deeper under its libraries.
_DEPTH_MAX = 40


def caller() -> tuple[str | None, bool]:
    """Return ``file:line`` of the innermost frame of the application, and whether it is the innermost of all.

    Where no frame is the application's own, return the innermost of all, as if it were not.
    """
    try:
        frame = sys._getframe(1)
    except ValueError:
        return None, False
    return _innermost(frame)


def of_thread(ident: int) -> str | None:
    """Return ``file:line`` of another thread, likewise, as it stands now; ``None`` for one that runs no Python."""
    return _innermost(sys._current_frames().get(ident))[0]


def _innermost(frame: FrameType | None) -> tuple[str | None, bool]:
    first: str | None = None
    for depth in range(_DEPTH_MAX):
        if frame is None:
            break
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, "<frozen ")):
            if not name.startswith(_LIBRARIES):
                return f"{name}:{frame.f_lineno}", depth == 0
            first = first or f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return first, False
