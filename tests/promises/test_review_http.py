"""docs/review.md, its table of paths: comments, landings, the queue and races, by plain HTTP."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.rig import ANSWER_S, LOOK_S, good


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "greet.py").write_text("print('Hello')\n")
    git(tmp_path, "init", "-qb", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def git(project: Path, *words: str) -> str:
    whole = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(whole, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def space(owner: httpx.Client, project: Path) -> Iterator[str]:
    found = make(owner, project)
    yield found
    owner.delete(found, params={"force": "true"})


def make(client: httpx.Client, project: Path) -> str:
    where = {"kind": "folder", "location": str(project)}
    asked = {"project": where, "agent": "scripted"}
    return f"/v1/spaces/{good(client.post('/v1/spaces', json=asked))['id']}"


def write(client: httpx.Client, space: str, path: str, text: str) -> None:
    content = text.encode()
    assert client.put(f"{space}/files", params={"path": path}, content=content).is_success


def read(client: httpx.Client, space: str, path: str) -> str:
    return client.get(f"{space}/files", params={"path": path}).text


def test_comments_go_to_the_agent(owner: httpx.Client, space: str) -> None:
    write(owner, space, "greet.py", "one\ntwo\nthree\n")
    one = good(
        owner.post(f"{space}/comments", json={"path": "greet.py", "line": 2, "text": "why?"})
    )
    assert (one["path"], one["line"], one["state"]) == ("greet.py", 2, "open") and one["id"]
    # It stays with its line.
    write(owner, space, "greet.py", "zero\none\ntwo\nthree\n")
    (now,) = good(owner.get(f"{space}/comments"))["comments"]
    assert (now["line"], now["made_at_line"]) == (3, 2)
    other = {"path": "greet.py", "line": 1, "text": "not this"}
    gone = good(owner.post(f"{space}/comments", json=other))["id"]
    left = good(owner.delete(f"{space}/comments/{gone}"))["comments"]
    assert [found["id"] for found in left] == [one["id"]]
    sent = good(owner.post(f"{space}/comments/send", json={}))
    assert sent["sent"] == 1 and "why?" in sent["turn"]["prompt"]
    good(owner.get(f"/v1/turns/{sent['turn']['id']}", params={"wait_s": 60}))
    (now,) = good(owner.get(f"{space}/comments"))["comments"]
    assert now["state"] != "open" and now["turn"] == sent["turn"]["id"]


def test_landed_and_taken_back(owner: httpx.Client, space: str, project: Path) -> None:
    write(owner, space, "new.txt", "new\n")
    asked = {"branch": "topic", "message": "A new file", "author": "Ada <ada@example.org>"}
    landing = good(owner.post(f"{space}/land", json={**asked, "check": "test -e new.txt"}))
    assert (landing["kind"], landing["branch"], landing["files"]) == ("landing", "topic", 1)
    assert git(project, "rev-parse", "topic").strip() == landing["after"]
    assert git(project, "log", "-1", "--format=%an %s", "topic") == "Ada A new file\n"
    listed = good(owner.get("/v1/landings"))["landings"]
    assert landing["id"] in [one["id"] for one in listed]
    undone = good(owner.post("/v1/undo", json={"landing": landing["id"]}))
    assert undone["id"] == landing["id"] and undone["undone_at"]
    assert "topic" not in git(project, "branch", "--list", "topic")


def test_work_for_other_places(owner: httpx.Client, space: str, project: Path) -> None:
    write(owner, space, "new.txt", "new\n")
    told = owner.post(f"{space}/export", json={"format": "patch", "message": "why"})
    assert told.is_success and b"+new" in told.content
    # It counts as taken out when its client says that it has it.
    assert good(owner.get(f"{space}/changes"))["left_files"] == 1
    good(owner.post(f"{space}/copied", json={"copy": told.headers["carrel-copy"]}))
    assert good(owner.get(f"{space}/changes"))["left_files"] == 0
    other = make(owner, project)
    taken = good(owner.post(f"{space}/take", json={"paths": ["new.txt"], "into": other[11:]}))
    assert taken["files"] == 1 and read(owner, other, "new.txt") == "new\n"
    back = good(owner.post("/v1/undo", json={"landing": taken["id"]}))
    assert back["kind"] == "take"
    assert owner.get(f"{other}/files", params={"path": "new.txt"}).status_code == 404
    good(owner.delete(other, params={"force": "true"}))


def settled(client: httpx.Client, entries: list[str]) -> dict[str, dict[str, Any]]:
    """When none of them waits or works any more."""
    end = time.monotonic() + ANSWER_S
    while True:
        found = {one["id"]: one for one in good(client.get("/v1/queue"))["entries"]}
        if all(found[one]["ended_at"] for one in entries):
            return found
        assert time.monotonic() < end, found
        time.sleep(LOOK_S)


def test_a_queue_lands_one_after_the_other(owner: httpx.Client, space: str, project: Path) -> None:
    other = make(owner, project)
    write(owner, space, "one.txt", "1\n")
    write(owner, other, "two.txt", "2\n")
    names = [one.rpartition("/")[2] for one in (space, other)]
    asked = {"spaces": names, "branch": "queued", "check": "true"}
    entries = [one["id"] for one in good(owner.post("/v1/queue", json=asked))["entries"]][-2:]
    found = settled(owner, entries)
    assert [found[one]["state"] for one in entries] == ["landed", "landed"], found
    assert all(found[one]["landing"] for one in entries)
    assert git(project, "ls-tree", "--name-only", "queued").split() == [
        *("greet.py", "one.txt", "two.txt")
    ]
    write(owner, space, "one.txt", "later\n")
    slow = {"spaces": names[:1], "branch": "slow", "check": "sleep 600"}
    entry = good(owner.post("/v1/queue", json=slow))["entries"][-1]["id"]
    good(owner.post(f"/v1/queue/{entry}/cancel"))
    assert settled(owner, [entry])[entry]["state"] == "cancelled"
    good(owner.delete(other, params={"force": "true"}))


def test_a_race_of_two(owner: httpx.Client, project: Path) -> None:
    where = {"kind": "folder", "location": str(project)}
    asked = {
        **{"agents": ["scripted"], "count": 2, "check": "test -e a.txt"},
        **{"space": {"project": where}, "turn": {"prompt": "write a.txt 1"}},
    }
    race = good(owner.post("/v1/races", json=asked))
    assert race["id"].startswith("rc_") and len(race["racers"]) == 2
    path = f"/v1/races/{race['id']}"
    end = time.monotonic() + ANSWER_S
    while not good(owner.post(f"/v1/races/{race['id']}/check", params={"wait_s": 10}))["ended"]:
        assert time.monotonic() < end
    shown = good(owner.get(f"/v1/races/{race['id']}"))
    for one in shown["racers"]:
        assert (one["agent"], one["outcome"], one["check"]) == ("scripted", "complete", "passed")
        assert (one["check_code"], one["files"], one["added"]) == (0, 1, 1), one
        assert "seconds" in one and {*one["usage"]}
        good(owner.delete(f"/v1/spaces/{one['space']}", params={"force": "true"}))
    both = {**asked, "agents": ["scripted", "nobody"]}
    before = good(owner.get("/v1/spaces"))["total"]
    assert owner.post("/v1/races", json=both).status_code == 422
    assert good(owner.get("/v1/spaces"))["total"] == before, json.dumps(path)
