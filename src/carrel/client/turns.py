"""A turn of an agent as the command line follows it: told as it goes on, waited for to its end.

Blocks, and imports as little as `link` does. The turn goes on without us; when the daemon goes
away meanwhile its end is asked for until there is one.
"""

from __future__ import annotations

import time

from carrel.client.exchange import WAIT_S, RetryDelay
from carrel.client.http import operation
from carrel.client.hub_line import HubLine

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from carrel.client.address import HubAddress
    from carrel.client.link import Link


NAME = "carrel send"
TYPES = ("agent.*",)


def begin(link: Link, space: str, content: Mapping[str, object]) -> dict[str, Any]:
    # It may wait for the servers of its space.
    found: dict[str, Any] = link.json(operation("turns.start", space, content=content))
    return found


def last_continuation(link: Link, space: str) -> dict[str, Any] | None:
    """Of the newest turn that has one."""
    for turn in link.json(operation("turns.list", space))["turns"]:
        if turn["continuation"] is not None:
            found: dict[str, Any] = turn["continuation"]
            return found
    return None


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
        if found["state"] != "running":
            return found


class Watched:
    """Connected before the turn begins, so that nothing of it is missed."""

    def __init__(self, where: HubAddress, space: str, *, start: bool) -> None:
        self._line = HubLine(where, start=start).open(NAME, types=TYPES, spaces=(space,))

    def follow(self, turn: str, heard: Callable[[dict[str, Any]], None]) -> bool:
        """Every event of the turn; False when the connection ended before it did."""
        from carrel.domain.errors import DaemonUnavailable

        try:
            for event in self._line.envelopes():
                if not event["type"].startswith("agent.") or event["payload"]["run_id"] != turn:
                    continue
                heard(event)
                if event["type"] == "agent.complete":
                    return True
        except DaemonUnavailable:
            return False
        return False

    def close(self) -> None:
        self._line.close()
