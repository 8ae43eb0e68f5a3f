"""Reviews: how a space differs from what it began with."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import (
    CALM,
    clean_line,
    cut_path,
    is_terminal,
    painted,
    terminal_width,
    width_of,
)
from carrel.cli.pager import Pager
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.terminal import check_stream, write_stream
from carrel.client.http import operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any
MOST_FILES = 100_000
HEAD, PLACE, GONE, COME = "1", "36", "31", CALM
"""Colours of a difference, as git has them: of heads, of where lines are, of lines."""
BARS = 40
"""Characters of the longest row of plus and minus signs."""


@Verb(
    SPACE,
    Argument("path", required=False, many=True, completes="files"),
    Option("--stat", "Show how many lines of each file differ."),
    Option("--name-only", "Print only the names of files."),
    Option("--ignored", "Show files that git ignores too."),
    Option("--to OTHER", "Compare with another space: how its files differ from this one's."),
    Option("--since CHECKPOINT", "Show what has changed since that checkpoint."),
)
def diff(call: VerbCall) -> None:
    """Show how a space differs from the project that it started from, as git does.

    The commits that were made in it are named first. What you had not committed when it was made
    is not shown: it was there before. PATH is a file or a folder, never a pattern. Where the first
    PATH is the name of another space, that one is compared with; for a file of that name write
    ./NAME.
    """
    space = call.text("space")
    other, paths = _other(call, space)
    content = {"paths": paths, "ignored": call.flag("ignored"), "to": other}
    content["since"] = call.text("since")
    if not (call.json or call.flag("stat") or call.flag("name_only")):
        _text(call, space, content)
        return
    found = call.ask("review.files", space, content={**content, "limit": MOST_FILES})
    if call.json:
        call.show(found)
        return
    with Pager() as pager:
        if call.flag("name_only"):
            for file in found["files"]:
                name = file["path"]
                pager.write(f"{clean_line(name) if is_terminal(1) else name}\n")
        else:
            pager.write(_stat(found))
    if left := found["total"] - len(found["files"]):
        call.note(f"… and {left:,} more.")
    if count := found["hidden"]:
        call.note(f"and {count:,} ignored file{'' if count == 1 else 's'}: --ignored shows them")


def _other(call: VerbCall, space: str) -> tuple[str, list[str]]:
    """The space to compare with, if any, and the paths."""
    paths = call.texts("path")
    if call.text("to") or not paths or "/" in paths[0] or paths[0].startswith("."):
        return call.text("to"), paths
    from carrel.domain.errors import PathError, SpaceNotFound

    word = paths[0]
    try:
        named = call.ask("spaces.show", word)
    except SpaceNotFound:
        return "", paths
    if named["state"] == "removed":
        return "", paths
    try:
        call.ask("files.stat", space, query=[("path", word)])
    except PathError:
        return str(named["id"]), paths[1:]
    raise invalid(
        f"{word!r} is a space, and a file or folder in {space}.",
        hint=f"Write ./{word} for the file, or --to {word} for the space.",
    )


def _text(call: VerbCall, space: str, content: dict[str, Any]) -> None:
    """To a terminal with colours and nothing that steers it; elsewhere byte by byte as it is."""
    with call.link.open(operation("review.diff", space, content=content)) as stream:
        if not is_terminal(1):
            write_stream(stream, 1)
            return
        check_stream(stream)
        lines = _lines(stream)
        first = next(lines, None)
        if first is None:
            call.note("Nothing differs.")
            return
        colours = DiffColours()
        with Pager() as pager:
            pager.write(colours.line(first))
            for line in lines:
                pager.write(colours.line(line))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    for piece in pieces:
        *ended, last = piece.split(b"\n")
        for line in ended:
            yield b"".join([*rest, line])
            rest = []
        rest.append(last)
    if any(rest):
        yield b"".join(rest)


class DiffColours:
    """One line after the other, as a terminal shows it. Colours of the files themselves are shown
    as what they are: they could hide a line from who looks at it."""

    def __init__(self) -> None:
        self._in_lines = False

    def line(self, raw: bytes) -> str:
        text = clean_line(raw.decode("utf-8", "surrogateescape"))
        return f"{painted(text, self._colour(raw[:1], text))}\n"

    def _colour(self, first: bytes, text: str) -> str:
        if first == b"@":
            self._in_lines = True
            return PLACE
        if not self._in_lines or first not in (b"+", b"-", b" ", b"\\"):
            # Nothing within the lines of a file begins otherwise.
            self._in_lines = False
            return HEAD
        return {b"+": COME, b"-": GONE}.get(first, "")


# How many lines


def _stat(found: dict[str, Any]) -> str:
    files = found["files"]
    names = [_name(file) for file in files]
    counts = ["Bin" if file["binary"] else str(_lines_of(file)) for file in files]
    digits = max(map(len, counts), default=0)
    room = (terminal_width() or 10_000) - digits - BARS - 5
    width = min(max(map(width_of, names), default=0), max(room, 20))
    most = max((_lines_of(file) for file in files), default=0)
    rows = []
    for file, name, count in zip(files, names, counts, strict=True):
        name = cut_path(name, width)
        padding = " " * (width - width_of(name))
        bars = "" if file["binary"] else _bars(file, most)
        rows.append(f" {name}{padding} | {count.rjust(digits)} {bars}".rstrip() + "\n")
    return "".join([*map(_commit, found["commits"]), *rows, _sum(found)])


def _name(file: dict[str, Any]) -> str:
    old = f"{clean_line(file['old_path'])} => " if file["old_path"] else ""
    sort = "ignored" if file["ignored"] else "untracked" if file["untracked"] else ""
    mode = (
        "mode " + " => ".join((file["old_mode"], file["new_mode"])) if _changed_mode(file) else ""
    )
    words = ", ".join(word for word in (sort, mode) if word)
    return f"{old}{clean_line(file['path'])}" + (f" ({words})" if words else "")


def _changed_mode(file: dict[str, Any]) -> bool:
    return bool(file["old_mode"] and file["new_mode"] and file["old_mode"] != file["new_mode"])


def _lines_of(file: dict[str, Any]) -> int:
    return int(file["added"] or 0) + int(file["deleted"] or 0)


def _bars(file: dict[str, Any], most: int) -> str:
    """One sign for each line, or fewer where the longest row would be too long."""

    def length(count: int) -> int:
        return count if most <= BARS else -(-count * BARS // most)

    added, deleted = int(file["added"] or 0), int(file["deleted"] or 0)
    return painted("+" * length(added), COME) + painted("-" * length(deleted), GONE)


def _commit(commit: dict[str, Any]) -> str:
    where = f"{commit['repository']}: " if commit["repository"] else ""
    return (
        painted(clean_line(f"commit {commit['id'][:12]} {where}{commit['subject']}"), HEAD) + "\n"
    )


def _sum(found: dict[str, Any]) -> str:
    def counted(count: int, word: str) -> str:
        return f"{count:,} {word}{'' if count == 1 else 's'}"

    words = [f"{counted(found['total'], 'file')} changed"]
    words += [f"{counted(found['added'], 'insertion')}(+)"] if found["added"] else []
    words += [f"{counted(found['deleted'], 'deletion')}(-)"] if found["deleted"] else []
    return f" {', '.join(words)}\n" if found["total"] else ""
