"""carrel cp: files and folders, into and out of a space."""

from __future__ import annotations

import os
import time

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.cli.output import flush, is_terminal, tell
from carrel.cli.spec import FILES, Argument, Verb
from carrel.cli.values import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Copy files and folders into a space, or out of it.",
    Argument("source", completes=FILES),
    Argument("target", completes=FILES),
    details=(
        "One of both is SPACE:PATH, with a path relative to the project. As cp -r does: into a "
        "folder that is there, else under the new name. - is standard input or output. "
        "Symlinks that lead out of what is copied are left out, and told."
    ),
)
SHOW_AFTER_S = 1.0
SHOW_EVERY_S = 0.2
PIECE = 256 * 1024


def run(call: Call) -> int:
    source, target = call.text("source"), call.text("target")
    out_of, into = split(source), split(target)
    if (out_of is None) == (into is None):
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "One side has to be in a space, and one here.",
            hint="carrel cp SPACE:PATH FOLDER, or carrel cp FILE SPACE:PATH",
        )
    if out_of is not None:
        return _print(call, *out_of) if target == "-" else _out(call, *out_of, target)
    assert into is not None
    return _read(call, *into) if source == "-" else _in(call, source, *into)


def split(word: str) -> tuple[str, str] | None:
    """SPACE:PATH; None for what is here. A file whose name has a colon is ./file:name."""
    space, colon, path = word.partition(":")
    if not colon or not space or "/" in space or space in (".", ".."):
        return None
    # The tree's root is what paths are relative to, however they are written.
    return space, path.lstrip("/") or "."


def _out(call: Call, space: str, path: str, target: str) -> int:
    from carrel.client.transfer import download

    with _Progress() as progress:
        moved = download(call.link, space, path, target, progress.add)
    return _tell(call, moved)


def _in(call: Call, source: str, space: str, path: str) -> int:
    from carrel.client.transfer import upload

    with _Progress() as progress:
        moved = upload(call.link, space, source, path, progress.add)
    return _tell(call, moved)


def _print(call: Call, space: str, path: str) -> int:
    from carrel.cli.terminal import write_all
    from carrel.client.requests import Answer
    from carrel.client.transfer import open_file

    flush()
    with open_file(call.link, space, path) as stream:
        if stream.head.status >= 400:
            Answer(stream.head, stream.read()).check()
        for piece in stream:
            write_all(1, piece)
    return 0


def _read(call: Call, space: str, path: str) -> int:
    """Standard input may take its time, which the daemon does not give: so all of it first."""
    from tempfile import TemporaryFile

    from carrel.client.transfer import Moved, write_file

    with TemporaryFile() as waiting:
        size = 0
        while piece := os.read(0, PIECE):
            size += waiting.write(piece)
        waiting.seek(0)
        write_file(call.link, space, path, iter(lambda: waiting.read(PIECE), b""))
    return _tell(call, Moved(path, size))


def _tell(call: Call, moved: Any) -> int:
    for path, why in moved.skipped:
        call.note(f"Left out: {clean(path)} ({clean(why)}).")
    if call.json:
        skipped = [{"path": path, "why": why} for path, why in moved.skipped]
        call.show({"target": moved.target, "bytes": moved.bytes_moved, "skipped": skipped})
    return 0


class _Progress:
    """A line on standard error when it takes long, and somebody watches."""

    def __init__(self) -> None:
        self._shows = is_terminal(2)
        self._bytes = 0
        self._next = time.monotonic() + SHOW_AFTER_S
        self._shown = False

    def add(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if self._shows and now >= self._next:
            self._next = now + SHOW_EVERY_S
            self._shown = True
            tell(f"\r\x1b[K{size_text(self._bytes)}")

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            tell("\r\x1b[K")
