"""A conversation in which everything is said that can be said on the hub."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from carrel.app.hub import FAILED, notifying
from carrel.config import Settings
from carrel.daemon import places
from carrel.domain.events import EventType
from carrel.domain.hub import ANSWER, HUB_SOCKET, MESSAGE, QUESTION, SEEN, SIGNAL, Keep
from carrel.hub import hub as hub_room
from carrel.hub.log import DROPPED, compact
from tests.busybox import busybox_image
from tests.daemon.hub_examples import HEARD, Speaker, Tape, section_of
from tests.daemon.rig import Daemon, good
from tests.hub.rig import NOTE, SPACE, Envelope, HubRig, LineWire, open_rig, options
from tests.instances.small import put_small, small

PROGRESS = "buffer_taskspace_progress"
FROM_AGENTS: dict[str, dict[str, Any]] = {
    "buffer_taskspace_spawn": {
        "name": "docs",
        "description": "the chapter on installing",
        "initial_prompt": "Write docs/install.md.",
    },
    "buffer_taskspace_update": {"name": "parser", "description": "the parser, without recursion"},
    PROGRESS: {"message": "half way", "category": "milestone", "percent": 50},
    SIGNAL: {
        "message": "The tests need a database.",
        "priority": "high",
        "suggested_actions": ["start one", "skip them"],
    },
    QUESTION: {"question": "Which one?", "choices": ["left", "right"]},
    MESSAGE: {"text": "The parser is done.", "data": {"branch": "parser"}},
    "buffer_walkthrough": {"content": "1. `parse.py` reads a line at a time."},
    "buffer_custom_build": {"target": "all", "seconds": 12.5},
}
"""What an agent says of its space, and others hear."""


LISTENS = """
import signal, socket
with socket.create_server(("127.0.0.1", 3000)) as listener:
    listener.accept()
signal.pause()
"""


class Told(Protocol):
    """Waits for the next such event, and notes it."""

    async def __call__(self, type: EventType, **wanted: str) -> None: ...


class Talk:
    """Clients of a real daemon's hub, and what its API is asked for meanwhile."""

    def __init__(self, tape: Tape, daemon: Daemon) -> None:
        self.tape = tape
        self.daemon = daemon
        self._stack = AsyncExitStack()
        tape.name(str(daemon.data), "DATA")

    async def __aenter__(self) -> Talk:
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._stack.aclose()

    async def connect(self, who: str, inside: str = "") -> Speaker:
        """On the daemon's own socket, or on that of a space."""
        folder = self.daemon.data / "spaces" / inside / "hub"
        path = folder / HUB_SOCKET if inside else f"{places.folder(self.daemon.data)}/{HUB_SOCKET}"
        wire = LineWire(*await asyncio.open_unix_connection(path))
        self._stack.push_async_callback(wire.close)
        return Speaker(wire, who, self.tape)

    async def outside(self, kind: str, space: str = "*", *types: str, **fields: Any) -> Speaker:
        """Connected to the space, for what it hears of these types."""
        speaker = await self.connect(kind)
        wanted = {"types": types, "spaces": [space]}
        await speaker.register(kind=kind, subscriptions=wanted, **fields)
        return speaker

    async def agent(self, space: str, *types: str, who: str = "agent", **fields: Any) -> Speaker:
        speaker = await self.connect(who, space)
        wanted = {"types": types, "spaces": [space]}
        await speaker.register(kind="agent", subscriptions=wanted, **fields)
        return speaker

    def api(self, method: str, path: str, body: object = None) -> httpx.Response:
        with self.daemon.local() as client:
            return client.request(method, f"/v1/{path}", json=body)

    def make(self, **body: Any) -> str:
        return str(good(self.api("POST", "spaces", body))["id"])


# With a daemon


