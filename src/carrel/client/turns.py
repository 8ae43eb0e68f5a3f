"""A turn of an agent as the command line follows it: told as it goes on, waited for to its end.

Blocks, and imports as little as `link` does. The turn goes on without us; when the daemon goes
away meanwhile its end is asked for until there is one.
"""

from __future__ import annotations

import time

from carrel.client.exchange import WAIT_S, RetryDelay
from carrel.client.http import operation
from carrel.client.hub_line import HubLine, ended

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from carrel.client.address import HubAddress
    from carrel.client.link import Link

    Heard = Callable[[dict[str, Any]], None]
    """Is given each event, as the hub has it."""


NAME = "carrel send"
TYPES = ("*",)
"""All, so that the last that is kept comes too, whatever it is."""
PREFIX, COMPLETE = "agent.", "agent.complete"


def begin(link: Link, space: str, content: Mapping[str, object]) -> dict[str, Any]:
    # It may wait for the servers of its space.
    found: dict[str, Any] = link.json(operation("turns.start", space, content=content))
    return found


def last_continuation(link: Link, space: str) -> dict[str, Any] | None:
    """Of the newest turn that has one, or what the space was forked with or put back to."""
    for turn in link.json(operation("turns.list", space))["turns"]:
        if turn["continuation"] is not None:
            found: dict[str, Any] = turn["continuation"]
            return found
    kept: dict[str, Any] | None = link.json(operation("spaces.show", space)).get("goes_on_with")
    return kept


def working(link: Link, space: str) -> dict[str, Any] | None:
    """The turn that runs in a space."""
    turn = link.json(operation("spaces.show", space))["working"]
    found: dict[str, Any] | None = link.json(operation("turns.show", turn)) if turn else None
    return found


def decide(link: Link, turn: str, permission: str, *, allow: bool) -> dict[str, Any]:
    """Answers what the turn asks permission for."""
    said = {"allow": allow}
    found: dict[str, Any] = link.json(operation("turns.decide", turn, permission, content=said))
    return found


def wait(link: Link, turn: str) -> dict[str, Any]:
    """The turn when it has ended, whatever becomes of the daemon meanwhile."""
    from carrel.domain.errors import DaemonUnavailable

    backoff = None
    while True:
        try:
            asked = operation("turns.show", turn, query=[("wait_s", WAIT_S)])
            found: dict[str, Any] = link.json(asked)
        except DaemonUnavailable as error:
            backoff = backoff or RetryDelay.after(error)
            if not backoff.failed(time.monotonic()):
                raise
            time.sleep(backoff.pause_s)
            continue
        backoff = None
        if found["state"] not in ("queued", "running"):
            return found


class Watched:
    """The log of a space, connected to before a turn begins or when one is looked at. A daemon
    that goes away meanwhile is connected to again, and nothing is missed."""

    def __init__(self, where: HubAddress, space: str, *, start: bool) -> None:
        self._where = where
        self._space = space
        self._line = self._connect(start=start)

    def _connect(self, *, start: bool) -> HubLine:
        return HubLine(self._where, start=start).open(NAME, types=TYPES, spaces=(self._space,))

    def follow(
        self, turn: Mapping[str, Any], heard: Heard, lost: Callable[[], None], *, begun: bool
    ) -> None:
        """Every event of the turn, to its end; without `begun` it began after this connected.
        `lost` is called each time the daemon goes away, and `DaemonUnavailable` is raised when it
        does not come back."""
        from carrel.domain.errors import DaemonUnavailable

        reader, backoff = _Reader(turn, heard), None
        if begun:
            self._replay(reader.seq)
        while True:
            try:
                if backoff is not None:
                    self._line = self._connect(start=True)
                    self._replay(reader.seq)
                    backoff = None
                if reader.read(self._line):
                    return
                raise ended()
            except DaemonUnavailable as error:
                if backoff is None:
                    backoff = RetryDelay.after(error)
                    lost()
                if not backoff.failed(time.monotonic()):
                    raise
                self.close()
                time.sleep(backoff.pause_s)

    def read(self, turn: Mapping[str, Any], heard: Heard) -> bool:
        """The events of the turn that are kept now. False when it has not ended with them."""
        last = self._replay(turn["after"])
        return last > turn["after"] and _Reader(turn, heard, last).read(self._line)

    def _replay(self, after: int) -> int:
        """Has all sent that is kept after that number; gives the number of the last."""
        payload = {"space": self._space, "seq": after}
        said = self._line.ask({"type": "buffer_replay", "payload": payload})
        return int(said["replay_to"][self._space])

    def close(self) -> None:
        self._line.close()


class _Reader:
    """Finds the events of one turn in the log of its space; up to the number `last`, if given."""

    def __init__(self, turn: Mapping[str, Any], heard: Heard, last: int | None = None) -> None:
        self.seq: int = turn["after"]
        """The number of the last message that came."""
        self._turn = turn["id"]
        self._heard = heard
        self._last = last

    def read(self, line: HubLine) -> bool:
        """True when the turn has ended."""
        for event in line.envelopes():
            if event.get("space") and event.get("seq"):
                self.seq = max(self.seq, event["seq"])
            if self._is_ours(event):
                self._heard(event)
                if event["type"] == COMPLETE:
                    return True
            if self._last is not None and self.seq >= self._last:
                return False
        return False

    def _is_ours(self, event: dict[str, Any]) -> bool:
        """Only Carrel itself tells of turns."""
        payload, sender = event.get("payload"), event.get("sender")
        if not isinstance(payload, dict) or not isinstance(sender, dict):
            return False
        told = sender.get("kind") == "system" and str(event.get("type")).startswith(PREFIX)
        return told and payload.get("run_id") == self._turn
