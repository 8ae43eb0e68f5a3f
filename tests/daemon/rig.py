"""A real daemon in a folder of its own, and ways to talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect, unix_connect

from carrel.daemon import control, places
from tests.agents.installed import MODULES, require_programs
from tests.daemon.forking import forking
from tests.etc import share_etc
from tests.folders import remove_folder
from tests.load.clearing import end_everything

ANSWER_S = 60.0
"""For one answer, on a busy machine."""
LOOK_S = 0.05
"""Between two looks: who looks all the time takes the processor from what is looked for."""
ANY_PORT = "127.0.0.1:0"
NO_TLS = False
"""For clients that speak plainly: to read the authorities of the world takes one 30 ms."""


class Daemon:
    """Started by the first who needs it. `forked` is for tests of what it does, not of how it
    is started: such a one is deaf to what an interpreter reads from its environment."""

    def __init__(self, data: Path, listen: str | None = ANY_PORT, *, forked: bool = True) -> None:
        self.data = data
        self.listen = listen
        self.forked = forked
        self.pid = 0
        self._clients: list[httpx.Client] = []

    def start(self) -> Daemon:
        if self.forked:
            share_etc(self.data)
        with forking() if self.forked else contextlib.nullcontext(), self._settings():
            self.pid = control.start(self.data, self.listen)
        return self

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Tests that name no agent mean the scripted one."""
        with pytest.MonkeyPatch.context() as patch:
            if "CARREL_CONFIG" not in os.environ:
                own = self.data.parent / "config.toml"
                own.write_text('request_agent = "scripted"\n')
                patch.setenv("CARREL_CONFIG", str(own))
            yield

    @property
    def address(self) -> str:
        return control.status(self.data).address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def socket(self) -> str:
        return places.socket(self.data)

    def log(self) -> str:
        return Path(places.log(self.data)).read_text()

    # Talking

    def local(self) -> httpx.Client:
        """On the Unix socket: an administrator."""
        transport = httpx.HTTPTransport(uds=self.socket, verify=NO_TLS)
        return self._kept(httpx.Client(transport=transport, base_url="http://carrel"))

    def tcp(self, secret: str = "", headers: Mapping[str, str] | None = None) -> httpx.Client:
        own = dict(headers or {})
        if secret:
            own["Authorization"] = f"Bearer {secret}"
        return self._kept(
            httpx.Client(base_url=f"http://{self.address}", headers=own, verify=NO_TLS)
        )

    def _kept(self, client: httpx.Client) -> httpx.Client:
        client.timeout = httpx.Timeout(ANSWER_S)
        self._clients.append(client)
        return client

    def token(self, scope: str) -> str:
        with self.local() as client:
            return str(good(client.post("/v1/tokens", json={"scope": scope}))["secret"])

    def websocket(self, path: str) -> ClientConnection:
        return unix_connect(self.socket, f"ws://carrel{path}", open_timeout=ANSWER_S, max_size=None)

    def tcp_websocket(self, path: str, secret: str) -> ClientConnection:
        return connect(
            f"ws://{self.address}{path}",
            additional_headers={"Authorization": f"Bearer {secret}"},
            open_timeout=ANSWER_S,
            proxy=None,
        )

    @contextlib.contextmanager
    def equipped(self, *frontends: str) -> Iterator[None]:
        """With the programs of real agents, as if it had installed them. Spaces can be made for
        them; what is begun in one afterwards starts no program."""
        require_programs()
        own = self.data / "agents"
        own.mkdir(parents=True, exist_ok=True)
        links = [own / name for name in frontends]
        for link in links:
            link.symlink_to(MODULES.parent, target_is_directory=True)
        try:
            yield
        finally:
            for link in links:
                link.unlink()

    # Ending

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        control.stop(self.data)

    def kill(self) -> None:
        """As a loss of power would; returns when it is gone."""
        descriptor = os.pidfd_open(control.status(self.data).pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            assert select.select([descriptor], [], [], ANSWER_S)[0]
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Nothing of it is left, whatever the test left."""
        with contextlib.suppress(OSError, httpx.HTTPError):
            # Asked first, because httpx leaves a socket open that nobody answers.
            control.connect(self.data).close()
            with self.local() as client:
                self._remove_spaces(client)
        self.stop()
        end_everything(self.data)

    @staticmethod
    def _remove_spaces(client: httpx.Client) -> None:
        found = client.get("/v1/spaces", params={"limit": 1000}).json()["spaces"]
        for space in found:
            client.delete(f"/v1/spaces/{space['id']}", params={"force": "true"})


@contextlib.contextmanager
def daemon_in(folder: Path, listen: str | None = ANY_PORT) -> Iterator[Daemon]:
    """`folder` is removed afterwards."""
    daemon = Daemon(folder / "data", listen)
    try:
        yield daemon.start()
    finally:
        daemon.close()
        remove_folder(folder)


@contextlib.contextmanager
def fresh_daemon(listen: str | None = ANY_PORT) -> Iterator[Daemon]:
    """In a folder that the users of sandboxes may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    folder.chmod(0o711)
    with daemon_in(folder, listen) as found:
        yield found


def post(client: httpx.Client, path: str, body: object) -> httpx.Response:
    """With lone surrogates as JSON's escapes, which the client itself does not send."""
    headers = {"Content-Type": "application/json"}
    return client.post(path, content=json.dumps(body), headers=headers)


def good(response: httpx.Response) -> Any:
    assert response.is_success, f"{response.status_code}: {response.text}"
    return response.json()


def bad(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem, after a look that it is one."""
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = json.loads(response.text)
    assert problem["code"] == code, problem
    assert problem["status"] == status and problem["type"] == "about:blank"
    assert problem["title"] and problem["detail"]
    assert "Traceback" not in response.text
    return problem
