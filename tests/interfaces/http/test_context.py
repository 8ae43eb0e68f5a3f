"""What agents are given to read, and files that go with a prompt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.daemon.rig import Daemon, bad, good

LARGEST = 16 << 20


@pytest.fixture
def space(client: httpx.Client) -> Iterator[str]:
    """Without an agent yet."""
    made = good(client.post("/v1/spaces", json={}))["id"]
    yield made
    client.delete(f"/v1/spaces/{made}", params={"force": "true"})


def names(client: httpx.Client, space: str) -> list[str]:
    return [one["name"] for one in good(client.get(f"/v1/spaces/{space}/context"))["files"]]


def test_put_read_and_remove(client: httpx.Client, space: str, daemon: Daemon) -> None:
    where = f"/v1/spaces/{space}/context"
    assert names(client, space) == []
    good(client.put(f"{where}/b.md", content=b"one"))
    good(client.put(f"{where}/a%20\u00e9.md", content=b""))
    found = good(client.put(f"{where}/b.md", content=b"other"))
    assert found["files"] == [{"name": "a \u00e9.md", "size": 0}, {"name": "b.md", "size": 5}]
    assert client.get(f"{where}/b.md").content == b"other"
    file = daemon.data / "spaces" / space / "agent" / "context" / "b.md"
    assert file.stat().st_mode & 0o777 == 0o644 and file.stat().st_uid == os.geteuid()
    good(client.delete(f"{where}/b.md"))
    assert names(client, space) == ["a \u00e9.md"]
    bad(client.delete(f"{where}/b.md"), 404, "path_not_found")
    bad(client.get(f"{where}/b.md"), 404, "path_not_found")


@pytest.mark.parametrize("name", [".hidden", "%0Aline", "x" * 256, "%2e%2e"])
def test_names_that_cannot_be(client: httpx.Client, space: str, name: str) -> None:
    answer = client.put(f"/v1/spaces/{space}/context/{name}", content=b"x")
    assert answer.status_code in (404, 422)
    assert names(client, space) == []


def test_one_that_is_too_large(client: httpx.Client, space: str) -> None:
    where = f"/v1/spaces/{space}/context/large"
    bad(client.put(where, content=b"x" * (LARGEST + 1)), 413, "too_large")
    assert names(client, space) == []
    good(client.put(where, content=b"x" * LARGEST))


def test_what_somebody_put_there_is_not_followed(
    client: httpx.Client, space: str, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("dear")
    good(client.put(f"/v1/spaces/{space}/context/real", content=b"x"))
    folder = daemon.data / "spaces" / space / "agent" / "context"
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "below").mkdir()
    assert names(client, space) == ["real"]
    for name in ("link", "below"):
        bad(client.get(f"/v1/spaces/{space}/context/{name}"), 404, "path_not_found")
    good(client.put(f"/v1/spaces/{space}/context/link", content=b"over it"))
    bad(client.put(f"/v1/spaces/{space}/context/below", content=b"x"), 404, "path_not_found")
    assert sorted(os.listdir(folder)) == ["below", "link", "real"]
    assert (tmp_path / "secret").read_text() == "dear"


NOT_ATTACHED: list[tuple[dict[str, str], int, str]] = [
    ({"path": "missing"}, 404, "path_not_found"),
    ({"path": "../../boot"}, 403, "path_escapes"),
    ({"path": "/etc/passwd"}, 403, "path_escapes"),
    ({"path": "out"}, 403, "path_escapes"),
    ({"path": "."}, 409, "path_wrong_kind"),
    ({"path": "missing", "folder": "context"}, 404, "path_not_found"),
    ({"path": "../state", "folder": "context"}, 404, "path_not_found"),
    ({"path": "", "folder": "tree"}, 422, "message_invalid"),
]


def test_what_cannot_go_with_a_prompt(client: httpx.Client, space: str) -> None:
    """None of it begins a turn: the space is free for one."""
    link = {"argv": ["ln", "-s", "/etc/passwd", "out"]}
    good(client.post(f"/v1/spaces/{space}/exec", json=link))
    body = {"frontend": "scripted", "prompt": "say hello"}
    for attached, status, code in NOT_ATTACHED:
        refused = client.post(f"/v1/spaces/{space}/turns", json={**body, "attachments": [attached]})
        bad(refused, status, code)
    good(client.post(f"/v1/spaces/{space}/turns", json={**body, "attachments": []}))
