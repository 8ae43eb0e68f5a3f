"""What the scripted agent remembers: a small file for each conversation."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.agents import Seat, TurnRequest
from carrel.domain.errors import ContinuationNotFound

KEPT = 100
"""Of the lines that it said, the last ones."""

_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass
class Memory:
    key: str
    file: Path
    turns: int
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)
        if len(self.said) > 2 * KEPT:
            del self.said[:-KEPT]

    def keep(self) -> None:
        """Whole or not at all: the process may be killed at any time."""
        new = self.file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"turns": self.turns, "said": self.said[-KEPT:]}))
        new.replace(self.file)


def recall(request: TurnRequest, seat: Seat) -> Memory:
    """The conversation that this turn belongs to, with the turn counted. It is kept at once:
    also a turn that is killed can be gone on with."""
    folder = Path(seat.state) / "scripted"
    if request.continuation is not None:
        memory = _load(folder, request.continuation.key)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        key = _new_key(request)
        memory = Memory(key, folder / f"{key}.json", 0)
    memory.turns += 1
    memory.keep()
    return memory


def _load(folder: Path, key: str) -> Memory:
    file = folder / f"{key}.json"
    try:
        known = json.loads(file.read_text()) if _KEY.fullmatch(key) else None
    except FileNotFoundError:
        known = None
    if known is None:
        raise ContinuationNotFound(f"There is no conversation {key!r} here.")
    return Memory(key, file, known["turns"], known["said"])


def _new_key(request: TurnRequest) -> str:
    """The same for the same turn, and another for another: a session's id alone would let a
    new conversation overwrite an older one."""
    if not request.session_id:
        return uuid.uuid4().hex
    named = f"{request.session_id}\0{request.run_id}".encode()
    return hashlib.sha256(named).hexdigest()[:32]
