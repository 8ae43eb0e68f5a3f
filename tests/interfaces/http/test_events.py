"""Events: as they come, from any point, for those who may see them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.daemon.rig import Daemon, bad, good

COUNT = 40


class Listener:
    """Reads a stream of events, one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()
        self.comments: list[str] = []
        self.begins_after = ""

    def next(self) -> dict[str, Any]:
        """The next event: its fields, and `data` decoded."""
        fields: dict[str, Any] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments.append(line[2:])
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                return {**fields, "data": json.loads(fields["data"])}
        raise EOFError

    def await_comment(self) -> None:
        while not self.comments:
            line = next(self._lines)
            if line.startswith(":"):
                self.comments.append(line[2:])
            elif line.startswith("id: "):
                self.begins_after = line[4:]


@contextlib.contextmanager
def listening(
    client: httpx.Client, query: dict[str, Any] | None = None, last: int | None = None
) -> Iterator[Listener]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", "/v1/events", params=query or {}, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-store"
        listener = Listener(response)
        listener.await_comment()
        yield listener


def _relabel(client: httpx.Client, space: dict[str, Any], value: str) -> None:
    good(client.patch(f"/v1/spaces/{space['id']}", json={"labels": {"n": value}}))


def _there(client: httpx.Client, **query: Any) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    answer: dict[str, Any] = good(client.get("/v1/events", params=query, headers=headers))
    return answer


def test_what_happens_from_now_on(client: httpx.Client, space: dict[str, Any]) -> None:
    query = {"space": space["id"], "type": "space.updated"}
    with listening(client, query) as listener:
        _relabel(client, space, "1")
        event = listener.next()
    assert event["event"] == "space.updated" and event["data"]["space"] == space["id"]
    assert int(event["id"]) == event["data"]["seq"]
    assert event["data"]["data"]["labels"] == {"n": "1"} and event["data"]["at"].endswith("Z")


def test_one_that_breaks_before_the_first_event_misses_none(
    client: httpx.Client, space: dict[str, Any]
) -> None:
    query = {"space": space["id"], "type": "space.updated"}
    with listening(client, query) as listener:
        begun = int(listener.begins_after)
    _relabel(client, space, "1")
    with listening(client, query, begun) as listener:
        assert listener.begins_after == ""
        assert listener.next()["data"]["data"]["labels"] == {"n": "1"}


def test_resumed_without_gap_or_repeat(
    client: httpx.Client, daemon: Daemon, space: dict[str, Any]
) -> None:
    """Connections that break at every other event, while more happen all the time."""
    query = {"space": space["name"], "type": "space.updated"}
    start = _there(client)["next"]

    def change() -> None:
        with daemon.local() as own:
            for number in range(COUNT):
                _relabel(own, space, str(number))

    changing = threading.Thread(target=change)
    changing.start()
    seen: list[str] = []
    numbers: list[int] = []
    last = start
    try:
        while len(seen) < COUNT:
            with listening(client, query, last) as listener:
                for _ in range(min(2, COUNT - len(seen))):
                    event = listener.next()
                    last = int(event["id"])
                    seen.append(event["data"]["data"]["labels"]["n"])
                    numbers.append(last)
    finally:
        changing.join()
    assert seen == [str(number) for number in range(COUNT)]
    assert numbers == sorted(set(numbers))


def test_what_there_is_as_json(client: httpx.Client, space: dict[str, Any]) -> None:
    for number in range(3):
        _relabel(client, space, str(number))
    query = {"space": space["id"], "type": "space.updated", "after": 0}
    whole = _there(client, **query)
    assert [one["data"]["labels"]["n"] for one in whole["events"]] == ["0", "1", "2"]
    first = _there(client, **query, limit=1)
    assert len(first["events"]) == 1
    rest = _there(client, **{**query, "after": first["next"]})
    assert first["events"] + rest["events"] == whole["events"]


def test_everything_is_in_order(client: httpx.Client, space: dict[str, Any]) -> None:
    """Of a request that is over the log keeps nothing, so older numbers may have gaps."""
    before = _pages(client, 0)
    assert before == sorted(set(before))
    for number in range(5):
        _relabel(client, space, str(number))
    new = _pages(client, before[-1])
    assert new == list(range(before[-1] + 1, before[-1] + 1 + len(new))) and len(new) >= 5


def _pages(client: httpx.Client, after: int) -> list[int]:
    """The numbers of all events after that one."""
    found: list[int] = []
    while True:
        page = _there(client, after=after, limit=1000)
        if not page["events"]:
            return found
        found += [event["seq"] for event in page["events"]]
        after = page["next"]


def test_a_run_is_told(client: httpx.Client, space: dict[str, Any]) -> None:
    query = {"space": space["id"], "type": ["run.started", "run.ended"]}
    with listening(client, query) as listener:
        body = {"argv": ["sh", "-c", "exit 5"]}
        run = good(client.post(f"/v1/spaces/{space['id']}/exec", json=body))["run"]
        started, ended = listener.next(), listener.next()
    assert started["data"]["data"]["run_id"] == run["id"]
    assert ended["data"]["data"] == {
        "run_id": run["id"],
        "reason": "exited",
        "code": 5,
        "signal": None,
    }


def test_a_place_that_is_not_in_the_log(client: httpx.Client, space: dict[str, Any]) -> None:
    last = _there(client, after=0, limit=1000)["next"]
    with listening(client, {"space": space["id"]}, last=last + 10**9) as listener:
        gap = listener.next()
        assert gap["event"] == "gap" and gap["data"]["after"] == last + 10**9
        _relabel(client, space, "x")
        assert listener.next()["event"] == "space.updated"


@pytest.mark.parametrize("query", ["after=x", "after=-1", "type=Odd!", "limit=0", "space=none"])
def test_bad_questions(client: httpx.Client, query: str) -> None:
    code, status = ("space_not_found", 404) if "space" in query else ("message_invalid", 422)
    bad(client.get(f"/v1/events?{query}"), status, code)


@pytest.mark.parametrize("last", ["x", "-1", "9" * 19, "१"])
def test_a_last_event_that_is_no_number(client: httpx.Client, last: str) -> None:
    headers = {b"Last-Event-ID": last.encode()}
    bad(client.get("/v1/events", headers=headers), 422, "message_invalid")
    bad(client.get("/v1/requests/none/events", headers=headers), 422, "message_invalid")


def test_what_a_stream_goes_on_after_is_documented(client: httpx.Client) -> None:
    paths = good(client.get("/v1/openapi.json"))["paths"]
    for path in ("/v1/events", "/v1/requests/{request_id}/events"):
        assert "Last-Event-ID" in [one["name"] for one in paths[path]["get"]["parameters"]]


def test_a_token_hears_of_its_own_spaces(
    client: httpx.Client, daemon: Daemon, space: dict[str, Any]
) -> None:
    other = good(client.post("/v1/spaces", json={}))
    with (
        daemon.tcp(daemon.token(f"space:{space['id']}")) as scoped,
        listening(scoped) as listener,
    ):
        _relabel(client, other, "secret")
        _relabel(client, space, "own")
        event = listener.next()
        assert event["data"]["space"] == space["id"]
        bad(scoped.get("/v1/events", params={"space": other["id"]}), 404, "space_not_found")
        everything = _there(scoped, after=0, limit=1000)["events"]
        assert {one["space"] for one in everything} <= {space["id"]}
    client.delete(f"/v1/spaces/{other['id']}", params={"force": "true"})
