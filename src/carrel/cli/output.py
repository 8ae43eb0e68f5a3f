"""Text for people: where it goes, columns that fit, and nothing that moves the cursor."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TextIO

    Paint = Callable[[str], str]
    """The colour of a cell, by what is in it; empty: none."""

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
    complain(text)


def complain(text: str) -> None:
    """The same, whatever becomes of the output that was written before."""
    _write(sys.stderr, text)
    if sys.stderr is not None:
        sys.stderr.flush()


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


LOUD, WARM, CALM, FAINT = "1;31", "33", "32", "2"
"""Colours: what nobody should overlook, what waits, what goes well, what matters less."""


def painted(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text and coloured() else text


def loud(text: str) -> str:
    """Marks what nobody should overlook."""
    return painted(text, LOUD)


def clean(text: str) -> str:
    """Escapes what is not printable: names come from projects and may hold escape sequences."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escaped(one) for one in text])


def clean_line(text: str) -> str:
    """The same of a line of a file, in which tabs stay."""
    return "\t".join(map(clean, text.split("\t")))


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


def cut_path(text: str, width: int) -> str:
    """At most `width` columns of a path, from its end: `…/repo/app`."""
    if width_of(text) <= width:
        return text
    kept = text[max(0, len(text) - width + 1) :]
    while kept and width_of(kept) > width - 1:
        kept = kept[1:]
    slash = kept.find("/")
    return ELLIPSIS + (kept[slash:] if 0 <= slash < len(kept) - 1 else kept) if width > 0 else ""


def wrapped(text: str, indent: str) -> str:
    """Text of others in lines that fit a terminal, each behind `indent`."""
    room = max(20, (terminal_width() or 80) - len(indent))
    lines = []
    for line in text.splitlines() or [""]:
        lines.append("")
        for word in clean(line).split(" "):
            while width_of(word) > room:
                part = cut(word, room + 1).removesuffix(ELLIPSIS) or word[:1]
                lines.append(part)
                word = word[len(part) :]
            if lines[-1] and width_of(lines[-1]) + 1 + width_of(word) > room:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(f"{indent}{line}".rstrip() for line in lines if line)


# Columns


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    shrink: Sequence[int] = (),
    marked: str = "",
    paths: Sequence[int] = (),
    paint: Mapping[int, Paint] | None = None,
) -> str:
    """Aligned columns. In a terminal they fit: the columns of `shrink` give way, in that
    order, and what still does not fit is cut off, at the beginning where they are `paths`. Cells
    that end in `marked` are loud, others have the colour that `paint` gives them."""
    cells = [list(heads), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(width_of(row[at]) for row in cells) for at in range(len(heads))]
    limit = terminal_width()
    if limit is not None:
        _fit(widths, limit, shrink)

    def colour(at: int, cell: str) -> str:
        if marked and cell.endswith(marked):
            return LOUD
        return paint[at](cell) if paint and at in paint else ""

    lines = [_line(cells[0], widths, limit, lambda _at, _cell: "", ())]
    lines += [_line(row, widths, limit, colour, paths) for row in cells[1:]]
    return "\n".join(lines)


def _fit(widths: list[int], limit: int, shrink: Sequence[int]) -> None:
    over = sum(widths) + len(GAP) * (len(widths) - 1) - limit
    for at in shrink:
        if over <= 0:
            return
        less = min(over, max(0, widths[at] - NARROWEST))
        widths[at] -= less
        over -= less


def _line(
    row: list[str],
    widths: list[int],
    limit: int | None,
    colour: Callable[[int, str], str],
    paths: Sequence[int],
) -> str:
    parts, left = [], limit
    for at, cell in enumerate(row):
        text = cell
        if left is not None:
            text = (cut_path if at in paths else cut)(cell, min(widths[at], left))
            left = max(0, left - widths[at] - len(GAP))
        padding = " " * max(0, widths[at] - width_of(text)) if at + 1 < len(row) else ""
        parts.append(painted(text, colour(at, cell)) + padding)
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
        paths: Sequence[str] = (),
        paint: Mapping[str, Paint] | None = None,
    ) -> None:
        self._field = field
        self._columns = columns
        number = {head: at for at, head in enumerate(columns)}
        self._shrink = [number[head] for head in shrink]
        self._marked = marked
        self._paths = [number[head] for head in paths]
        self._paint = {number[head]: one for head, one in (paint or {}).items()}
        self.empty = empty

    def __call__(self, content: Mapping[str, Any]) -> str:
        items = content[self._field]
        if not items and self.empty:
            return ""
        rows = [[_cell(item, column) for column in self._columns.values()] for item in items]
        return table(
            [*self._columns],
            rows,
            shrink=self._shrink,
            marked=self._marked,
            paths=self._paths,
            paint=self._paint,
        )


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
