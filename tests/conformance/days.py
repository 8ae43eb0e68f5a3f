"""A frontend's day at its desk: the turns that several tests look at.

To start an agent is what takes the time, so each turn is done once, by the first who asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx

from tests.agents.standins import Standin, serving
from tests.conformance.desks import Desk, Event, Turn, headers_of
from tests.conformance.frontends import Case
from tests.daemon.rig import Daemon, good


@dataclass(frozen=True)
class Stopped:
    """A turn that was interrupted, and what another was told while it ran."""

    turn: Turn
    refused: httpx.Response


@dataclass(frozen=True)
class Talk:
    """Two turns of one conversation."""

    first: Turn
    second: Turn
    events: list[Event]
    """Of the first."""
    spent: dict[str, int]
    headers: str
    """Of all that reached the model's API."""


@dataclass(frozen=True)
class Work:
    """A turn with files given, written, and tried to be written."""

    turn: Turn
    events: list[Event]
    outside: tuple[Path, Path]
    heard: Standin


@dataclass(frozen=True)
class Keyed:
    """A turn at a desk with a key of its own."""

    desk: Desk
    turn: Turn
    key: str


class Day:
    """All at one desk, except what is done at two at once."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk = desk
        self._folder = folder

    @cached_property
    def stopped(self) -> Stopped:
        desk = self.desk
        turn = good(desk.begin(desk.case.wait(300)))["id"]
        refused = desk.begin("me too")
        desk.works(turn, "300")
        good(desk.client.post(f"/v1/turns/{turn}/interrupt"))
        return Stopped(desk.end(turn), refused)

    @cached_property
    def talk(self) -> Talk:
        """After a turn that was interrupted."""
        assert self.stopped.turn
        desk, known, before = self.desk, len(self.desk.standin.requests), self.desk.spent()
        first = desk.turn("hello there")
        second = desk.turn("once more", continuation=first["continuation"])
        after = desk.spent()
        spent = {name: after[name] - before[name] for name in ("turns", "output_tokens")}
        headers = headers_of(self._heard_since(known))
        return Talk(first, second, desk.events(first["id"]), spent, headers)

    @cached_property
    def work(self) -> Work:
        desk, known = self.desk, len(self.desk.standin.requests)
        outside = (self._folder / "written.txt", self._folder / "run.txt")
        attached = self._given()
        options = {} if "attachments" in desk.case.gaps else {"attachments": attached}
        turn = desk.turn(self._lines(*outside), **options)
        return Work(turn, desk.events(turn["id"]), outside, self._heard_since(known))

    def _given(self) -> list[dict[str, str]]:
        files, context = (f"/v1/spaces/{self.desk.space}/{name}" for name in ("files", "context"))
        put = self.desk.client.put
        good(put(files, params={"path": "notes.txt"}, content=b"in the tree"))
        good(put(f"{context}/the rules.md", content=b"Be brief."))
        return [{"path": "notes.txt"}, {"path": "the rules.md", "folder": "context"}]

    def _lines(self, written: Path, run: Path) -> str:
        case = self.desk.case
        lines = [
            "anew",
            case.write("made.txt", "by the agent"),
            case.run("cp '/agent/context/the rules.md' copy"),
            case.run("sh -c 'echo no > /agent/context/more; rm /agent/context/*'"),
            case.write(str(written), "never"),
            case.run(f"sh -c 'echo never > {run}'"),
        ]
        return "\n".join(lines)

    def _heard_since(self, known: int) -> Standin:
        return Standin(self.desk.standin.url, self.desk.standin.requests[known:])

    @cached_property
    def two(self) -> tuple[Keyed, Keyed]:
        """Two desks at once, each with a key of its own."""
        case, keys = self.desk.case, ("sk-of-the-first-alone", "sk-of-the-second-alone")
        with serving() as one, serving() as other:
            desks = [Desk(self.desk.daemon, case, standin) for standin in (one, other)]
            begun = []
            for number, (desk, key) in enumerate(zip(desks, keys, strict=True)):
                env = {**case.env(desk.standin.url), f"{case.key.upper()}_API_KEY": key}
                begun.append(
                    good(desk.begin(case.write("own.txt", f"desk {number}"), env=env))["id"]
                )
            first, second = (
                Keyed(desk, desk.end(turn), key)
                for desk, turn, key in zip(desks, begun, keys, strict=True)
            )
        return first, second


class Days:
    """Of all frontends, at one daemon."""

    def __init__(self, daemon: Daemon, folder: Path, stack: contextlib.ExitStack) -> None:
        self._daemon = daemon
        self._folder = folder
        self._stack = stack
        self._days: dict[str, Day] = {}

    def of(self, case: Case) -> Day:
        if case.name not in self._days:
            folder = self._folder / case.name
            folder.mkdir(mode=0o777)
            folder.chmod(0o777)
            desk = Desk(self._daemon, case, self._stack.enter_context(serving()))
            self._days[case.name] = Day(desk, folder)
        return self._days[case.name]


@contextlib.contextmanager
def days_at(daemon: Daemon, folder: Path) -> Iterator[Days]:
    with contextlib.ExitStack() as stack:
        yield Days(daemon, folder, stack)