async def with_a_daemon(tape: Tape, daemon: Daemon) -> None:
    async with Talk(tape, daemon) as talk:
        await of_events(talk)
        space = talk.make(name="parser")
        await of_coming_and_going(talk, space)
        await of_kept(talk, space)
        await of_the_log(talk, space)
        await of_live(talk, space)
        await of_requests(talk, space)
        await of_the_family(talk, space)
        project = daemon.data.parent / "project"
        project.mkdir()
        await of_an_instance(talk, project)


async def of_coming_and_going(talk: Talk, space: str) -> None:
    tape = talk.tape
    app = await talk.connect("app")
    with tape.example("client_register"):
        wanted = {"types": ["buffer_*", "space.state"], "spaces": [space]}
        await app.register(kind="app", name="dashboard", subscriptions=wanted)
    with tape.example("client_update"):
        wanted = {"types": ["client_disconnected"], "spaces": [space]}
        await app.ask("client_update", {"subscriptions": wanted})
    agent = await talk.agent(space, name="coder", capabilities=["agent_command"])
    with tape.example("client_list"):
        await app.ask("client_list", {"space": space})
    with tape.example("heartbeat"):
        await app.ask("heartbeat")
    with tape.example("error"):
        await app.refused(PROGRESS, {"message": "half way"}, space="sp_unknown")
    await agent.close()
    with tape.example("client_disconnected"):
        await app.receive()
    with tape.example("client_disconnect"):
        await app.send("client_disconnect", {"reason": "the window was closed"})
        await app.ended()


async def of_kept(talk: Talk, space: str) -> None:
    tape = talk.tape
    agent = await talk.agent(space, "buffer_user_*")
    app = await talk.outside("app", space, *FROM_AGENTS)
    kept: dict[str, Envelope] = {}
    for type, payload in FROM_AGENTS.items():
        with tape.example(section_of(type)):
            told = await agent.ask(type, payload, space=space)
            kept[type] = await app.receive()
        assert told["seq"] == kept[type]["seq"]
    await agent.hear(QUESTION)
    to_agent: list[tuple[str, dict[str, Any], str]] = [
        (ANSWER, {"answer": "left"}, kept[QUESTION]["id"]),
        (SEEN, {"seq": kept[SIGNAL]["seq"]}, ""),
    ]
    for type, payload, answered in to_agent:
        with tape.example(type):
            await app.ask(type, payload, space=space, reply_to=answered)
            await agent.receive()
    await leave(agent, app)


async def of_the_log(talk: Talk, space: str) -> None:
    tape = talk.tape
    agent = await talk.agent(space)
    app = await talk.outside("app", space, PROGRESS)
    messages = [
        {"type": PROGRESS, "payload": {"message": "parsed"}},
        {"type": PROGRESS, "payload": {"message": "checked"}, "id": "last"},
    ]
    with tape.example("buffer_publish"):
        told = await agent.ask("buffer_publish", {"messages": messages}, space=space)
        for _ in messages:
            await app.receive()
    await agent.leave()
    with tape.example("buffer_replay"):
        await app.ask("buffer_replay", {"space": space, "seq": told["first"]})
        await app.receive()
    await app.leave()
    app = await talk.outside("app", space, PROGRESS, consumer="dashboard")
    await app.hear(PROGRESS, lambda payload: payload == messages[-1]["payload"])
    with tape.example("buffer_acknowledge"):
        await app.ask("buffer_acknowledge", {"space": space, "seq": told["last"]})
    await app.leave()


async def of_live(talk: Talk, space: str) -> None:
    agent = await talk.agent(space)
    app = await talk.outside("app", space, "custom_cursor")
    with talk.tape.example("custom_*"):
        await agent.ask("custom_cursor", {"line": 12, "column": 4}, space=space)
        await app.receive()
    await leave(agent, app)


