"""A frontend's day at its desk: the turns that several tests look at.

To start an agent is what takes the time, so each turn is done once, by the first who asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

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
    headers: str
    """Of all that reached the model's API meanwhile."""


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
        """Where there are keys, while another desk works too."""
        desk, known = self.desk, len(self.desk.standin.requests)
        turn = desk.end(self._begin_work()) if "keys" in desk.case.gaps else self.two[0].turn
        return Work(turn, desk.events(turn["id"]), self._outside, self._heard_since(known))

    @property
    def _outside(self) -> tuple[Path, Path]:
        return self._folder / "written.txt", self._folder / "run.txt"

    def _begin_work(self, **options: Any) -> str:
        attached = self._given()
        if "attachments" not in self.desk.case.gaps:
            options["attachments"] = attached
        return str(good(self.desk.begin(self._lines(*self._outside), **options))["id"])

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
            case.write("own.txt", "desk 0"),
        ]
        return "\n".join(lines)

    def _heard_since(self, known: int) -> Standin:
        return Standin(self.desk.standin.url, self.desk.standin.requests[known:])

    @cached_property
    def two(self) -> tuple[Keyed, Keyed]:
        """Two desks at once, each with a key of its own: this one, which does its work, and
        another."""
        desk, known = self.desk, len(self.desk.standin.requests)
        keys = ("sk-of-the-first-alone", "sk-of-the-second-alone")
        with serving() as standin:
            other = Desk(desk.daemon, desk.case, standin)
            first = self._begin_work(env=_with_key(desk, keys[0]))
            prompt = desk.case.write("own.txt", "desk 1")
            second = good(other.begin(prompt, env=_with_key(other, keys[1])))["id"]
            turns = desk.end(first), other.end(second)
        return (
            Keyed(desk, turns[0], keys[0], headers_of(self._heard_since(known))),
            Keyed(other, turns[1], keys[1], headers_of(standin)),
        )


def _with_key(desk: Desk, key: str) -> dict[str, str]:
    case = desk.case
    return {**case.env(desk.standin.url), f"{case.key.upper()}_API_KEY": key}


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
