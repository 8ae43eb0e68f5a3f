"""Who may call: tokens, names, origins, users."""

from __future__ import annotations

import json
import os
import socket
from typing import Any
from uuid import uuid4

import httpx
import pytest

from carrel.domain.errors import RateLimited
from carrel.interfaces.http import access
from carrel.interfaces.http.access import Tries
from tests.accounts import PYTHON, Account, run_as
from tests.daemon.rig import ANSWER_S, Daemon, bad, good


@pytest.fixture
def admin(daemon: Daemon) -> str:
    return daemon.token("admin")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer crl_wrong", "Basic YTpi", "crl_x", "Bearer \xff"],
)
def test_without_the_right_token_there_is_nothing(daemon: Daemon, header: str | None) -> None:
    with daemon.tcp() as client:
        headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
        for path in ("/v1/spaces", "/v1/nowhere", "/metrics", "/v1/openapi.json"):
            response = client.get(path, headers=headers)
            bad(response, 401, "authentication_failed")
            assert response.headers["WWW-Authenticate"] == "Bearer"


def test_health_needs_none(daemon: Daemon) -> None:
    with daemon.tcp() as client:
        assert good(client.get("/v1/health")) == {"status": "ok"}


def test_a_token_is_made_shown_once_and_revoked(client: httpx.Client, daemon: Daemon) -> None:
    name = uuid4().hex
    made = client.post("/v1/tokens", json={"name": name, "scope": "admin", "ttl_s": 3600})
    assert made.status_code == 201
    token = made.json()
    assert token["secret"].startswith("crl_") and token["expires_at"] > token["created_at"]
    with daemon.tcp(token["secret"]) as tcp:
        assert good(tcp.get("/v1/info"))["scope"] == "admin"
        listed = good(client.get("/v1/tokens"))["tokens"]
        (found,) = [one for one in listed if one["id"] == token["id"]]
        assert found["name"] == name and "secret" not in found and found["used_at"]
        revoked = good(client.delete(f"/v1/tokens/{name}"))
        assert revoked["revoked_at"]
        bad(tcp.get("/v1/info"), 401, "authentication_failed")
    bad(client.delete(f"/v1/tokens/{token['id']}"), 404, "token_not_found")
    assert token["id"] not in {one["id"] for one in good(client.get("/v1/tokens"))["tokens"]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"scope": "root"},
        {"scope": "label:x"},
        {"scope": "space:"},
        {"scope": "admin", "ttl_s": 0},
        {"scope": "admin", "name": "x" * 101},
        {"scope": "admin", "secret": "mine"},
    ],
)
def test_tokens_that_cannot_be(client: httpx.Client, body: dict[str, Any]) -> None:
    bad(client.post("/v1/tokens", json=body), 422, "message_invalid")


def test_a_token_of_a_space_that_is_not_there(client: httpx.Client) -> None:
    bad(client.post("/v1/tokens", json={"scope": "space:none"}), 422, "space_invalid")


HOSTS = [
    ("127.0.0.1", True),
    ("localhost:80", True),
    ("LOCALHOST", True),
    ("desk.localhost", True),
    ("[::1]:99", True),
    ("127.8.8.8", True),
    ("evil.example", False),
    ("127.0.0.1.evil.example", False),
    ("localhost.evil.example:80", False),
    ("192.168.7.7", False),
    ("[::2]", False),
    ("", False),
    ("evil.example#127.0.0.1", False),
    ("localhost.", True),
    ("localhost.:80", True),
    ("localhost..", False),
    ("[::1]", True),
    ("[::1]evil.example", False),
    ("[::1]evil.example:80", False),
    ("[::1]:80evil.example", False),
    ("[::1].evil.example", False),
    ("[127.0.0.1]", False),
    ("[::1", False),
    ("::1", False),
    ("127.0.0.1:", False),
    ("127.0.0.1:http", False),
    ("127.0.0.1:99999", False),
    ("127.0.0.1:80:80", False),
    ("user@localhost", False),
    ("localhost@evil.example", False),
    ("localhost/evil.example", False),
    ("localhost, evil.example", False),
    ("127.1", False),
    ("2130706433", False),
    ("0x7f.0.0.1", False),
    ("0.0.0.0", False),
]


@pytest.mark.parametrize(("host", "allowed"), HOSTS)
def test_names_that_the_daemon_goes_by(
    daemon: Daemon, admin: str, host: str, allowed: bool
) -> None:
    """A page whose name was made to point here still sends its own name."""
    with daemon.tcp(admin) as client:
        response = client.get("/v1/info", headers={"Host": host})
        if allowed:
            good(response)
        else:
            bad(response, 403, "forbidden")
            bad(client.get("/v1/health", headers={"Host": host}), 403, "forbidden")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", ""])