async def of_requests(talk: Talk, space: str) -> None:
    tape = talk.tape
    agent = await talk.agent(space, capabilities=["agent_command", "agent_interrupt"])
    cli = await talk.outside("cli", space)
    ide = await talk.outside("ide", space)
    asked: list[tuple[Speaker, Speaker, str, Any, Any]] = [
        (cli, agent, "agent_command", {"command": "Run the tests again."}, {"turn": 3}),
        (cli, agent, "agent_interrupt", {"reason": "a better idea"}, None),
        (agent, ide, "ide_get_selection", None, {"path": "parse.py", "text": "def parse"}),
    ]
    for asker, answerer, type, payload, data in asked:
        with tape.example(type):
            number = await asker.send(type, payload, space=space)
            request = await answerer.receive()
            answer = {"status": "success", "data": data}
            await answerer.send("response", answer, id="", reply_to=request["id"])
            await asker.answer(number)
    operation = {"operation": "open", "arguments": {"path": "parse.py", "line": 12}}
    with tape.example("ide_operation"):
        number = await agent.send("ide_operation", operation, space=space, deadline_ms=5000)
        request = await ide.receive()
    with tape.example("response"):
        problem = {"code": "no_file", "message": "There is no parse.py."}
        answer = {"status": "error", "error": problem}
        assert await ide.ask("response", answer, reply_to=request["id"]) == {"dropped": False}
        await agent.answer(number)
    await leave(agent, cli, ide)


async def of_the_family(talk: Talk, space: str) -> None:
    tape = talk.tape
    agent = await talk.agent(space, MESSAGE)
    with tape.example("system_spawn_space"):
        wanted = {"name": "helper", "initial_prompt": "Write the tests."}
        child = (await agent.ask("system_spawn_space", wanted))["space"]["id"]
    tape.name(child, "sp_helper…")
    with tape.example("system_list_spaces"):
        await agent.ask("system_list_spaces")
    with tape.example("system_space_state"):
        await agent.ask("system_space_state", {"space": "helper"})
    with tape.example("system_update_space"):
        await agent.ask("system_update_space", {"description": "the parser"})
    helper = await talk.agent(child, who="helper")
    with tape.example("system_message_space"):
        await helper.ask("system_message_space", {"space": space, "text": "They are written."})
        await agent.receive()
    with tape.example("system_read_messages"):
        await helper.ask("system_read_messages", {"after": 0})
    await helper.leave()
    good(talk.api("PUT", f"spaces/{child}/files?path=tests.txt", "12 tests"))
    with tape.example("system_list_changes"):
        await agent.ask("system_list_changes", {"space": child})
    with tape.example("system_read_file"):
        await agent.ask("system_read_file", {"space": child, "path": "tests.txt"})
    with tape.example("system_take_changes"):
        await agent.ask("system_take_changes", {"space": child, "paths": ["tests.txt"]})
    with tape.example("system_checkpoint"):
        kept = await agent.ask("system_checkpoint", {"message": "with the helper's tests"})
    tape.name(kept["id"], "ck_agent…")
    with tape.example("system_wait_for_space"):
        number = await agent.send("system_wait_for_space", {"space": child, "states": ["stopped"]})
        good(talk.api("POST", f"spaces/{child}/stop"))
        await agent.answer(number)
    with tape.example("system_delete_space"):
        await agent.ask("system_delete_space", {"space": child})
    await agent.leave()


async def of_events(talk: Talk) -> None:
    """What Carrel tells. The daemon has found a folder at its start that it had to remove."""
    app = await talk.outside("app", "*", *map(str, EventType), consumer="all")

    async def told(type: EventType, **wanted: str) -> None:
        # It may take long until there is something to hear.
        await app.send("heartbeat", id="")
        found = await app.hear(type, lambda payload: wanted.items() <= payload.items())
        talk.tape.note(type, HEARD, app.who, found)

    await told(EventType.RECONCILED)
    await of_a_life(talk, told)
    await of_mishaps(talk, told)
    await of_a_landing(talk, told)
    await of_a_checkpoint(talk, told)
    await of_a_race(talk, told)
    await app.leave()


