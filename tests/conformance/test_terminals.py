"""Agents in terminals, as people sit in front of them: the real program, the real tmux, the real
agents, in the sandbox of a real daemon."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psutil import Process, process_iter

from tests.agents.standins import Standin, serving
from tests.cli.program import Program, Terminal, in_terminal
from tests.conformance.desks import UNKNOWN_KEY, Desk, equipped, headers_of, written
from tests.conformance.frontends import CLAUDE, CODEX, SCRIPTED, Case
from tests.daemon.rig import Daemon, good
from tests.sampling import beyond

WAIT_S = 90.0
"""For a real agent's terminal, on two busy cores."""
LOOK_S = 0.3
"""To look at a terminal is a command in its sandbox."""
_SPACES = re.compile(r"\x1b\[[0-9;?>]*[A-Za-z]|\x1b[()][A-Z0-9]|\s")
DETACH = b"\x02d"
CASES = (SCRIPTED, CLAUDE, CODEX)


class Room(Desk):
    """A desk whose agent is in a terminal."""

    def start(self, prompt: str = "", **options: Any) -> str:
        return str(good(self.begin(prompt, terminal=True, **options))["id"])

    @property
    def activity(self) -> str:
        return str(good(self.client.get(f"/v1/spaces/{self.space}"))["activity"])

    def until(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < until, (self.activity, self.screen())
            time.sleep(LOOK_S)

    def waits(self) -> None:
        self.until(lambda: self.activity == "waiting for input")

    def kept(self) -> None:
        """Claude Code writes down what was said a little after it has answered."""
        folder = self.daemon.data / "spaces" / self.space / "agent" / "state" / "claude"
        if self.case is CLAUDE:
            self.until(
                lambda: any(
                    b"reply 1" in file.read_bytes() for file in folder.glob("projects/*/*.jsonl")
                )
            )

    def tmux(self, *words: str) -> str:
        body = {
            "argv": ["tmux", "-N", "-S", "tmux.sock", *words],
            "cwd": "/agent/state/terminal",
        }
        done = good(self.client.post(f"/v1/spaces/{self.space}/exec", json=body))
        return str(done["stdout"]).strip()

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-S", "-100", "-t", "agent")

    def pane(self) -> str:
        """The agent's own process, which is the only child of what is in the pane."""
        until = time.monotonic() + WAIT_S
        while True:
            found = self.tmux("display-message", "-p", "-t", "agent", "#{pane_pid}")
            argv = ["cat", f"/proc/{found}/task/{found}/children"]
            done = good(self.client.post(f"/v1/spaces/{self.space}/exec", json={"argv": argv}))
            if children := str(done["stdout"]).split():
                return children[0]
            assert time.monotonic() < until

    def kill_agent(self) -> None:
        argv = ["kill", "-9", self.pane()]
        good(self.client.post(f"/v1/spaces/{self.space}/exec", json={"argv": argv}))

    def say(self, turn: str, text: str) -> None:
        good(self.client.post(f"/v1/turns/{turn}/input", json={"text": text}))

    def supervised(self, turn: str, what: str) -> list[dict[str, Any]]:
        found = [one["payload"]["payload"] for one in self.events(turn)]
        return [one for one in found if one.get("supervision") == what]

    def alerts(self) -> list[str]:
        found = good(self.client.get("/v1/inbox"))["items"]
        return [one["text"] for one in found if one["space"] == self.space]

    def program(self) -> Program:
        return Program(self.daemon.data, self.daemon.data)

    def attach(self, *words: str) -> Any:
        return in_terminal(self.program(), "attach", self.space, *words, rows=40, cols=120)


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("terminals")
    folder.chmod(0o711)
    config = folder / "config.toml"
    config.write_text("restart_s = 0.1\ndesktop = false\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARREL_CONFIG", str(config))
        with equipped(folder) as found:
            yield found


IMPATIENT = """
import sys
if "carrel.daemon" in sys.orig_argv:
    from carrel.service import runs
    runs.WAIT_S = 1.0
"""
"""A daemon reads it first; by itself it waits ten seconds for a client that was lost."""


@pytest.fixture
def impatient(data: Path, standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    (data / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", str(data))
    daemon = Daemon(data / "data", forked=False)
    try:
        yield Room(daemon.start(), SCRIPTED, standin)
    finally:
        daemon.close()


@pytest.fixture(params=CASES, ids=str)
def room(request: pytest.FixtureRequest, daemon: Daemon, standin: Standin) -> Room:
    case: Case = request.param
    return Room(daemon, case, standin)


@pytest.fixture
def scripted(daemon: Daemon, standin: Standin) -> Room:
    return Room(daemon, SCRIPTED, standin)


def until_started(room: Room, turn: str, times: int) -> None:
    room.until(lambda: len(room.supervised(turn, "started")) == times)


def until(terminal: Terminal, text: str) -> None:
    """Programs paint words one by one, and say where: spaces do not count."""
    wanted, deadline = text.replace(" ", ""), time.monotonic() + WAIT_S
    while wanted not in _SPACES.sub("", terminal.text.decode(errors="replace")):
        assert time.monotonic() < deadline, f"{text!r} is not on the screen"
        if select.select([terminal.master], [], [], 1)[0]:
            terminal.text += os.read(terminal.master, 65536)
    terminal.text = b""


@pytest.mark.parametrize("room", [SCRIPTED, *beyond(CLAUDE, CODEX)], ids=str, indirect=True)
def test_attach_and_detach(room: Room) -> None:
    """Who is told that it waits attaches, speaks, leaves and comes back: it is all still there."""
    turn = room.start("hello one")
    room.waits()
    # A person is told of it right after it is known.
    room.until(
        lambda: any("waits for your input" in one and "1: hello" in one for one in room.alerts())
    )
    with room.attach() as terminal:
        until(terminal, "hello one")
        terminal.type(DETACH)
        assert terminal.end() == 0
    room.say(turn, "hello two")
    room.until(lambda: "2: hello two" in room.screen())
    room.waits()
    with room.attach() as first, room.attach("--read-only") as second:
        until(first, "2: hello two")
        until(second, "2: hello two")
        first.type(DETACH)
        second.type(DETACH)
        assert first.end() == 0 and second.end() == 0
    texts = [
        (one["payload"]["payload"]["role"], one["payload"]["payload"]["text"])
        for one in room.events(turn)
        if one["type"] == "agent.message"
    ]
    assert [role for role, _ in texts] == ["user", "assistant"] * 2
    assert "hello two" in texts[2][1] and "2: hello two" in texts[3][1]
    good(room.client.post(f"/v1/turns/{turn}/stop"))
    ended = room.end(turn)
    assert ended["result"]["error"]["code"] == "interrupted" and room.activity == "exited"


# Claude's terminal asks below, and goes on in `tests/agents/test_claude_code.py`.
@pytest.mark.parametrize("room", [CODEX, *beyond(CLAUDE, SCRIPTED)], ids=str, indirect=True)
def test_a_crash_and_the_same_conversation(room: Room) -> None:
    """By a key of the turn's own, and then by the one that is stored: both are used, and written
    nowhere."""
    key_name = room.case.key
    own, stored = (f"sk-{key_name}-{which}" for which in ("of-the-terminal", "planted"))
    given = {f"{key_name.upper()}_API_KEY": own} if key_name else {}
    turn = room.start("hello one", env={**room.case.env(room.standin.url), **given})
    room.waits()
    room.kept()
    before = room.pane()
    room.kill_agent()
    room.until(lambda: len(room.supervised(turn, "started")) == 2)
    (crash,) = room.supervised(turn, "crashed")
    assert crash["signal"] == 9 and crash["lines"]
    room.say(turn, "hello two")
    room.until(lambda: "2: hello two" in room.screen())
    assert room.pane() != before
    room.waits()
    keys = {str(one["payload"].get("continuation")) for one in room.events(turn)} - {"None"}
    assert len(keys) == 1
    listed = process_list()
    good(room.client.post(f"/v1/turns/{turn}/stop"))
    key = room.end(turn)["continuation"]
    assert str(key) in keys
    if key_name:
        assert_hidden(room, turn, own, listed)
    # A turn without a terminal goes on with it too, and so does another terminal.
    turn3 = room.turn("hello three", continuation=key)
    assert "3: hello three" in turn3["result"]["final_output"], turn3
    again = room.start("hello four", continuation=turn3["continuation"])
    room.until(lambda: "4: hello four" in room.screen())
    listed = process_list()
    good(room.client.post(f"/v1/turns/{again}/stop"))
    assert room.end(again)["continuation"] == key
    if key_name:
        assert_hidden(room, again, stored, listed)


# It is the supervisor that goes on, whatever is in its terminal.
@pytest.mark.parametrize("room", [SCRIPTED, *beyond(CLAUDE, CODEX)], ids=str, indirect=True)
def test_the_daemon_is_killed(room: Room) -> None:
    """The terminal goes on, and whoever was attached is attached again."""
    turn = room.start("hello one")
    room.waits()
    before = room.pane()
    with room.attach("--no-start") as terminal:
        until(terminal, "hello one")
        room.daemon.kill()
        room.daemon.start()
        room.client = room.daemon.local()
        room.say(turn, "hello two")
        until(terminal, "2: hello two")
        terminal.type(DETACH)
        assert terminal.end() == 0
    room.waits()
    assert room.pane() == before
    seqs = [one["payload"]["seq"] for one in room.events(turn)]
    assert seqs == list(range(1, len(seqs) + 1))
    good(room.client.post(f"/v1/turns/{turn}/stop"))
    assert room.end(turn)["state"] == "error"


@pytest.mark.parametrize("room", [CODEX, *beyond(CLAUDE)], ids=str, indirect=True)
def test_an_unknown_conversation(room: Room) -> None:
    """It begins none of its own."""
    asked = {"provider": str(room.case.provider), "key": UNKNOWN_KEY}
    turn = room.start("hello", continuation=asked)
    ended = room.end(turn)
    assert not ended["result"]["success"]
    assert room.standin.texts() == []


def children(daemon: Daemon) -> list[Process]:
    return Process(daemon.pid).children()


def process_list() -> str:
    return " ".join(" ".join(one.info["cmdline"] or ()) for one in process_iter(["cmdline"]))


def assert_hidden(room: Room, turn: str, planted: str, listed: str) -> None:
    """The key was given, and is written nowhere; nor a part of it that would be enough to know
    it by."""
    assert planted in headers_of(room.standin)
    shown = json.dumps([room.end(turn), room.events(turn)]) + room.daemon.log() + listed
    part = planted[-12:]
    assert part not in shown
    for path in written(room.daemon.data):
        if path.parent.name != "auth":
            assert part.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("room", [SCRIPTED, CLAUDE], ids=str, indirect=True)
def test_a_question_in_the_terminal(room: Room) -> None:
    turn = room.start(room.case.write("made.txt", "allowed"), permission="ask")
    room.until(lambda: room.activity == "waiting for permission")
    room.until(lambda: any("asks for permission" in text for text in room.alerts()))
    assert room.read("made.txt") == "404"
    with room.attach() as terminal:
        until(terminal, "made.txt" if room.case is CLAUDE else "[y/n]")
        terminal.type(b"\r" if room.case is CLAUDE else b"y\r")
        room.until(lambda: room.read("made.txt").strip() == "allowed")
        terminal.type(DETACH)
        assert terminal.end() == 0
    room.waits()
    good(room.client.post(f"/v1/turns/{turn}/stop"))
    room.end(turn)


def test_attaching_starts_it(scripted: Room) -> None:
    with scripted.attach("-m", "hello") as terminal:
        until(terminal, "turn 1: hello")
        terminal.type(b"again\r")
        until(terminal, "turn 2: again")
        terminal.type(b"\x03")
        until(terminal, "^C")
        terminal.type(b"exit\r")
        assert terminal.end() == 0
    scripted.until(lambda: scripted.activity == "exited")
    (turn,) = good(scripted.client.get(f"/v1/spaces/{scripted.space}/turns"))["turns"]
    assert scripted.end(turn["id"])["result"] == {
        "success": True,
        "final_output": "turn 2: again",
        "error": None,
    }
    # Only what is said to be gone on with is gone on with.
    with scripted.attach("--continue", "-m", "three") as terminal:
        until(terminal, "turn 3: three")
        terminal.type(b"\x04")
        assert terminal.end() == 0


def test_one_agent_in_a_space(scripted: Room) -> None:
    turn = scripted.start("hello")
    for options in ({"terminal": True}, {}):
        refused = scripted.begin("more", **options)
        assert refused.status_code == 409 and turn in refused.json()["detail"]
    scripted.waits()
    done = scripted.program()("send", scripted.space, "and this", "--queue")
    assert done.out.strip() == turn
    scripted.until(lambda: "turn 2: and this" in scripted.screen())
    assert scripted.program()("attach", "-d", scripted.space).out.strip() == turn
    assert "waiting for input" in scripted.program().good("ls")
    assert scripted.program()("interrupt", "--stop", scripted.space).code == 0
    assert scripted.end(turn)["state"] == "error"


def test_another_prefix(scripted: Room, tmp_path: Path) -> None:
    """By an option or a setting, beside the usual one; the screen names it."""
    scripted.start("hello")
    scripted.waits()
    for _ in range(2):
        with scripted.attach("--prefix", "C-a") as terminal:
            until(terminal, "Ctrl-a d detaches")
            terminal.type(b"\x01d")
            assert terminal.end() == 0
    with scripted.attach() as terminal:
        until(terminal, "turn 1: hello")
        terminal.type(b"\x02d")
        assert terminal.end() == 0
    program = scripted.program()
    (tmp_path / "config.toml").write_text('attach_prefix = "M-x"\n')
    program.env["CARREL_CONFIG"] = str(tmp_path / "config.toml")
    with in_terminal(program, "attach", scripted.space, rows=40, cols=120) as terminal:
        until(terminal, "Alt-x d detaches")
        terminal.type(b"\x1bxd")
        assert terminal.end() == 0
    for key in ("C-", "a", "C-;", "F1", "C-a ; run-shell x"):
        done = program("attach", "--prefix", key, scripted.space)
        assert done.code == 125 and "cannot be the prefix" in done.err, done


def test_interrupting_what_it_does(scripted: Room) -> None:
    turn = scripted.start("sleep 1000")
    scripted.until(lambda: scripted.activity == "working")
    assert scripted.program()("interrupt", scripted.space).code == 0
    scripted.waits()
    assert "interrupted" in scripted.screen()
    scripted.say(turn, "still here")
    scripted.until(lambda: "turn 2: still here" in scripted.screen())


def test_killing_the_supervisor(scripted: Room) -> None:
    turn = scripted.start("hello")
    scripted.waits()
    assert scripted.program()("interrupt", "--kill", scripted.space).code == 0
    assert scripted.end(turn)["result"]["error"]["code"] == "agent_crashed"
    scripted.until(lambda: any("before it was done" in text for text in scripted.alerts()))
    argv = ["sh", "-c", "ls /proc | grep -c '^[0-9]'; cat /proc/[0-9]*/comm"]

    def nothing_left() -> bool:
        done = good(scripted.client.post(f"/v1/spaces/{scripted.space}/exec", json={"argv": argv}))
        return "tmux" not in done["stdout"] and "python" not in done["stdout"]

    scripted.until(nothing_left)


def test_giving_up_is_told(scripted: Room) -> None:
    turn = scripted.start("hello")
    scripted.waits()
    for number in range(1, 6):
        until_started(scripted, turn, number)
        scripted.kill_agent()
    ended = scripted.end(turn)
    assert "gives up" in ended["result"]["error"]["message"]
    assert ended["result"]["error"]["details"]["signal"] == 9
    assert any("gives up" in text for text in scripted.alerts())
    assert scripted.activity == "exited"


def test_the_terminal_goes_with_its_space(scripted: Room) -> None:
    scripted.start("run echo $PPID > pid\nhello")
    scripted.waits()
    good(scripted.client.post(f"/v1/spaces/{scripted.space}/stop", json={}))
    assert scripted.activity == "exited"
    good(scripted.client.delete(f"/v1/spaces/{scripted.space}", params={"force": "true"}))


def test_the_connection_is_lost(impatient: Room) -> None:
    """A program that is killed cannot say that it goes: its place is given up by itself."""
    impatient.start("hello")
    # The agent may ask for tools soon. Daemons that are forked load them when it does.
    assert any("carrel.mcp" in " ".join(one.cmdline()) for one in children(impatient.daemon))
    impatient.waits()
    with impatient.attach() as terminal:
        until(terminal, "turn 1: hello")
        assert impatient.tmux("display-message", "-p", "-t", "agent", "#{session_attached}") == "1"
        os.kill(terminal.process.pid, signal.SIGKILL)
    attached = ("display-message", "-p", "-t", "agent", "#{session_attached}")
    impatient.until(lambda: impatient.tmux(*attached) == "0")


@pytest.mark.parametrize("leave", ["by its key", *beyond("by closing the window", "by a kill")])
def test_several_spaces_at_once(
    daemon: Daemon, standin: Standin, tmp_path: Path, leave: str
) -> None:
    rooms = [Room(daemon, SCRIPTED, standin) for _ in range(2)]
    for number, room in enumerate(rooms):
        room.start(f"hello {number}")
        room.waits()
    program = rooms[0].program()
    program.env["TMPDIR"] = str(tmp_path)
    words = ["attach", "-m", "not needed;", *(room.space for room in rooms)]
    with in_terminal(program, *words, rows=40, cols=120) as terminal:
        until(terminal, "turn 1: hello 0")
        terminal.type(b"\x01n")
        until(terminal, "turn 1: hello 1")
        if leave == "by a kill":
            terminal.process.kill()
        elif leave == "by closing the window":
            terminal.close()
        else:
            terminal.type(b"\x01d")
            assert terminal.end() == 0
    assert all(room.activity == "waiting for input" for room in rooms)
    rooms[0].until(lambda: not _speak_of(str(tmp_path)))
    assert leave == "by a kill" or list(tmp_path.iterdir()) == []


def _speak_of(word: str) -> list[str]:
    found = (" ".join(one.info["cmdline"] or ()) for one in process_iter(["cmdline"]))
    return [line for line in found if word in line]


@pytest.mark.parametrize("agent", ["agent-sdk", "pi-sdk", "codex-acp"])
def test_agents_without_a_terminal(daemon: Daemon, agent: str) -> None:
    client = daemon.local()
    space = good(client.post("/v1/spaces", json={"agent": agent}))["id"]
    done = Program(daemon.data, daemon.data)("attach", space)
    assert done.code == 125 and "has no terminal of its own" in done.err
    assert "carrel send" in done.err


def test_commands_on_the_hub(scripted: Room) -> None:
    """What other clients tell the agent, `agent_command` and `agent_interrupt`."""
    turn = scripted.start("hello")
    scripted.waits()
    with scripted.daemon.websocket("/v1/hub") as hub:
        register = {"kind": "app", "subscriptions": {"types": [], "spaces": []}}

        def ask(type: str, payload: dict[str, Any]) -> dict[str, Any]:
            message = {"type": type, "id": "q", "space": scripted.space, "payload": payload}
            hub.send(json.dumps(message))
            while True:
                found = json.loads(hub.recv(timeout=WAIT_S))
                if found.get("reply_to") == "q":
                    return dict(found["payload"])

        ask("client_register", register)
        told = ask("agent_command", {"command": "sleep 1000", "inject": "terminal"})
        assert told["data"] == {"turn": turn}
        scripted.until(lambda: scripted.activity == "working")
        assert ask("agent_interrupt", {})["data"] == {"turn": turn}
        scripted.waits()
        good(scripted.client.post(f"/v1/turns/{turn}/stop"))
        scripted.end(turn)
        refused = ask("agent_command", {"command": "x", "inject": "terminal"})
        assert refused["code"] == "state_conflict"
        fresh = ask("agent_command", {"command": "a new turn"})["data"]["turn"]
        assert scripted.end(fresh)["result"]["final_output"] == "turn 1: a new turn"


def test_nothing_of_a_terminal_is_open_to_others(scripted: Room) -> None:
    scripted.start("hello")
    scripted.waits()
    folder = scripted.daemon.data / "spaces" / scripted.space / "agent" / "state" / "terminal"
    assert Path(folder).stat().st_mode & 0o077 == 0
