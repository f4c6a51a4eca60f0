from os import PathLike
from pathlib import Path
from typing import Any, final

_StrPath = str | PathLike[str]

sqlite_version: str

@final
class Filesystem:
    """What was found about the filesystem under a path."""

    @property
    def verdict(self) -> str:
        """``"local"``, ``"local with a warning"``, ``"network"`` or ``"unknown"``."""
    @property
    def refused(self) -> bool:
        """Whether a write-ahead log must not be used here."""
    @property
    def folder(self) -> Path:
        """The folder that was judged, without symbolic links."""
    @property
    def mount_point(self) -> Path | None:
        """The mount that the folder is on; None where the mount table could not be read."""
    @property
    def fs_type(self) -> str:
        """The filesystem type, with a FUSE subtype after a dot."""
    @property
    def source(self) -> str:
        """What is mounted there, as the mount table has it."""
    @property
    def reason(self) -> str:
        """Why the verdict is what it is, as the end of a sentence."""
    def refusal(self, database: _StrPath) -> str:
        """Return the text of the refusal to open a database here: mount, type, why, and the three ways out."""
    def warning(self, database: _StrPath) -> str | None:
        """Return the text of the warning to give once, or None."""

def judge_filesystem(path: _StrPath) -> Filesystem:
    """Judge the filesystem that the database at a path is on or would be created on.

    The path need not exist; symbolic links are followed. Creates and opens nothing. Raises OSError when the folder
    cannot be looked at.
    """

def database_owner(path: _StrPath) -> dict[str, Any] | None:
    """Say who owns a database exclusively: ``pid``, ``host``, ``since`` (seconds of the owner's clock), ``number``,
    ``lease`` (seconds) and ``certain``: whether this host's kernel vouches for the owner being alive.

    None if nobody does. Waits for nothing. Raises OSError when the owner files cannot be read.
    """
