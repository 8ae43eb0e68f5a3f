"""A desk as its user has it: a space of a real daemon, its agent, a stand-in for the model."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.agents.installed import require_programs
from tests.agents.standins import Standin
from tests.busybox import busybox_image
from tests.conformance.frontends import CASES, PROGRAMS, Case
from tests.daemon.rig import Daemon, good

TURN_S = 60.0
"""For one turn of a real agent on two busy cores."""
LOOK_S = 0.1
"""Agents start for seconds: who asks more often takes their time from them."""
Turn = dict[str, Any]
Event = dict[str, Any]
UNKNOWN_KEY = "0b5bd2f4-31ac-4c57-9f2b-1f0a4c1d9e77"


@contextlib.contextmanager
def equipped(folder: Path) -> Iterator[Daemon]:
    """A daemon with the pinned programs, as if it had installed them."""
    folder.chmod(0o711)
    daemon = Daemon(folder / "data")
    own = daemon.data / "agents"
    own.mkdir(parents=True)
    for case in CASES:
        (own / case.name).symlink_to(PROGRAMS, target_is_directory=True)
    try:
        client = daemon.start().local()
        for name in ("anthropic", "openai"):
            good(client.put(f"/v1/credentials/{name}", json={"value": f"sk-{name}-planted"}))
        yield daemon
    finally:
        daemon.close()


def name_endpoint(client: httpx.Client, key: str, url: str) -> None:
    """Beside those of the stand-ins that others have now."""
    before = good(client.get("/v1/credentials"))["endpoints"][key]
    named = {"endpoints": [*before, url][-20:]}
    good(client.put(f"/v1/credentials/{key}", json=named))


class Desk:
    """A space, its agent, and a stand-in for the model."""

    def __init__(self, daemon: Daemon, case: Case, standin: Standin, **more: Any) -> None:
        """`more` is said of the space."""
        if case.by_npm:
            require_programs()
        self.daemon = daemon
        self.case = case
        self.standin = standin
        self.client = daemon.local()
        if case.key:
            name_endpoint(self.client, case.key, standin.url)
        wanted = {"agent": case.name, **more}
        if case.image:
            wanted["image"] = str(busybox_image(daemon.data))
        self.space = good(self.client.post("/v1/spaces", json=wanted))["id"]

    def begin(self, prompt: str, **options: Any) -> httpx.Response:
        own = {"env": self.case.env(self.standin.url), "model": self.case.model}
        body = {"prompt": prompt, **own, **options}
        return self.client.post(f"/v1/spaces/{self.space}/turns", json=body)

    def turn(self, prompt: str, **options: Any) -> Turn:
        return self.end(good(self.begin(prompt, **options))["id"])

    def end(self, turn: str) -> Turn:
        until = time.monotonic() + TURN_S
        while True:
            found = good(self.client.get(f"/v1/turns/{turn}", params={"wait_s": 20}))
            if found["state"] != "running":
                return dict(found)
            assert time.monotonic() < until, self.events(turn)

    def events(self, turn: str) -> list[Event]:
        """All that is kept of it, as the log has them."""
        with self.daemon.websocket("/v1/hub") as hub:
            register = {"kind": "app", "subscriptions": {"types": ["*"], "spaces": [self.space]}}
            hub.send(json.dumps({"type": "client_register", "id": "r", "payload": register}))
            replay = {"space": self.space, "seq": 0}
            hub.send(json.dumps({"type": "buffer_replay", "id": "p", "payload": replay}))
            found, last = [], None
            while last is None or (last > 0 and (not found or found[-1]["seq"] < last)):
                envelope = json.loads(hub.recv(timeout=TURN_S))
                if envelope.get("reply_to") == "p":
                    last = envelope["payload"]["data"]["replay_to"][self.space]
                elif "seq" in envelope and last is not None:
                    found.append(envelope)
        ours = [one for one in found if one["type"].startswith("agent.")]
        return [one for one in ours if one["payload"]["run_id"] == turn]

    def read(self, path: str) -> str:
        answer = self.client.get(f"/v1/spaces/{self.space}/files", params={"path": path})
        return answer.text if answer.status_code == 200 else f"{answer.status_code}"

    def spent(self) -> dict[str, Any]:
        return dict(good(self.client.get(f"/v1/spaces/{self.space}"))["spent"])

    def works(self, turn: str, text: str) -> None:
        """Returns when the agent has begun with what it was told."""
        if self.case.scripted:
            self.until(lambda: len(self.events(turn)) > 1)
        else:
            self.until(lambda: any(text in one for one in self.standin.texts()))

    def until(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + TURN_S
        while not holds():
            assert time.monotonic() < until
            time.sleep(LOOK_S)

    @contextlib.contextmanager
    def daemon_killed(self) -> Iterator[None]:
        """What is done meanwhile is done without a daemon."""
        self.daemon.kill()
        try:
            yield
        finally:
            self.daemon.start()
            self.client = self.daemon.local()


def written(data: Path) -> Iterator[Path]:
    """Every file of the data folder; what agents are given to read is not followed."""
    for above, _folders, files in os.walk(data):
        for name in files:
            path = Path(above, name)
            if path.is_file() and not path.is_symlink():
                yield path


def headers_of(standin: Standin) -> str:
    return " ".join(str(dict(one.headers)) for one in standin.requests)
