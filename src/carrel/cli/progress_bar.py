"""How far something is, for who watches: a bar in a terminal, otherwise a line for every news."""

from __future__ import annotations

import os

from carrel.cli.layout import clean, cut
from carrel.cli.output import is_terminal, tell

CELLS = 20
FULL, EMPTY = "#", "."


class Bar:
    """On standard error. `quiet`: lines are not wanted, where it is no terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._terminal = is_terminal(2)
        self._quiet = quiet and not self._terminal
        self._shown = ""

    def show(self, progress: float, message: str) -> None:
        text = f"{round(progress * 100):3d}%  {clean(message)}"
        if self._terminal:
            done = round(min(1.0, progress) * CELLS)
            text = f"{FULL * done}{EMPTY * (CELLS - done)} {text}"
            tell(f"\r\x1b[K{cut(text, _columns() - 1)}")
        elif not self._quiet and text != self._shown:
            tell(f"{text}\n")
        self._shown = text

    def clear(self) -> None:
        """What is said next stands at the beginning of a line."""
        if self._terminal and self._shown:
            tell("\r\x1b[K")
        self._shown = ""


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
