"""Every frontend has the MCP servers of its space, and calls them with what they ask for.

A real agent needs the machine's network, so one of the two servers checks a token there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.standins import Standin, serving
from tests.conformance.desks import Desk, Event, equipped, written
from tests.conformance.frontends import (
    CLAUDE,
    CLAUDE_ACP,
    CODEX,
    CODEX_ACP,
    PI,
    SDK,
    Case,
)
from tests.daemon.rig import Daemon, good
from tests.instances.installed import require, search_path
from tests.instances.small import put_small, small

pytestmark = pytest.mark.xdist_group("space servers")

READ = 'mcp__filesystem__read_text_file {"path": "/workspace/who.txt"}'
ECHO = 'mcp__small__echo {"text": "aloud"}'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    require("filesystem")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", search_path())
        with equipped(tmp_path_factory.mktemp("servers")) as daemon:
            good(daemon.local().put("/v1/servers/small", json=small()))
            yield daemon


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


class Served(Desk):
    """A desk with two servers."""

    def __init__(self, daemon: Daemon, case: Case, standin: Standin, project: Path) -> None:
        super().__init__(daemon, case, standin)
        put_small(project)
        (project / "who.txt").write_text(f"I am {case.name}'s.\n")
        project.chmod(0o755)
        origin = {"kind": "folder", "location": str(project)}
        wanted = {"agent": case.name, "mcp": ["filesystem", "small"], "project": origin}
        self.space = good(self.client.post("/v1/spaces", json=wanted))["id"]

    def use(self, *calls: str) -> list[Event]:
        """The events of a turn with these calls of tools."""
        turn = self.turn("\n".join(f"USE {call}" for call in calls))
        assert turn["result"]["success"], turn
        return self.events(turn["id"])


def of(events: list[Event], kind: str) -> list[dict[str, Any]]:
    return [one["payload"]["payload"] for one in events if one["type"] == f"agent.{kind}"]


@pytest.mark.parametrize("case", [CLAUDE, CODEX, SDK, CLAUDE_ACP, CODEX_ACP], ids=str)
def test_tools_of_its_servers(daemon: Daemon, standin: Standin, case: Case, tmp_path: Path) -> None:
    desk = Served(daemon, case, standin, tmp_path)
    events = desk.use(READ, ECHO)
    results = json.dumps([one["output"] for one in of(events, "tool_result")])
    assert f"I am {case.name}'s." in results and "aloud" in results, events
    shown = good(desk.client.get(f"/v1/spaces/{desk.space}"))["mcp"]
    assert [(one["name"], one["state"]) for one in shown] == [
        ("filesystem", "ready"),
        ("small", "ready"),
    ]
    if case is not CODEX_ACP:  # It tells its model of tools when that searches for them.
        assert "list_directory" in json.dumps([seen.body for seen in standin.requests])
    token = good(desk.client.get(f"/v1/instances/{shown[0]['instance']}"))["token"]
    kept = [path for path in written(daemon.data) if token.encode() in path.read_bytes()]
    assert token and [path.name for path in kept] == ["token"]


def test_an_agent_without_a_client(daemon: Daemon, standin: Standin, tmp_path: Path) -> None:
    """It is told what it goes without."""
    desk = Served(daemon, PI, standin, tmp_path)
    told = [one.get("text", "") for one in of(desk.use("nothing"), "log")]
    assert [one for one in told if "filesystem is left out" in one]
