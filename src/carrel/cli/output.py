"""Where text goes. A stream that whoever started us has closed takes everything, silently."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def put(text: str) -> None:
    """To standard output: the result."""
    _write(sys.stdout, text)


def tell(text: str) -> None:
    """To standard error, at once: for who watches."""
    flush()
    _write(sys.stderr, text)
    flush()


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # A name that the terminal's encoding does not have is escaped, not fatal.
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
