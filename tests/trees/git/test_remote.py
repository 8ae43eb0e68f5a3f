"""A clone for who is not the owner: from public hosts, and with nothing of the owner's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError, GitFailed, ProjectInvalid, ProjectNotFound
from carrel.domain.projects import ClonePolicy, GitReach
from carrel.trees.git import remote
from carrel.trees.git.mirror import Mirror
from carrel.trees.git.remote import route_to
from tests.trees.git.repositories import found_at, make_repository

NOBODY = ClonePolicy()
TIMEOUT_S = 60.0
NO_NAME = "Basic Og=="


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0",
        "0.0.0.0",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "[fe80::1]",
        "[fd00::1]",
        "[fec0::1]",
        "224.0.0.1",
        "255.255.255.255",
    ],
)
@pytest.mark.parametrize("form", ["http://{}/x", "https://{}:8443/x", "http://user:pw@{}/x"])
def test_no_address_of_this_machine_or_a_private_network(host: str, form: str) -> None:
    with pytest.raises(ProjectInvalid, match="this machine or a private network"):
        route_to(form.format(host), NOBODY)


@pytest.mark.parametrize(
    "url",
    [
        "ssh://example.org/x",
        "git://example.org/x",
        "git@example.org:x",
        "file:///etc",
        "ftp://example.org/x",
        "http://example.org\\@127.0.0.1/",
        "http://example.org@a@127.0.0.1/",
        "http://127.0.0.1%2f@example.org:1@/x",
        "http://127%2e0%2e0%2e1/x",
        "http://exa mple.org/x",
        "http://example.org#@127.0.0.1/",
        "http:///x",
        "http://[::1%25lo]/x",
        "http://\uff11\uff12\uff17.0.0.1/x",
    ],
)
def test_no_url_that_could_be_read_in_two_ways(url: str) -> None:
    with pytest.raises(CarrelError):
        route_to(url, NOBODY)


def test_one_private_address_of_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def several(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, port)) for address in ("93.184.216.34", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", several)
    with pytest.raises(ProjectInvalid):
        route_to("https://example.org/x", NOBODY)
    monkeypatch.setattr(remote, "_is_own", lambda address: str(address) == "93.184.216.34")
    with pytest.raises(ProjectInvalid):
        route_to("https://93.184.216.34/x", NOBODY)


def test_a_public_host_is_held_to_the_address_that_was_looked_at() -> None:
    assert "http.curloptResolve=93.184.216.34:443:93.184.216.34" in route_to(
        "https://93.184.216.34/x", NOBODY
    )


class Handler(BaseHTTPRequestHandler):
    """Notes who asks for what, and sends everybody on when there is somewhere to go."""

    seen: list[tuple[str, dict[str, str]]]
    onwards = ""

    def do_GET(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        if self.onwards:
            self.send_response(302)
            self.send_header("Location", self.onwards + self.path)
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=x, Negotiate")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(onwards: str = "") -> Iterator[tuple[int, list[tuple[str, dict[str, str]]]]]:
    seen: list[tuple[str, dict[str, str]]] = []
    handler = type("Own", (Handler,), {"seen": seen, "onwards": onwards})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(url: str, tmp_path: Path, policy: ClonePolicy | None) -> None:
    remote = found_at(url, GitReach.NONE, own=policy is None)
    mirror = Mirror(tmp_path / "mirrors", remote, timeout_s=TIMEOUT_S, policy=policy)
    with pytest.raises(GitFailed):
        mirror.resolve("main")


def test_nothing_of_the_daemons_user_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with serving() as (port, seen), serving() as (other, elsewhere):
        (home / ".netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
        (home / ".gitconfig").write_text(
            "[http]\n\textraHeader = X-Key: hunter2\n"
            f'[url "http://127.0.0.1:{other}/"]\n\tinsteadOf = http://127.0.0.1:{port}/swap/\n'
            "[credential]\n\thelper = !echo username=me; echo password=hunter2; :\n"
        )
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{other}")
        policy = ClonePolicy(("127.0.0.1",))
        ask(f"http://127.0.0.1:{port}/x", tmp_path, policy)
        ask(f"http://127.0.0.1:{port}/swap/x", tmp_path, policy)
        assert {path.partition("?")[0] for path, _ in seen} == {
            "/x/info/refs",
            "/swap/x/info/refs",
        }
        assert not elsewhere
        for _, headers in seen:
            # Git asks once more, with an empty name and password.
            assert headers.get("Authorization", NO_NAME) == NO_NAME and "X-Key" not in headers
        # The owner has all of it.
        monkeypatch.delenv("http_proxy")
        ask(f"http://127.0.0.1:{port}/x", tmp_path, None)
        assert seen[-1][1]["X-Key"] and seen[-1][1]["Authorization"] != NO_NAME


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with serving() as (there, elsewhere), serving(f"http://127.0.0.1:{there}") as (port, seen):
        ask(f"http://127.0.0.1:{port}/x", tmp_path, ClonePolicy(("127.0.0.1",)))
        assert seen and not elsewhere


def test_git_does_not_look_the_name_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name has no address but the one that was found at first."""
    with serving() as (port, seen):
        found = [(0, 0, 0, "", ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(remote, "_is_public", lambda _address: True)
        ask(f"http://Pinned.invalid:{port}/x", tmp_path, NOBODY)
        assert {headers["Host"].lower() for _, headers in seen} == {f"pinned.invalid:{port}"}


def test_others_reach_no_repository_by_a_link(tmp_path: Path) -> None:
    """Where they may read is looked at before: a link is what came later."""
    made = make_repository(tmp_path / "secret/repository")
    (tmp_path / "up").symlink_to(tmp_path / "secret")
    place = f"{tmp_path}/up/repository"
    with pytest.raises(ProjectNotFound):
        found_at(place, GitReach.NONE, own=False)
    assert found_at(place).key
    assert found_at(str(made), GitReach.NONE, own=False).key
