"""docs/mcp.md: several agents on one task, as an agent in a space has it from its tools."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import carrel
from carrel.client.spaces import Space
from tests.daemon.rig import ANSWER_S

Answers = list[dict[str, Any]]


@pytest.fixture
def maker(client: carrel.Client, tmp_path: Path) -> Iterator[Space]:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    for name in ("old.txt", "mine.txt", "src/both.txt"):
        (project / name).write_text("as it was\n")
    with client.space(project, agent="scripted") as found:
        yield found


def tool(name: str, /, **arguments: Any) -> str:
    return f"tool {name} {json.dumps(arguments)}"


def does(client: carrel.Client, space: Space, *steps: str) -> Answers:
    """What the space's agent is answered by each tool that it calls."""
    turn = space.send("\n".join(steps), timeout_s=ANSWER_S)
    assert turn.state == "complete", turn
    found: Answers = []
    types = ["agent.tool_result", "agent.complete"]
    heard = client.events(after=0, spaces=[space.id], types=types)
    with contextlib.closing(heard):
        for event in heard:
            if event.type == "gap":
                # What the log does not have any more is of other spaces.
                continue
            own, payload = event.data["run_id"] == turn.id, event.data["payload"]
            if own and event.type == "agent.complete":
                break
            if own and payload["output"].startswith("{"):
                found.append(json.loads(payload["output"]))
    return found


SPAWN = tool(
    "spawn_space",
    name="helper",
    frontend="scripted",
    wake=True,
    initial_prompt="write new/a.txt from the helper\nwrite src/both.txt theirs\nrun rm old.txt\n"
    "run ln -s /etc/passwd link; chmod 755 new/a.txt\nsay all done",
)
WAIT = tool("wait_for_space", space="helper", timeout_s=50)


def test_a_maker_waits_for_its_helper_sees_and_takes_what_it_did(
    client: carrel.Client, maker: Space
) -> None:
    spawned, waited, changed, read, taken = does(
        *(client, maker, "write src/both.txt mine", SPAWN, WAIT),
        tool("list_changes", space="helper"),
        tool("read_file", space="helper", path="new/a.txt", start=5),
        tool("take_changes", space="helper"),
    )
    assert waited["reached"] and waited["space"]["state"] == "ready"
    assert waited["turn"]["state"] == "complete" and waited["turn"]["result"] == "all done"
    kinds = {one["path"]: one["kind"] for one in changed["changes"]}
    assert kinds == {
        "link": "added",
        "new/a.txt": "added",
        "old.txt": "deleted",
        "src/both.txt": "modified",
    }
    assert read == {"text": "the helper\n", "base64": None, "next": None}
    assert taken["written"] == ["new/a.txt"] and taken["deleted"] == ["old.txt"]
    assert {one["path"] for one in taken["left"]} == {"link", "src/both.txt"}
    assert maker.files.read("new/a.txt") == b"from the helper\n"
    assert maker.files.stat("new/a.txt").mode == "755"
    assert maker.files.read("src/both.txt") == b"mine\n"
    # The helper's own, where the maker says so; and what was taken is not lost with the helper.
    again, outside = does(
        *(client, maker),
        tool("take_changes", space="helper", paths=["src"], replace=True),
        tool("read_file", space="helper", path="../../carrel.db"),
    )
    assert again["written"] == ["src/both.txt"]
    assert maker.files.read("src/both.txt") == b"theirs\n"
    assert outside["code"] == "path_escapes"
    client.get(spawned["id"]).remove(force=True)


def test_a_message_wakes_an_idle_helper_whose_maker_said_so(
    client: carrel.Client, maker: Space
) -> None:
    woken = tool("message_space", space="helper", text="write b.txt later\nsay once more")
    spawned, first, sent, second = does(client, maker, SPAWN, WAIT, woken, WAIT)
    assert first["turn"]["result"] == "all done" and sent["turn"]
    assert second["turn"]["id"] == sent["turn"] and second["turn"]["result"] == "once more"
    helper = client.get(spawned["id"])
    assert helper.files.read("b.txt") == b"later\n"
    assert helper.info.wake
    # It has no more than its maker: nor does it see into it, or wake it.
    up = tool("message_space", space=maker.id, text="say woken")
    look = tool("list_changes", space=maker.id)
    wait = tool("wait_for_space", space=maker.id, timeout_s=0)
    told, refused, state = does(client, helper, up, look, wait)
    assert told["seq"] and told["turn"] == "" and refused["code"] == "forbidden"
    assert state["turn"] is None and not state["reached"]
    helper.remove(force=True)


def test_a_message_wakes_nobody_whose_maker_did_not_say_so(
    client: carrel.Client, maker: Space
) -> None:
    quiet = tool("spawn_space", name="quiet", frontend="scripted")
    spawned, sent, waited = does(
        *(client, maker, quiet),
        tool("message_space", space="quiet", text="say hello"),
        tool("wait_for_space", space="quiet", timeout_s=0),
    )
    assert sent["turn"] == "" and not waited["reached"] and waited["turn"] is None
    helper = client.get(spawned["id"])
    assert helper.turns() == []
    helper.remove(force=True)
