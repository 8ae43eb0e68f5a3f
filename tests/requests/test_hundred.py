"""Many requests at the same time, of several clients: each has what is its own, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.daemon.requesting import talking
from tests.daemon.rig import Daemon, fresh_daemon, good
from tests.sampling import examples

CLIENTS, EACH = examples(5, exhaustive=10), examples(2, exhaustive=10)
"""Together more than are worked on at once."""
SEEN = "run seen=$(find . -type f); echo $seen > seen"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


def _ask(daemon: Daemon, client: int) -> list[dict[str, Any]]:
    """All of one client's, and their outcomes."""
    with talking(daemon) as talk:
        names = [
            talk.generate(
                f"write own-{client}-{number}.txt {client} {number}\n{SEEN}",
                owner=f"owner-{client}",
                request_id=f"{client}-{number}",
            )
            for number in range(EACH)
        ]
        outcomes = [talk.outcome() for _ in names]
        others = {frame["request_id"] for frame in talk.heard} - set(names)
        assert not others, "only what is one's own is heard"
        return outcomes


def test_each_result_has_its_own_files(daemon: Daemon) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = [
            one for many in pool.map(lambda n: _ask(daemon, n), range(CLIENTS)) for one in many
        ]
    assert len({one["request_id"] for one in found}) == CLIENTS * EACH
    assert len({one["space_id"] for one in found}) == CLIENTS * EACH
    for one in found:
        client, number = one["request_id"].split("-")
        own = f"own-{client}-{number}.txt"
        assert one["type"] == "result" and one["complete"], one
        texts = {file["path"]: file["text"] for file in one["files"]}
        assert texts == {own: f"{client} {number}\n", "seen": f"./{own}\n"}
    with daemon.local() as client_of_all:
        for one in found:
            done = good(client_of_all.post(f"/v1/requests/{one['request_id']}/done"))
            assert done["workspace"] == "gone"
        assert good(client_of_all.get("/v1/spaces"))["spaces"] == []
