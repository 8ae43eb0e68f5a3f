"""What the parsers of this room raise; discovery turns it into a note."""

from __future__ import annotations


class Malformed(ValueError):
    """A file, or one line of it, is not what it should be."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class TooMuch(Malformed):
    """A bound is reached: the rest of the file is not looked at either."""
