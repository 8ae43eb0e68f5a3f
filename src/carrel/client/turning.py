"""A turn of an agent as the command line follows it: told as it goes on, waited for to its end.

Blocks, and imports as little as `link` does. The turn goes on without us; when the daemon goes
away meanwhile its end is asked for until there is one.
"""

from __future__ import annotations

import json
import time

from carrel.client.creating import begin_patience
from carrel.client.hub_line import HubLine
from carrel.client.requests import LONG_S, asking, space_path, telling
from carrel.client.wire import segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from carrel.client.hub_places import HubPlace
    from carrel.client.link import Link

NAME = "carrel send"
TYPES = ("agent.*",)
WAIT_S = 30.0
"""How long one request waits for the end; then it is asked again."""


def begin(link: Link, space: str, content: Mapping[str, object]) -> dict[str, Any]:
    # It may wait for the servers of its space.
    request = telling("POST", space_path(space, "turns"), content, timeout_s=LONG_S)
    found: dict[str, Any] = link.json(request)
    return found


def last_continuation(link: Link, space: str) -> dict[str, Any] | None:
    """Of the newest turn that has one."""
    for turn in link.json(asking(space_path(space, "turns")))["turns"]:
        if turn["continuation"] is not None:
            found: dict[str, Any] = turn["continuation"]
            return found
    return None


def working(link: Link, space: str) -> dict[str, Any] | None:
    """The turn that runs in a space."""
    turn = link.json(asking(space_path(space)))["working"]
    found: dict[str, Any] | None = link.json(asking(_turn_path(turn))) if turn else None
    return found


def decide(link: Link, turn: str, permission: str, *, allow: bool) -> dict[str, Any]:
    """Answers what the turn asks permission for."""
    path = f"{_turn_path(turn)}/permissions/{segment(permission)}"
    found: dict[str, Any] = link.json(telling("POST", path, {"allow": allow}))
    return found


def _turn_path(turn: str) -> str:
    return f"/v1/turns/{segment(turn)}"


def wait(link: Link, turn: str) -> dict[str, Any]:
    """The turn when it has ended, whatever becomes of the daemon meanwhile."""
    from carrel.domain.errors import DaemonUnavailable

    path, patience = _turn_path(turn), None
    while True:
        try:
            asked = asking(path, [("wait_s", WAIT_S)], timeout_s=LONG_S)
            found: dict[str, Any] = link.json(asked)
        except DaemonUnavailable as error:
            patience = patience or begin_patience(error)
            if not patience.failed(time.monotonic()):
                raise
            time.sleep(max(0.0, patience.next_at - time.monotonic()))
            continue
        patience = None
        if found["state"] != "running":
            return found


class Watched:
    """Connected before the turn begins, so that nothing of it is missed."""

    def __init__(self, where: HubPlace, space: str, *, start: bool) -> None:
        self._line = HubLine(where, start=start).open(NAME, types=TYPES, spaces=(space,))

    def follow(self, turn: str, heard: Callable[[dict[str, Any]], None]) -> bool:
        """Every event of the turn; False when the connection ended before it did."""
        from carrel.domain.errors import DaemonUnavailable

        try:
            for line in self._line.lines():
                event = json.loads(line)
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