def test_web_pages_are_refused(
    daemon: Daemon, admin: str, client: httpx.Client, origin: str
) -> None:
    with daemon.tcp(admin) as tcp:
        for one in (tcp, client):
            bad(one.get("/v1/spaces", headers={"Origin": origin}), 403, "forbidden")
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        response = tcp.options("/v1/spaces", headers=preflight)
        bad(response, 403, "forbidden")
        assert "access-control-allow-origin" not in response.headers


HEADS = [
    b"GET /v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n",
    b"GET /v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\n evil.example\r\n",
    b"GET /v1/info HTTP/1.1\r\nHost : 127.0.0.1\r\n",
    b"GET /v1/info HTTP/1.1\r\n",
    b"GET /v1/info HTTP/1.0\r\n",
    b"GET http://evil.example/v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    b"GET http://127.0.0.1/v1/info HTTP/1.1\r\nHost: evil.example\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n",
]


@pytest.mark.parametrize("head", HEADS)
def test_heads_that_name_no_host_or_two(daemon: Daemon, admin: str, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", daemon.port)) as connection:
        connection.settimeout(60)
        bearer = b"Authorization: Bearer " + admin.encode() + b"\r\n"
        connection.sendall(head + bearer + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))


_CONNECT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(20)
connection.connect(sys.argv[1])
try:
    connection.sendall(b"GET /v1/health HTTP/1.1\\r\\nHost: carrel\\r\\n\\r\\n")
    print(repr(connection.recv(100)))
except (BrokenPipeError, ConnectionResetError):
    print("b''")
"""


def test_other_users_are_refused_by_the_kernels_word(
    daemon: Daemon, ordinary_user: Account, client: httpx.Client
) -> None:
    """Even when the file's mode lets them in."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    folder = os.path.dirname(daemon.socket)
    os.chmod(folder, 0o711)
    os.chmod(daemon.socket, 0o666)
    try:
        ran = run_as(ordinary_user, [PYTHON, "-c", _CONNECT, daemon.socket])
    finally:
        os.chmod(folder, 0o700)
        os.chmod(daemon.socket, 0o600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "b''"
    good(client.get("/v1/health"))


def test_the_socket_is_for_its_user_alone(daemon: Daemon) -> None:
    assert os.stat(daemon.socket).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(daemon.socket)).st_mode & 0o777 == 0o700


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_guessing_is_slowed_down() -> None:
    clock = Clock()
    tries = Tries(clock)
    for _ in range(access.TRIES):
        tries.failed("1.2.3.4")
    with pytest.raises(RateLimited) as caught:
        tries.failed("1.2.3.4")
    assert 0 < int(str(caught.value.details["retry_after_s"])) <= access.WINDOW_S + 1
    tries.failed("5.6.7.8")
    clock.now += access.WINDOW_S
    tries.failed("1.2.3.4")


def test_who_guesses_keeps_nobody_behind_the_same_address_out(daemon: Daemon) -> None:
    """Nor one whose token was never used, which is all of them when the daemon has just begun."""
    # Not from the address from which others of these tests come.
    there = httpx.HTTPTransport(local_address="127.0.0.77")
    url = f"http://{daemon.address}/v1/info"
    with httpx.Client(transport=there, timeout=ANSWER_S) as client:

        def ask(secret: str) -> httpx.Response:
            return client.get(url, headers={"Authorization": f"Bearer {secret}"})

        codes = [ask("crl_guess").status_code for _ in range(access.TRIES + 5)]
        assert codes[0] == 401 and codes[-1] == 429
        good(ask(daemon.token("label:a=b")))


def test_what_is_remembered_of_guesses_is_bounded() -> None:
    tries = Tries(Clock())
    for number in range(access.ADDRESSES + 10):
        tries.failed(str(number))
    assert len(tries._failed) == access.ADDRESSES


def test_info_is_short_for_others(client: httpx.Client, daemon: Daemon) -> None:
    whole = good(client.get("/v1/info"))
    assert whole["pid"] == daemon.pid and whole["data"] == str(daemon.data)
    assert whole["uid"] == os.geteuid() and set(whole["tiers"]) == {"minimal", "default", "large"}
    with daemon.tcp(daemon.token("label:a=b")) as scoped:
        short = good(scoped.get("/v1/info"))
    assert short["scope"] == "label:a=b" and short["version"] == whole["version"]
    assert short["pid"] is None and str(daemon.data) not in json.dumps(short)
