"""What the daemon has acknowledged to its clients, and must not lose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from carrel.client import AsyncSpace


@dataclass(frozen=True)
class Outcome:
    """How a command ended, as its client was told."""

    code: int
    stdout: bytes
    stderr: bytes = b""

    def __str__(self) -> str:
        ends = (f"{len(text)} bytes … {text[-20:]!r}" for text in (self.stdout, self.stderr))
        return f"{self.code}, {', '.join(ends)}"


@dataclass
class Held:
    """One space, as its client knows it."""

    space: AsyncSpace
    files: dict[str, bytes] = field(default_factory=dict)
    runs: dict[str, Outcome] = field(default_factory=dict)
    """Those that have ended."""
    stopped: bool = False

    @property
    def id(self) -> str:
        return self.space.id


@dataclass
class Ledger:
    """Of all clients together."""

    held: dict[str, Held] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    """All spaces there ever were."""
    workspaces: set[str] = field(default_factory=set)
    """Spaces of requests, which go by themselves, with all that was told of them."""
    runs: set[str] = field(default_factory=set)
    """All commands that were acknowledged as started."""
    counts: Counter[str] = field(default_factory=Counter)

    def made(self, space: AsyncSpace) -> Held:
        held = Held(space)
        self.held[held.id] = held
        self.ever.add(held.id)
        return held

    def gone(self, held: Held) -> None:
        del self.held[held.id]

    def restored(self, held: Held, space: AsyncSpace) -> None:
        """What was in the old one is in the new one; its commands are history."""
        held.space, held.runs = space, {}
        self.held[held.id] = held
        self.ever.add(held.id)

    def ended(self, held: Held, run_id: str, outcome: Outcome) -> None:
        self.runs.add(run_id)
        held.runs[run_id] = outcome
