"""A real daemon, and callers who are not the owner: what they get of the machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.daemon.requesting import daemon_with
from tests.daemon.rig import Daemon, bad, good
from tests.trees.git.repositories import git, make_repository

SECRET = b"what nobody may read"


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


@pytest.fixture(scope="module")
def daemon(roots: Path) -> Iterator[Daemon]:
    with daemon_with({"project_roots": [str(roots)]}) as found:
        yield found


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[httpx.Client]:
    with daemon.local() as client:
        yield client


@pytest.fixture(scope="module")
def secret(daemon: Daemon) -> str:
    return daemon.token("label:team=blue")


@pytest.fixture
def blue(daemon: Daemon, secret: str) -> Iterator[httpx.Client]:
    with daemon.tcp(secret) as client:
        yield client


def make(client: httpx.Client, place: Path | str, kind: str = "folder", **more: Any) -> Any:
    return client.post("/v1/spaces", json={"project": _project(place, kind), **more})


def _project(place: Path | str, kind: str = "folder") -> dict[str, str]:
    return {"kind": kind, "location": str(place)}


def read(client: httpx.Client, space: dict[str, Any], path: str) -> httpx.Response:
    return client.get(f"/v1/spaces/{space['id']}/files", params={"path": path})


@pytest.fixture
def project(roots: Path, tmp_path: Path) -> Path:
    """As the one that was found: `git init p/lib; ln -s /etc/shadow p/lib/.git/s`."""
    (tmp_path / "secret").write_bytes(SECRET)
    project = roots / uuid4().hex
    make_repository(project / "lib")
    (project / "lib/.git/s").symlink_to(tmp_path / "secret")
    (project / "lib/.git/hooks").rename(project / "lib/hooks")
    (project / "lib/.git/hooks").symlink_to(tmp_path)
    return project


def test_a_link_in_a_git_folder_shows_nothing(
    owner: httpx.Client, blue: httpx.Client, project: Path
) -> None:
    for client in (blue, owner):
        space = good(make(client, project))
        assert read(client, space, "lib/a.txt").content == b"two\n"
        for path in ("lib/.git/s", "lib/.git/hooks/secret"):
            assert not read(client, space, path).is_success
        shown = good(client.get(f"/v1/spaces/{space['id']}"))["left_out"]
        assert {one["path"] for one in shown} == {"lib/.git/s", "lib/.git/hooks"}


def test_a_repository_elsewhere_is_the_owners_alone(
    owner: httpx.Client, blue: httpx.Client, roots: Path, tmp_path: Path
) -> None:
    main = make_repository(tmp_path / "main")
    linked = roots / uuid4().hex
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked))
    space = good(make(owner, linked))
    assert read(owner, space, ".git/HEAD").content == b"ref: refs/heads/feature\n"
    space = good(make(blue, linked))
    assert not read(blue, space, ".git/HEAD").is_success
    assert "--follow-git" in space["left_out"][0]["why"]
    bad(make(blue, linked, follow_git=True), 403, "forbidden")
    # Nor by a request, which the daemon works on later, in its own name.
    asked = {"instructions": "say hello", "project": _project(linked), "retention": "retain"}
    made = good(blue.post("/v1/requests", json={**asked, "request_id": uuid4().hex}))
    done = good(blue.get(f"/v1/requests/{made['request_id']}", params={"wait": 60}))
    work = good(owner.get(f"/v1/spaces/{done['space_id']}"))
    assert "--follow-git" in work["left_out"][0]["why"]


def test_following_is_asked_for_once(owner: httpx.Client, roots: Path, tmp_path: Path) -> None:
    lender = make_repository(tmp_path / "lender")
    project = roots / uuid4().hex
    git(roots, "clone", "-q", "--shared", str(lender), str(project))
    oid = git(lender, "rev-parse", "HEAD").strip()
    path = f".git/objects/{oid[:2]}/{oid[2:]}"
    assert not read(owner, good(make(owner, project)), path).is_success
    assert read(owner, good(make(owner, project, follow_git=True)), path).is_success
    assert read(owner, good(make(owner, project)), path).is_success


def test_a_token_clones_nothing_of_this_machine(
    daemon: Daemon, owner: httpx.Client, blue: httpx.Client, roots: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            bad(make(blue, f"http://{host}:{port}/x", "git"), 422, "project_invalid")
        with pytest.raises(BlockingIOError):
            server.accept()
    for url in ("ssh://127.0.0.1/x", "git://127.0.0.1/x", f"file://{tmp_path}", "ext::sh -c id"):
        bad(make(blue, url, "git"), 403, "forbidden")
    private = make_repository(tmp_path / "private")
    hostile = make_repository(roots / uuid4().hex)
    (hostile / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    (hostile / ".git/refs/heads/main").write_text(git(private, "rev-parse", "HEAD"))
    for client in (blue, owner):
        bad(make(client, hostile, "git"), 422, "project_invalid")
    os.unlink(hostile / ".git/objects/info/alternates")


def test_the_data_folder_is_no_project(daemon: Daemon, owner: httpx.Client) -> None:
    for kind in ("folder", "git"):
        for place in (daemon.data, daemon.data / "bases"):
            bad(make(owner, place, kind), 422, "project_invalid")