async def of_a_life(talk: Talk, told: Told) -> None:
    space = talk.make(name="notes")
    await told(EventType.STEP_BEGUN)
    await told(EventType.STEP_DONE)
    await told(EventType.SPACE_STATE, to="ready")
    good(talk.api("PATCH", f"spaces/{space}", {"labels": {"team": "blue"}}))
    await told(EventType.SPACE_UPDATED)
    command = {"argv": ["sh", "-c", "echo half > notes"]}
    good(talk.api("POST", f"spaces/{space}/exec", command))
    await told(EventType.RUN_STARTED)
    await told(EventType.RUN_ENDED)
    good(talk.api("DELETE", f"spaces/{space}?force=true"))
    restored = good(talk.api("POST", f"trash/{space}/restore"))
    talk.tape.name(restored["id"], "sp_restored…")
    await told(EventType.SPACE_RESTORED)


async def of_mishaps(talk: Talk, told: Told) -> None:
    space = talk.make(limits={"wall_seconds": 0.2})
    good(talk.api("POST", f"spaces/{space}/exec", {"argv": ["sleep", "60"]}))
    await told(EventType.LIMIT_HIT)
    nowhere = {"kind": "folder", "location": "/nonexistent"}
    assert talk.api("POST", "spaces", {"project": nowhere}).is_client_error
    await told(EventType.STEP_FAILED)
    broken = {"command": ["/bin/sh", "-c", "exit 3"]}
    good(talk.api("PUT", "servers/broken", broken))
    talk.make(mcp=["broken"])
    await told(EventType.INSTANCE_STATE, to="failed")
    await told(EventType.SERVER_FAILED)
    asked = good(talk.api("POST", "requests", {"instructions": "write a.txt made"}))
    talk.tape.name(asked["key"], "rq_…")
    await told(EventType.REQUEST_STATE, to="working")


async def of_a_landing(talk: Talk, told: Told) -> None:
    """In a project without git: no commit has a name that changes from run to run."""
    project = talk.daemon.data.parent / "landing"
    project.mkdir()
    space = talk.make(name="desk", project={"kind": "folder", "location": str(project)})
    good(talk.api("POST", f"spaces/{space}/exec", {"argv": ["sh", "-c", "echo idea > idea"]}))
    landing = good(talk.api("POST", f"spaces/{space}/land"))
    talk.tape.name(landing["id"], "ld_…")
    await told(EventType.LANDED)
    good(talk.api("POST", "undo"))
    await told(EventType.UNDONE)
    for words in (("init", "-q"), ("-c", "user.name=n", "-c", "user.email=m", "commit", "-q")):
        rest = ("--allow-empty", "-m", "first") if "commit" in words else ()
        subprocess.run(["git", *words, *rest], cwd=project, check=True)
    kind = {"kind": "folder", "location": str(project)}
    queued = talk.make(name="queued", project=kind)
    good(talk.api("POST", f"spaces/{queued}/exec", {"argv": ["sh", "-c", "echo idea > idea"]}))
    [entry] = good(talk.api("POST", "queue", {"spaces": [queued], "check": "exit 1"}))["entries"]
    talk.tape.name(entry["id"], "qe_…")
    await told(EventType.LANDING_QUEUED)
    await told(EventType.LANDING_CHECKED)
    await told(EventType.LANDING_RETURNED)
    await of_comments(talk, told, space)
    await of_ports(talk, told)
    await of_ssh(talk, told)
    await of_a_take(talk, told, space)
    await of_a_service(talk, told)


async def of_a_service(talk: Talk, told: Told) -> None:
    """At once it has said that it starts; after a moment, that it runs."""
    with tempfile.TemporaryDirectory() as folder:
        box, project = busybox_image(Path(folder)), Path(folder) / "shop"
        good(talk.api("POST", "images", {"name": "box:1", "path": str(box)}))
        project.mkdir()
        db = {"image": "box:1", "command": ["sleep", "1000"]}
        (project / "compose.yaml").write_text(json.dumps({"services": {"db": db}}))
        kind = {"kind": "folder", "location": str(project)}
        shop = talk.make(name="shop", project=kind, services="auto")
        [one] = good(talk.api("GET", f"spaces/{shop}/services"))["services"]
        talk.tape.name(one["run"], "ru_…")
        await told(EventType.SERVICE_STATE, to="running")


