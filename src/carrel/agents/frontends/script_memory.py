"""What the scripted agent remembers: a small file for each conversation."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field

from carrel.domain.agents import Seat, TurnRequest
from carrel.domain.errors import ContinuationNotFound

KEPT = 100
"""Of the lines that it said, the last ones."""

_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass
class Memory:
    key: str
    file: str
    turns: int
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)
        if len(self.said) > 2 * KEPT:
            del self.said[:-KEPT]

    def keep(self) -> None:
        """Whole or not at all: the process may be killed at any time."""
        new = f"{self.file}.{os.getpid()}"
        with open(new, "w") as file:
            file.write(json.dumps({"turns": self.turns, "said": self.said[-KEPT:]}))
        os.replace(new, self.file)


def recall(request: TurnRequest, seat: Seat) -> Memory:
    """The conversation that this turn belongs to, with the turn counted. It is kept at once:
    also a turn that is killed can be gone on with."""
    folder = f"{seat.state}/scripted"
    if request.continuation is not None:
        memory = _load(folder, request.continuation.key)
    else:
        os.makedirs(folder, exist_ok=True)
        key = _new_key(request)
        memory = Memory(key, f"{folder}/{key}.json", 0)
    memory.turns += 1
    memory.keep()
    return memory


def _load(folder: str, key: str) -> Memory:
    path = f"{folder}/{key}.json"
    if not _KEY.fullmatch(key) or not os.path.exists(path):
        raise ContinuationNotFound(f"There is no conversation {key!r} here.")
    with open(path) as file:
        known = json.load(file)
    return Memory(key, path, known["turns"], known["said"])


def _new_key(request: TurnRequest) -> str:
    """The same for the same turn, and another for another: a session's id alone would let a
    new conversation overwrite an older one."""
    if not request.session_id:
        return os.urandom(16).hex()
    named = f"{request.session_id}\0{request.run_id}".encode()
    return hashlib.sha256(named).hexdigest()[:32]
