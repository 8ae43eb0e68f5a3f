"""An ACP agent of one's own, named by the settings, from a folder that no sandbox shows."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel.agents.trials import Trials
from carrel.app.agents import open_agents
from carrel.config import SettingsInvalid, parse_settings
from tests.agents.test_faults import Space as ShellSpace
from tests.cli.program import Program
from tests.daemon.requesting import talking
from tests.daemon.rig import Daemon, good

# They share a daemon.
pytestmark = pytest.mark.xdist_group("own acp agents")

AGENT = Path(__file__).with_name("acp_agent.py")
SETTINGS = """
[agents.mine]
command = ["{python}", "{folder}/acp_agent.py", "tells"]
provider = "openai"
credentials = {{ mine = "MY_API_KEY" }}
binds = ["{folder}"]
network = false
env = {{ MOOD = "calm" }}

[agents.gone]
command = ["{folder}/nothing"]

[agents.half]
command = ["/bin/sh"]
binds = ["{folder}/nothing"]
"""


class Space(ShellSpace):
    def __init__(self, client: httpx.Client, agent: str) -> None:
        self.client = client
        self.id = good(client.post("/v1/spaces", json={"agent": agent}))["id"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("own-acp")
    folder.chmod(0o711)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(AGENT, elsewhere)
    (elsewhere / "beside.txt").write_text("found what is beside me")
    settings = folder / "config.toml"
    settings.write_text(SETTINGS.format(python=sys.executable, folder=elsewhere))
    daemon = Daemon(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARREL_CONFIG", str(settings))
        daemon.start()
    try:
        yield daemon
    finally:
        daemon.close()


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> httpx.Client:
    return daemon.local()


def listed(client: httpx.Client) -> dict[str, Any]:
    return {one["name"]: one for one in good(client.get("/v1/agents"))["frontends"]}


def test_it_is_an_agent_as_any_other(client: httpx.Client) -> None:
    about = listed(client)["mine"]
    assert about["installed"] and about["kind"] == "acp" and about["provider"] == "openai"
    assert about["logged_in"] is False and about["credentials"] == ["mine"]
    good(client.put("/v1/credentials/mine", json={"value": "sk-planted"}))
    assert listed(client)["mine"]["logged_in"] is True
    space = Space(client, "mine")
    assert good(client.get(f"/v1/spaces/{space.id}"))["network"] == "none"
    turn = space.turn("hello")
    assert turn["result"]["final_output"] == "found what is beside me 10 calm", turn
    assert turn["continuation"] == {"provider": "openai", "key": "odd"}


def test_one_that_is_not_there(client: httpx.Client) -> None:
    found = listed(client)
    assert not found["gone"]["installed"] and "nothing" in found["gone"]["problem"]
    assert not found["half"]["installed"] and "not there" in found["half"]["problem"]
    plain = good(client.post("/v1/spaces", json={}))["id"]
    for name in ("gone", "half"):
        body = {"prompt": "hello", "frontend": name}
        answer = client.post(f"/v1/spaces/{plain}/turns", json=body)
        assert answer.json()["code"] == "frontend_not_installed"


@pytest.mark.parametrize("name", ["gone", "half", "unheard-of"])
def test_nothing_is_made_for_one_that_is_not_there(
    daemon: Daemon, client: httpx.Client, tmp_path: Path, name: str
) -> None:
    code = "unsupported_frontend" if name == "unheard-of" else "frontend_not_installed"

    def spaces() -> list[str]:
        return [one["id"] for one in good(client.get("/v1/spaces"))["spaces"]]

    before, folders = spaces(), set(daemon.data.joinpath("spaces").iterdir())
    assert client.post("/v1/spaces", json={"agent": name}).json()["code"] == code
    with talking(daemon) as talk:
        assert talk.made("x", frontend=name)["code"] == code
    carrel = Program(daemon.data, tmp_path)
    assert name in carrel.bad(None, "new", "--empty", "--agent", name, "-m", "hello")
    assert spaces() == before and set(daemon.data.joinpath("spaces").iterdir()) == folders


def test_built_in_ones_stay(tmp_path: Path) -> None:
    said = {"data": str(tmp_path), "agents": {"gemini": {"command": ["mine"]}}}
    with pytest.raises(SettingsInvalid, match="already"):
        open_agents(parse_settings(said), lambda: None)


def test_who_asks_while_it_is_tried_waits_for_that(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_text(f"#!/bin/sh\necho x >> {tmp_path}/starts\necho Error: broken >&2\nexit 1\n")
    program.chmod(0o755)
    trials, told = Trials(), list[str]()

    def ask() -> None:
        told.append(trials.problem([str(program)], {}, {}, [str(program)]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4 and set(told) == {"It cannot start: Error: broken"}
    assert (tmp_path / "starts").read_text() == "x\n"