async def of_a_take(talk: Talk, told: Told, space: str) -> None:
    other = talk.make(name="other")
    taken = good(talk.api("POST", f"spaces/{space}/take", {"paths": ["idea"], "into": other}))
    talk.tape.name(taken["id"], "tk_…")
    await told(EventType.TAKEN)
    good(talk.api("POST", "undo"))
    await told(EventType.TAKE_UNDONE)


async def of_ports(talk: Talk, told: Told) -> None:
    space = talk.make(name="served")
    made = good(talk.api("POST", f"spaces/{space}/ports", {"port": 3000}))
    await told(EventType.FORWARD_BEGUN)
    argv = ["python3", "-c", LISTENS]
    run = good(talk.api("POST", f"spaces/{space}/runs", {"argv": argv}))
    await told(EventType.PORT_LISTENS)
    with socket.create_connection(("127.0.0.1", made["local"])):
        await told(EventType.PORT_CLOSED)
        good(talk.api("DELETE", f"spaces/{space}/ports/3000"))
        await told(EventType.FORWARD_ENDED)
    good(talk.api("POST", f"runs/{run['id']}/signal", {"signal": "KILL"}))
    good(talk.api("GET", f"runs/{run['id']}/wait?timeout_s=60"))


async def of_ssh(talk: Talk, told: Told) -> None:
    config = good(talk.api("GET", "ssh"))["config"]
    words = ["ssh", "-F", config, "served.carrel", "true"]
    process = await asyncio.create_subprocess_exec(*words)
    await told(EventType.SSH_BEGUN)
    await told(EventType.SSH_DID)
    await told(EventType.SSH_ENDED)
    assert await process.wait() == 0


async def of_comments(talk: Talk, told: Told, space: str) -> None:
    about = {"path": "idea", "line": 1, "text": "Which one?"}
    for name in ("co_…", "co_other…"):
        made = good(talk.api("POST", f"spaces/{space}/comments", about))
        talk.tape.name(made["id"], name)
    await told(EventType.COMMENT_ADDED)
    good(talk.api("DELETE", f"spaces/{space}/comments/{made['id']}"))
    await told(EventType.COMMENT_REMOVED)
    sent = good(talk.api("POST", f"spaces/{space}/comments/send", {"frontend": "scripted"}))
    talk.tape.name(sent["turn"]["id"], "ru_…")
    await told(EventType.COMMENTS_SENT)
    good(talk.api("GET", f"turns/{sent['turn']['id']}?wait_s=60"))


async def of_a_checkpoint(talk: Talk, told: Told) -> None:
    space = talk.make(name="tries")
    kept = good(talk.api("POST", f"spaces/{space}/checkpoints"))
    talk.tape.name(kept["id"], "ck_…")
    await told(EventType.CHECKPOINT)
    before = good(talk.api("POST", f"spaces/{space}/rewind"))
    talk.tape.name(before["id"], "ck_before…")
    await told(EventType.REWOUND)
    forks = good(talk.api("POST", f"spaces/{space}/fork", {"checkpoint": kept["id"]}))
    talk.tape.name(forks["spaces"][0]["id"], "sp_fork…")
    await told(EventType.FORKED)


async def of_a_race(talk: Talk, told: Told) -> None:
    body = {"agents": ["scripted"], "turn": {"prompt": "write idea first"}}
    made = good(talk.api("POST", "races", body))
    talk.tape.name(made["id"], "rc_…")
    [racer] = made["racers"]
    talk.tape.name(racer["space"], "sp_racer…")
    await told(EventType.RACE_BEGUN)
    good(talk.api("GET", f"turns/{racer['turn']}?wait_s=60"))
    space = talk.make(name="exported")
    good(talk.api("POST", f"spaces/{space}/exec", {"argv": ["sh", "-c", "echo idea > idea"]}))
    assert talk.api("POST", f"spaces/{space}/export", {"format": "tar"}).is_success
    await told(EventType.EXPORTED)


