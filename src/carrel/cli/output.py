"""Text for people: where it goes, columns that fit, and nothing that moves the cursor."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TextIO

GAP = "  "
ELLIPSIS = "…"
NARROWEST = 6
"""A column is not made narrower than that to fit the others in."""
CLEAR_LINE = "\r\x1b[K"

# Streams. One that whoever started us has closed takes everything, silently.


def put(text: str) -> None:
    """Writes to standard output: the result."""
    _write(sys.stdout, text)


def tell(text: str) -> None:
    """Writes to standard error, at once: for who watches."""
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


# Words


def terminal_width(descriptor: int = 1) -> int | None:
    """Columns of the terminal that output goes to; None when it goes elsewhere."""
    columns = os.environ.get("COLUMNS", "")
    try:
        own = os.get_terminal_size(descriptor).columns
    except OSError:
        return None
    return int(columns) if columns.isdecimal() and int(columns) > 0 else own or 80


def coloured() -> bool:
    return terminal_width() is not None and not os.environ.get("NO_COLOR")


def loud(text: str) -> str:
    """Marks what nobody should overlook."""
    return f"\x1b[1;31m{text}\x1b[0m" if coloured() else text


def clean(text: str) -> str:
    """Escapes what is not printable: names come from projects and may hold escape sequences."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escaped(one) for one in text])


class Shown:
    """Text of others for a terminal, as it comes: lines, tabs and colours stay, and whatever else
    would steer the terminal is shown instead of done."""

    def __init__(self) -> None:
        import codecs
        import re

        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._steering = re.compile(r"\x1b\[[0-9;:]*m|\r\n|[^\n\t\x20-\x7e]")
        self._begun = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,64})?|\r)\Z")
        self._rest = ""

    def text(self, data: bytes, *, last: bool = False) -> str:
        text = self._rest + self._decode(data, last)
        self._rest = ""
        begun = None if last else self._begun.search(text)
        if begun is not None:
            text, self._rest = text[: begun.start()], begun.group()
        return self._steering.sub(lambda found: _steered(found.group()), text)


def _steered(part: str) -> str:
    return part if len(part) > 1 or part.isprintable() else _escaped(part)


def shown(text: str, descriptor: int = 1) -> str:
    """Escapes what would steer a terminal, where that is one; elsewhere text stays as it is."""
    if not is_terminal(descriptor):
        return text
    return Shown().text(text.encode("utf-8", "surrogateescape"), last=True)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def width_of(text: str) -> int:
    """In columns of a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def cut(text: str, width: int) -> str:
    """At most `width` columns."""
    if width_of(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while kept and width_of(kept) > width - 1:
        kept = kept[:-1]
    return kept + ELLIPSIS if width > 0 else ""


# Columns


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    shrink: Sequence[int] = (),
    marked: str = "",
) -> str:
    """Aligned columns. In a terminal they fit: the columns of `shrink` give way, in that
    order, and what still does not fit is cut off. Cells that end in `marked` are loud."""
    cells = [list(heads), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(width_of(row[at]) for row in cells) for at in range(len(heads))]
    limit = terminal_width()
    if limit is not None:
        _fit(widths, limit, shrink)
    lines = [_line(row, widths, limit, marked) for row in cells]
    return "\n".join(lines)


def _fit(widths: list[int], limit: int, shrink: Sequence[int]) -> None:
    over = sum(widths) + len(GAP) * (len(widths) - 1) - limit
    for at in shrink:
        if over <= 0:
            return
        less = min(over, max(0, widths[at] - NARROWEST))
        widths[at] -= less
        over -= less


def _line(row: list[str], widths: list[int], limit: int | None, marked: str) -> str:
    parts, left = [], limit
    for at, cell in enumerate(row):
        text = cut(cell, widths[at]) if limit is not None else cell
        if left is not None:
            text = cut(text, left)
            left = max(0, left - widths[at] - len(GAP))
        padding = " " * max(0, widths[at] - width_of(text)) if at + 1 < len(row) else ""
        parts.append((loud(text) if marked and cell.endswith(marked) else text) + padding)
    return GAP.join(parts).rstrip()


class AnswerTable:
    """A table of the items in one field of an answer.

    `columns` has, by head, the name of a field or a function of the item; a field that is empty
    is shown as "-". `empty` is the note when there are no items.
    """

    def __init__(
        self,
        field: str,
        columns: Mapping[str, str | Callable[[dict[str, Any]], str]],
        *,
        shrink: Sequence[str] = (),
        marked: str = "",
        empty: str = "",
    ) -> None:
        self._field = field
        self._columns = columns
        self._shrink = [list(columns).index(head) for head in shrink]
        self._marked = marked
        self.empty = empty

    def __call__(self, content: Mapping[str, Any]) -> str:
        items = content[self._field]
        if not items and self.empty:
            return ""
        rows = [[_cell(item, column) for column in self._columns.values()] for item in items]
        return table([*self._columns], rows, shrink=self._shrink, marked=self._marked)


def _cell(item: dict[str, Any], column: str | Callable[[dict[str, Any]], str]) -> str:
    return str(item[column] or "-") if isinstance(column, str) else column(item)


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values below one another; what is empty is left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in shown)


class StatusLine:
    """A line on standard error that is replaced again and again, where that is a terminal."""

    def __init__(self) -> None:
        self.live = is_terminal(2)
        self._shown = False

    def show(self, text: str) -> None:
        if self.live:
            tell(f"{CLEAR_LINE}{cut(text, (terminal_width(2) or 80) - 1)}")
            self._shown = True

    def clear(self) -> None:
        """What is said next stands at the beginning of a line."""
        if self._shown:
            tell(CLEAR_LINE)
        self._shown = False
