"""Every frontend has the MCP servers of its space, and calls them with what they ask for.

A real agent needs the machine's network, so one of the two servers checks a token there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.service.instances import book
from tests.agents.standins import Standin, serving
from tests.conformance.desks import Desk, Event, equipped, written
from tests.conformance.frontends import (
    CLAUDE,
    CLAUDE_ACP,
    CODEX,
    PI,
    SCRIPTED,
    SDK,
    Case,
)
from tests.daemon.rig import Daemon, good
from tests.instances.installed import require, search_path
from tests.instances.small import LAST_WORDS, put_small, small
from tests.sampling import beyond

pytestmark = pytest.mark.xdist_group("space servers")

READ = 'mcp__filesystem__read_text_file {"path": "/workspace/who.txt"}'
ECHO = 'mcp__small__echo {"text": "aloud"}'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    require("filesystem")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", search_path())
        with equipped(tmp_path_factory.mktemp("servers")) as daemon:
            for name, mode in (("small", "http"), ("broken", "fails")):
                good(daemon.local().put(f"/v1/servers/{name}", json=small(mode)))
            yield daemon


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


class Served(Desk):
    """A desk with servers."""

    def __init__(
        self, daemon: Daemon, case: Case, standin: Standin, project: Path, *servers: str
    ) -> None:
        put_small(project)
        (project / "who.txt").write_text(f"I am {case.name}'s.\n")
        origin = {"kind": "folder", "location": str(project)}
        super().__init__(daemon, case, standin, project=origin, mcp=servers)

    def servers(self) -> list[dict[str, Any]]:
        return list(good(self.client.get(f"/v1/spaces/{self.space}"))["mcp"])

    def use(self, *calls: str) -> list[Event]:
        """The events of a turn with these calls of tools."""
        turn = self.turn("\n".join(f"USE {call}" for call in calls))
        assert turn["result"]["success"], turn
        return self.events(turn["id"])


def of(events: list[Event], kind: str) -> list[dict[str, Any]]:
    return [one["payload"]["payload"] for one in events if one["type"] == f"agent.{kind}"]


@pytest.mark.parametrize("case", [CLAUDE, CODEX, CLAUDE_ACP, *beyond(SDK)], ids=str)
def test_tools_of_its_servers(daemon: Daemon, standin: Standin, case: Case, tmp_path: Path) -> None:
    desk = Served(daemon, case, standin, tmp_path, "filesystem", "small")
    events = desk.use(READ, ECHO)
    results = json.dumps([one["output"] for one in of(events, "tool_result")])
    assert f"I am {case.name}'s." in results and "aloud" in results, events
    shown = desk.servers()
    assert {one["name"]: one["state"] for one in shown} == {"filesystem": "ready", "small": "ready"}
    # Some only name their tools, until a model asks for more.
    assert "list_directory" in json.dumps([seen.body for seen in standin.requests])
    own = daemon.data / "instances" / shown[0]["instance"] / book.FILE
    token = json.loads(own.read_bytes())["token"].encode()
    assert [path for path in written(daemon.data) if token in path.read_bytes()] == [own]


def test_an_agent_without_a_client(daemon: Daemon, standin: Standin, tmp_path: Path) -> None:
    """It is told what it goes without."""
    desk = Served(daemon, PI, standin, tmp_path, "small")
    turn = desk.turn("hello")
    assert "The MCP server small is left out: Pi takes none." in notes(desk, turn["id"])


def notes(desk: Desk, turn: str) -> list[str]:
    return [one.get("text", "") for one in of(desk.events(turn), "log")]


def test_a_killed_daemon(daemon: Daemon, standin: Standin, tmp_path: Path) -> None:
    """The servers go on, and what was told is not told again."""
    desk = Served(daemon, SCRIPTED, standin, tmp_path, "small", "broken")
    turn = good(desk.begin(desk.case.wait(300)))["id"]
    desk.works(turn, "")
    before = desk.servers()
    with desk.daemon_killed():
        pass
    good(desk.client.post(f"/v1/turns/{turn}/interrupt"))
    assert desk.end(turn)["result"]["error"]["code"] == "interrupted"
    (note,) = (one for one in notes(desk, turn) if "broken" in one)
    assert LAST_WORDS in note
    assert desk.servers()[0] == before[0] and before[0]["state"] == "ready"
    after = desk.turn(f"tool {READ.replace('filesystem__read_text_file', 'small__read')}")
    results = of(desk.events(after["id"]), "tool_result")
    assert results[0]["output"] == "I am scripted's.\n"
    good(desk.client.delete(f"/v1/spaces/{desk.space}", params={"force": True}))
    gone = good(desk.client.get(f"/v1/instances/{before[0]['instance']}"))
    assert gone["state"] == "ended" and gone["pid"] == 0