async def of_an_instance(talk: Talk, project: Path) -> None:
    """Its owner at the hub is told what becomes of it."""
    editor = await talk.connect("editor")
    about = await editor.ask("client_register", {"kind": "ide", "subscriptions": {}})
    talk.tape.name(about["client_id"], "cl_editor…")
    body = {"server": {"name": "small", **small()}, "hub_client": about["client_id"]}
    body |= {"project_path": str(put_small(project)), "restart": "on-failure"}
    instance = good(await asyncio.to_thread(talk.api, "POST", "instances", body))
    talk.tape.name(instance["url"], "http://127.0.0.1:PORT/mcp")
    os.kill(instance["pid"], signal.SIGKILL)
    for state in ("restarting", "ready"):
        await editor.send("heartbeat", id="")
        found = await editor.hear("instance_state")
        assert found["payload"]["to"] == state
        talk.tape.note("instance_state", HEARD, editor.who, found)
    await editor.leave()


async def leave(*speakers: Speaker) -> None:
    for one in speakers:
        await one.leave()


# With a hub in this process: what a daemon does seldom


async def with_a_hub(tape: Tape, data: Path) -> None:
    async with open_rig(data, "unix") as rig:
        await of_status(tape, rig)
        await of_what_was_dropped(tape, rig)
        await of_what_nobody_was_told(tape, rig, data)
    with pytest.MonkeyPatch.context() as patch:
        # However slow this machine is, nobody is cut off.
        patch.setattr(hub_room, "MISSED", 100_000)
        async with open_rig(data, "unix", options(heartbeat_s=0.01)) as rig:
            await of_the_hubs_heartbeat(tape, rig)


async def speaker(tape: Tape, rig: HubRig, who: str, *types: str, **fields: Any) -> Speaker:
    inside = "inside" if who == "agent" else "local"
    found = Speaker((await rig.connect(inside)).wire, who, tape)
    wanted = {"types": types, "spaces": [SPACE]}
    await found.register(kind=who, subscriptions=wanted, **fields)
    return found


async def of_status(tape: Tape, rig: HubRig) -> None:
    app, agent = await speaker(tape, rig, "app"), await speaker(tape, rig, "agent")
    await agent.ask(NOTE, {}, space=SPACE)
    await agent.ask("custom_note", {}, space=SPACE)
    await agent.leave()
    with tape.example("system_status"):
        await app.ask("system_status")
    await app.leave()


async def of_what_was_dropped(tape: Tape, rig: HubRig) -> None:
    app = await speaker(tape, rig, "app", DROPPED, consumer="dashboard")
    await app.ask("buffer_acknowledge", {"space": SPACE, "seq": 1})
    for _ in range(9):
        await app.ask(NOTE, {}, space=SPACE)
    hub = rig.hub
    with tape.example(DROPPED):
        await compact(hub.log, hub.keeper, rig.spaces, Keep(4, 0, 0), time.time())
        await app.receive()
    await app.leave()


async def of_what_nobody_was_told(tape: Tape, rig: HubRig, data: Path) -> None:
    # It tells of all that is in the log, not only of what comes.
    (data / "notified").write_text("0")
    app = await speaker(tape, rig, "app", FAILED)
    agent = await speaker(tape, rig, "agent")
    async with refusing() as address:
        settings = Settings(data=data, webhook=address, desktop=False)
        async with notifying(settings, rig.hub):
            question = {"question": "Which one?"}
            await agent.ask(QUESTION, question, space=SPACE, id="q1")
            with tape.example(FAILED):
                await app.receive()
    await leave(agent, app)


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """The address of a web server that wants to hear of nothing."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/"


async def of_the_hubs_heartbeat(tape: Tape, rig: HubRig) -> None:
    app = await speaker(tape, rig, "app")
    found = await app.beat()
    tape.note("heartbeat", HEARD, app.who, found)
    await app.leave()
