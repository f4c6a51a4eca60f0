"""Where in the application's code something was begun."""

from __future__ import annotations

import os
import sys
import sysconfig

__all__ = ["caller"]

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
    first: str | None = None
    for depth in range(_DEPTH_MAX):
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, "<frozen ")):
            if not name.startswith(_LIBRARIES):
                return f"{name}:{frame.f_lineno}", depth == 0
            first = first or f"{name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return first, False
