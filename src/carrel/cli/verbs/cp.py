"""carrel cp: files and folders, into and out of a space."""

from __future__ import annotations

import os
import time

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import StatusLine, clean
from carrel.cli.spec import Argument, Verb
from carrel.cli.terminal import write_stream
from carrel.cli.values import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHOW_AFTER_S = 1.0
SHOW_EVERY_S = 0.2
PIECE = 256 * 1024


@Verb(Argument("source", completes="files"), Argument("target", completes="files"))
def cp(call: VerbCall) -> None:
    """Copy files and folders into a space, or out of it.

    SOURCE or TARGET is SPACE:PATH, with a path relative to the project. It copies as cp -r
    does: into a folder that exists, else under the new name. - is standard input or output.
    Symlinks that lead out of what is copied are left out, and reported.
    """
    source, target = call.text("source"), call.text("target")
    out_of, into = split(source), split(target)
    if (out_of is None) == (into is None):
        raise invalid(
            "One path must be in a space, and the other one on this machine.",
            hint="Use: carrel cp SPACE:PATH FOLDER, or carrel cp FILE SPACE:PATH",
        )
    if out_of is not None and target == "-":
        _print(call, *out_of)
    elif out_of is not None:
        _download(call, *out_of, target)
    elif into is not None and source == "-":
        _write_input(call, *into)
    elif into is not None:
        _upload(call, source, *into)


def split(word: str) -> tuple[str, str] | None:
    """SPACE:PATH; None for what is here. A file whose name has a colon is ./file:name."""
    space, colon, path = word.partition(":")
    if not colon or not space or "/" in space or space in (".", ".."):
        return None
    # The tree's root is what paths are relative to, however they are written.
    return space, path.lstrip("/") or "."


def _download(call: VerbCall, space: str, path: str, target: str) -> None:
    from carrel.client.transfer import download

    with _Progress() as progress:
        moved = download(call.link, space, path, target, progress.add)
    _tell(call, moved)


def _upload(call: VerbCall, source: str, space: str, path: str) -> None:
    from carrel.client.transfer import upload

    with _Progress() as progress:
        moved = upload(call.link, space, source, path, progress.add)
    _tell(call, moved)


def _print(call: VerbCall, space: str, path: str) -> None:
    from carrel.client.transfer import open_file, tell_copied

    with open_file(call.link, space, path) as stream:
        write_stream(stream, 1)
    tell_copied(call.link, space, stream)


def _write_input(call: VerbCall, space: str, path: str) -> None:
    """Writes standard input to a file. It may take its time, which the daemon does not give: so
    all of it is read first."""
    from tempfile import TemporaryFile

    from carrel.client.transfer import CopyResult, write_file

    with TemporaryFile() as waiting:
        size = 0
        while piece := os.read(0, PIECE):
            size += waiting.write(piece)
        waiting.seek(0)
        write_file(call.link, space, path, iter(lambda: waiting.read(PIECE), b""))
    _tell(call, CopyResult(path, size))


def _tell(call: VerbCall, moved: Any) -> None:
    for path, why in moved.skipped:
        call.note(f"Left out: {clean(path)} ({clean(why)}).")
    if call.json:
        skipped = [{"path": path, "why": why} for path, why in moved.skipped]
        call.show({"target": moved.target, "bytes": moved.bytes_moved, "skipped": skipped})


class _Progress:
    """Shows how much was moved when it takes long, and somebody watches."""

    def __init__(self) -> None:
        self._line = StatusLine()
        self._bytes = 0
        self._next = time.monotonic() + SHOW_AFTER_S

    def add(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SHOW_EVERY_S
            self._line.show(size_text(self._bytes))

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()
