"""Texts of others, as they may be shown: statements, commands and paths that anybody may have chosen."""

from __future__ import annotations

__all__ = ["one_line", "printable"]

#: What stands for a character that cannot be shown.
INSTEAD = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Return the text without what would act on a terminal, forge a line of a log, or be no UTF-8."""
    return text if text.isprintable() else "".join(char if char.isprintable() else INSTEAD for char in text)


def one_line(text: str | None, most: int) -> str:
    """Return the text as one printable line of at most ``most`` characters."""
    line = " ".join((text or "").split())
    return printable(line if len(line) <= most else line[: most - 3] + "...")
