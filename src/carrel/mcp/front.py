"""`carrel mcp` on standard input and output, as agents start it: how they begin is answered at
once, and the server starts with the first request that needs it.

The SDK takes most of a second to import, agents wait for their servers before they begin, and
most turns call no tool. What this imports is measured: see tests/mcp/test_starting.py.
"""

from __future__ import annotations

import os
import signal

from carrel.client.hub_places import find_hub
from carrel.mcp.handshake import Handshake, load

STDIN, STDOUT = 0, 1
PIECE = 65_536
LONGEST = 65_536
"""Of a line here. The requests of a beginning are short."""


class Begun:
    """What the server takes over. It reads `first` before all else, and does not answer
    `unsaid`. `inside`: it was said that it speaks for a space."""

    __slots__ = ("first", "inside", "unsaid")

    def __init__(self, first: bytes, *, inside: bool, unsaid: str = "") -> None:
        self.first = first
        self.inside = inside
        self.unsaid = unsaid


def serve(*, data: str = "", url: str = "", autostart: bool = True) -> None:
    """Until the client is gone. Raises as `carrel.mcp.serving.serve`."""
    # Reading cannot be interrupted later on; so it is from the beginning.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    place = find_hub(data=data, url=url)
    begun = None
    # A token decides for whom it speaks, and a hub that is not there whether it can.
    if place.lines and os.path.exists(place.place.socket):
        begun = begin(place.inside)
        if begun is None:
            return
    from carrel.mcp import serving

    serving.serve(data=data, url=url, autostart=autostart, client=begun)


def begin(inside: bool, stdin: int = STDIN, stdout: int = STDOUT) -> Begun | None:
    """Answers for as long as it can; None when the client has gone."""
    handshake = Handshake(load("inside" if inside else "outside"), os.urandom(16).hex())
    heard, ended = b"", False
    while not ended or heard:
        line, newline, rest = heard.partition(b"\n")
        if not newline and not ended and len(heard) < LONGEST:
            piece = os.read(stdin, PIECE)
            heard, ended = heard + piece, not piece
            continue
        answer = None if len(line) >= LONGEST else handshake.take(line)
        if answer is None:
            unsaid = handshake.unsaid if handshake.replay else ""
            return Begun(handshake.replay + heard, inside=inside, unsaid=unsaid)
        if not _write(stdout, answer):
            return None
        heard = rest
    return None


def _write(descriptor: int, data: bytes) -> bool:
    """Whether anybody is there to read it."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BrokenPipeError:
            return False
    return True
