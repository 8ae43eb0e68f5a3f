"""Requests over HTTP: asked for, waited for, followed, fetched, extended; versions; webhooks."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import socket
import tarfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from carrel.interfaces.http.services import DIFFS, OUTCOMES
from carrel.service.requests.stream import OUTCOMES as FOLLOWED_OUTCOMES
from tests.agents.recording.running import wait_until
from tests.daemon.receiving import Receiver, receiving
from tests.daemon.requesting import GATE, new_name, open_gate
from tests.daemon.rig import Daemon, bad, good, post

WAIT_S = 60
OUTSIDE = "run printf 'out' > \"$(printf 'n\\377')\""


def ask(client: httpx.Client, instructions: str, **content: Any) -> dict[str, Any]:
    body = {"instructions": instructions, **content}
    answer: dict[str, Any] = good(client.post("/v1/requests", json=body))
    return answer


def ended(client: httpx.Client, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = good(client.get(f"/v1/requests/{name}", params={"wait": WAIT_S}))
    assert answer["ended_at"]
    return answer


def made(client: httpx.Client, instructions: str, **content: Any) -> dict[str, Any]:
    return ended(client, ask(client, instructions, **content)["request_id"])


def test_asked_and_waited_for(client: httpx.Client) -> None:
    secret = {"url": "http://127.0.0.1:9/x?key=dear", "secret": "dear"}
    asked = ask(client, "write a b", owner="ann", env={"KEY": "dear"}, labels={"a": "b"})
    name = asked["request_id"]
    assert asked["key"] == name and name.startswith("rq_") and asked["env"] == ["KEY"]
    record = ended(client, name)
    assert record["state"] == "done" and record["complete"] and record["failure"] is None
    assert record["result"]["files"][0]["text"] == "b\n" and record["policy"] == "ephemeral"
    # That was its delivery.
    gone = good(client.post(f"/v1/requests/{name}/done"))
    assert gone["workspace"] == "gone" and "text" not in gone["result"]["files"][0]
    bad(client.get(f"/v1/requests/{name}/files"), 410, "workspace_gone")
    hidden = ask(client, "sleep 600", webhook=secret)
    assert "dear" not in json.dumps(hidden) and hidden["webhook"] == "http://127.0.0.1:9"
    cancelled = good(client.post(f"/v1/requests/{hidden['key']}/cancel"))
    assert cancelled["state"] == "cancelled" and cancelled["failure"]["code"] == "cancelled"


def test_a_name_of_ones_own(client: httpx.Client) -> None:
    name = new_name()
    body, headers = {"instructions": "write a b"}, {"Idempotency-Key": name}
    first = client.post("/v1/requests", json=body, headers=headers)
    assert first.status_code == 202 and first.json()["request_id"] == name
    again = good(client.post("/v1/requests", json={**body, "request_id": name}))
    assert again["key"] == first.json()["key"]
    other = {"instructions": "write c d", "request_id": name}
    bad(client.post("/v1/requests", json=other), 409, "request_id_reused")
    both = client.post("/v1/requests", json={**body, "request_id": "x"}, headers=headers)
    assert bad(both, 422, "message_invalid")["field"] == "request_id"
    assert ended(client, name)["complete"]


def test_a_wait_that_is_over(client: httpx.Client) -> None:
    asked = ask(client, GATE)
    record = good(client.get(f"/v1/requests/{asked['key']}", params={"wait": 0.01}))
    assert record["ended_at"] is None
    accepted = _stream(client, asked["key"], until="accepted")[-1][1]
    assert record["delivered_at"] is None
    open_gate(client, accepted["space_id"])
    assert ended(client, asked["key"])["complete"]


def test_lists(client: httpx.Client) -> None:
    owner = new_name()
    names = [made(client, f"say {n}", owner=owner)["request_id"] for n in range(3)]
    found = good(client.get("/v1/requests", params={"owner": owner}))
    assert [one["request_id"] for one in found["requests"]] == names[::-1] and not found["next"]
    assert "result" not in found["requests"][0]
    first = good(client.get("/v1/requests", params={"owner": owner, "limit": 2}))
    assert first["next"] == found["requests"][1]["key"]
    rest = good(client.get("/v1/requests", params={"owner": owner, "before": first["next"]}))
    assert [one["request_id"] for one in first["requests"] + rest["requests"]] == names[::-1]
    live = good(client.get("/v1/requests", params={"owner": owner, "live": "true"}))
    assert live["requests"] == []
    assert len(good(client.get("/v1/requests?live=false", params={}))["requests"]) >= 3


def _stream(
    client: httpx.Client, name: str, until: str = "", headers: dict[str, str] | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """Ids and frames as server-sent events, to the end or to one of that type."""
    found, number = [], ""
    with client.stream("GET", f"/v1/requests/{name}/events", headers=headers or {}) as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = line.removeprefix("id: ")
            elif line.startswith("data: "):
                frame = json.loads(line.removeprefix("data: "))
                found.append((number, frame))
                number = ""
                if frame["type"] == until:
                    break
    return found


def test_followed(client: httpx.Client) -> None:
    name = ask(client, "write a b\nsay it", retention="retain")["request_id"]
    whole = [(number, frame) for number, frame in _stream(client, name) if number]
    assert whole[0][1]["type"] == "accepted" and whole[-1][1]["type"] == "result"
    assert all(int(number) == frame["seq"] for number, frame in whole)
    middle = whole[3][0]
    after = _stream(client, name, headers={"Last-Event-ID": middle})
    assert [one for one in after if one[0]] == whole[4:]
    # A browser comes back after the end, and is to stay away then.
    url, last = f"/v1/requests/{name}/events", {"Last-Event-ID": whole[-1][0]}
    assert client.get(url, headers=last).status_code == 204
    assert good(client.get(f"/v1/requests/{name}"))["delivered_at"]


@pytest.fixture(scope="module")
def kept(daemon: Daemon) -> Iterator[dict[str, Any]]:
    """One that is retained."""
    steps = f"write src/a.py 1\nwrite b.txt 0123456789\n{OUTSIDE}\nrun ln -s /etc/passwd link"
    with daemon.local() as client:
        record = made(client, steps, retention={"for": "36h"})
        assert record["policy"] == "retain" and record["workspace"] == "there"
        yield record
        client.delete(f"/v1/requests/{record['key']}")


def test_files(client: httpx.Client, kept: dict[str, Any]) -> None:
    path = f"/v1/requests/{kept['key']}/files"
    found = json.loads(client.get(path).content)
    names = ["b.txt", "link", "n\udcff", "src/a.py"]
    assert [file["path"] for file in found["files"]] == names and found["total"] == 4
    page = json.loads(client.get(path, params={"limit": 2}).content)
    assert page["next"] == "link"
    page = json.loads(client.get(path, params={"limit": 1, "after": "link"}).content)
    assert page["next"] == "n\udcff"
    page = json.loads(client.get(f"{path}?after=n%FF").content)
    assert [file["path"] for file in page["files"]] == ["src/a.py"] and not page["next"]
    assert client.get(f"{path}/src/a.py").content == b"1\n"
    assert client.get(f"{path}/src%2Fa.py").content == b"1\n"
    assert client.get(f"{path}/n%FF").content == b"out"
    part = client.get(f"{path}/b.txt", headers={"Range": "bytes=2-4"})
    assert part.status_code == 206 and part.content == b"234"
    bad(client.get(f"{path}/b.txt", headers={"Range": "bytes=90-"}), 416, "range_not_satisfiable")
    bad(client.get(f"{path}/none"), 404, "path_not_found")
    bad(client.get(f"{path}/src"), 409, "path_wrong_kind")
    bad(client.get(f"{path}/link"), 403, "path_escapes")
    bad(client.get(f"{path}/%2E%2E/%2E%2E/carrel.db"), 403, "path_escapes")


def test_an_archive(client: httpx.Client, kept: dict[str, Any]) -> None:
    answer = client.get(f"/v1/requests/{kept['key']}/archive")
    assert answer.headers["content-type"] == "application/gzip"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        members = {member.name: member for member in archive}
    assert {"b.txt", "src/a.py", "link", "n\udcff"} <= set(members)
    assert members["link"].issym()


def test_extended_and_removed(client: httpx.Client) -> None:
    name = made(client, "write a b", retention={"policy": "retain", "seconds": 60})["request_id"]
    before = good(client.get(f"/v1/requests/{name}"))
    after = good(client.post(f"/v1/requests/{name}/extend", json={"for": "2d"}))
    assert after["retained_until"] > before["retained_until"]
    good(client.post(f"/v1/requests/{name}/extend", json={"seconds": 90}))
    bad(client.post(f"/v1/requests/{name}/extend", json={}), 422, "message_invalid")
    both = {"for": "2d", "seconds": 1}
    bad(client.post(f"/v1/requests/{name}/extend", json=both), 422, "message_invalid")
    space = before["space_id"]
    wait_until(lambda: good(client.get(f"/v1/spaces/{space}"))["state"] == "stopped")
    assert good(client.delete(f"/v1/requests/{name}"))["workspace"] == "gone"
    bad(client.get(f"/v1/spaces/{space}"), 404, "space_not_found")
    bad(client.post(f"/v1/requests/{name}/extend", json={"seconds": 90}), 410, "workspace_gone")
    other = made(client, "write a b")["request_id"]
    bad(client.post(f"/v1/requests/{other}/extend", json={"seconds": 9}), 422, "request_invalid")


def test_versions(client: httpx.Client) -> None:
    series = f"a/{new_name()}"
    keeping = {"series": series, "newest": 2}
    for number in range(1, 4):
        record = made(client, f"write a.txt {number}", retention=keeping)
        assert record["version"] == number and record["policy"] == "versioned"
        good(client.post(f"/v1/requests/{record['key']}/done"))
    path = f"/v1/series/{series}"
    found = good(client.get(f"{path}/versions"))["versions"]
    assert [one["version"] for one in found] == [3, 2, 1]
    assert [one["workspace"] for one in found] == ["there", "there", "archived"]
    assert found[2]["archive_bytes"] > 0 and found[0]["instructions"] == "write a.txt 3"
    assert [
        one["key"]
        for one in good(client.get("/v1/requests", params={"series": series}))["requests"]
    ] == [one["key"] for one in found]
    answer = client.get(f"{path}/diff")
    assert answer.headers["content-type"].startswith("text/x-diff")
    assert answer.headers["carrel-versions"] == "2..3"
    assert "-2\n+3\n" in answer.text and "a/a.txt" in answer.text
    # With an archived one; and with nothing.
    assert "-1\n+3\n" in client.get(f"{path}/diff?from=1&to=3").text
    assert "+1\n" in client.get(f"{path}/diff?from=0&to=1").text
    assert client.get(f"{path}/diff?to=2").headers["carrel-versions"] == "1..2"
    bad(client.get(f"{path}/diff?from=1&to=9"), 404, "version_not_found")
    bad(client.get("/v1/series/none/versions"), 404, "version_not_found")
    old = client.get(f"/v1/requests/{found[2]['key']}/archive?all=true")
    with tarfile.open(fileobj=io.BytesIO(old.content)) as archive:
        assert archive.extractfile("a.txt").read() == b"1\n"  # type: ignore[union-attr]
    for one in found:
        assert good(client.delete(f"/v1/requests/{one['key']}"))["workspace"] == "gone"


def test_few_differences_are_read_at_the_same_time(client: httpx.Client) -> None:
    """Both versions are on the disk while a client takes its time."""
    series = new_name()
    many = "run for one in 1 2 3 4 5 6 7 8; do yes $one | head -c 1000000 > $one; done"
    record = made(client, many, retention={"series": series})
    path = f"/v1/series/{series}/diff?from=0&to=1"
    with contextlib.ExitStack() as slow:
        for _ in range(DIFFS):
            slow.enter_context(client.stream("GET", path))
        with pytest.raises(httpx.ReadTimeout):
            client.get(path, timeout=0.5)
    assert "+8\n" in client.get(path).text
    good(client.delete(f"/v1/requests/{record['key']}"))


LARGE = "run yes '' | head -c 4000000 > lines"
"""Twice as long in JSON: more than the kernel takes for who does not read."""


@contextlib.contextmanager
def unread(daemon: Daemon, secret: str, path: str) -> Iterator[socket.socket]:
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", daemon.port))
        connection.sendall(head.encode())
        yield connection


def comes(connection: socket.socket, mark: bytes, seconds: float = WAIT_S) -> bool:
    """Whether an answer comes so far; no more of it is read."""
    connection.settimeout(seconds)
    said = b""
    with contextlib.suppress(TimeoutError):
        while mark not in said and (piece := connection.recv(100)):
            said += piece
    return mark in said


@pytest.mark.parametrize(
    ("door", "mark", "most"),
    [("", b"200 OK", OUTCOMES), ("/events", b"event: result", FOLLOWED_OUTCOMES)],
)
def test_one_caller_has_a_share_of_outcomes_that_are_on_their_way(
    daemon: Daemon, door: str, mark: bytes, most: int
) -> None:
    """Each is in memory until it is read."""
    secrets = [daemon.token(f"label:team={name}") for name in ("blue", "red")]
    with daemon.tcp(secrets[0]) as blue, contextlib.ExitStack() as opened:
        record = made(blue, LARGE)
        assert len(record["result"]["files"][0]["text"]) == 4_000_000
        path = f"/v1/requests/{record['key']}{door}"
        slow = [opened.enter_context(unread(daemon, secrets[0], path)) for _ in range(most // 2)]
        assert all([comes(one, mark) for one in slow])
        late = opened.enter_context(unread(daemon, secrets[0], path))
        assert not comes(late, mark, 0.5)
        with daemon.tcp(secrets[1]) as red:
            other = made(red, "write a b")["key"]
            assert "event: result" in red.get(f"/v1/requests/{other}/events").text
        slow[0].close()
        assert comes(late, mark)


def test_versions_that_are_dropped(client: httpx.Client) -> None:
    series = new_name()
    keeping = {"policy": "versioned", "series": series, "newest": 1, "older": "drop"}
    for number in range(2):
        record = made(client, f"write a {number}", retention=keeping)
        good(client.post(f"/v1/requests/{record['key']}/done"))
    found = good(client.get(f"/v1/series/{series}/versions"))["versions"]
    assert [(one["version"], one["workspace"]) for one in found] == [(2, "there"), (1, "gone")]
    bad(client.get(f"/v1/series/{series}/diff"), 410, "workspace_gone")
    good(client.delete(f"/v1/requests/{found[0]['key']}"))


# Webhooks


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def test_a_webhook(client: httpx.Client, receiver: Receiver) -> None:
    """Told again while the other side cannot; and signed."""
    receiver.answers += [500, 503, 204]
    webhook = {"url": receiver.url, "secret": "dear"}
    name = ask(client, "write a b", webhook=webhook)["request_id"]
    posts = [receiver.next() for _ in range(3)]
    assert len({post.body for post in posts}) == 1
    body = json.loads(posts[-1].body)
    assert (body["type"], body["request_id"], body["complete"]) == ("result", name, True)
    assert body["files"][0]["text"] == "b\n"
    signed = hmac.new(b"dear", posts[-1].body, hashlib.sha256).hexdigest()
    assert posts[-1].headers["carrel-signature"] == f"sha256={signed}"
    assert posts[-1].headers["content-type"] == "application/json"
    record = good(client.post(f"/v1/requests/{name}/done"))
    assert record["told"] == 3 and record["workspace"] == "gone" and not record["notes"]


def test_a_webhook_that_refuses(client: httpx.Client, receiver: Receiver) -> None:
    receiver.answers += [404]
    name = ask(client, "fail no", webhook=receiver.url)["request_id"]
    body = json.loads(receiver.next().body)
    assert body["type"] == "error" and body["code"] and body["step"] == "working"
    record = good(client.post(f"/v1/requests/{name}/done")) if ended(client, name) else {}
    assert record["told"] == 1 and "404" in record["notes"][0]


def test_webhooks_of_others(daemon: Daemon, receiver: Receiver) -> None:
    with daemon.tcp(daemon.token("label:team=blue")) as client:
        body = {"instructions": "x", "webhook": receiver.url}
        bad(client.post("/v1/requests", json=body), 403, "forbidden")


def test_bad_bodies(client: httpx.Client) -> None:
    for body, field in (
        ({}, "body.instructions"),
        ({"instructions": "x", "retention": {"policy": "never"}}, "body.retention.policy"),
        ({"instructions": "x", "check": {"command": 1}}, "body.check.command"),
        ({"instructions": "x", "webhook": 1}, "body.webhook"),
        ({"instructions": "x", "type": "generate"}, "body.type"),
        (
            {"instructions": "x", "retention": {"policy": "retain", "for": "x"}},
            "body.retention.for",
        ),
    ):
        assert bad(client.post("/v1/requests", json=body), 422, "message_invalid")["field"] == field
    bad(post(client, "/v1/requests", {"instructions": "\ud800"}), 422, "message_invalid")
    deep: Any = {}
    for _ in range(400):
        deep = {"x": deep}
    answer = client.post("/v1/requests", json={"instructions": "say x", "architecture": deep})
    assert answer.status_code in (202, 422)


def test_a_path_whose_slash_is_encoded(client: httpx.Client) -> None:
    bad(client.get("/v1/requests/rq_none/files%2Fa"), 422, "message_invalid")


@pytest.mark.parametrize(
    "url",
    ["http://user:word@127.0.0.1/x", "http://127.0.0.1/a b", "http://127.0.0.1/\u00fc", "ftp://x"],
)
def test_addresses_that_nothing_can_be_sent_to(client: httpx.Client, url: str) -> None:
    body = {"instructions": "write a b", "webhook": url}
    bad(client.post("/v1/requests", json=body), 422, "request_invalid")
