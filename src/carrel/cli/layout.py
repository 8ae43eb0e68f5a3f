"""Text for terminals: columns that fit, and nothing that moves the cursor."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = "  "
ELLIPSIS = "…"
NARROWEST = 6
"""A column is not made narrower than that to fit the others in."""


def terminal_width() -> int | None:
    """Columns of the terminal that output goes to; None when it goes elsewhere."""
    columns = os.environ.get("COLUMNS", "")
    try:
        own = os.get_terminal_size(1).columns
    except OSError:
        return None
    return int(columns) if columns.isdecimal() and int(columns) > 0 else own or 80


def coloured() -> bool:
    return terminal_width() is not None and not os.environ.get("NO_COLOR")


def loud(text: str) -> str:
    """For what nobody should overlook."""
    return f"\x1b[1;31m{text}\x1b[0m" if coloured() else text


def clean(text: str) -> str:
    """Names come from projects and may hold anything, escape sequences too."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escaped(one) for one in text])


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
