"""The supervisor of agents in terminals, in a real tmux: its agents are small shell scripts."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from carrel.agents.frontends.scripted import Scripted
from carrel.agents.programs import Locator
from carrel.agents.terminals import hook as hook_program
from carrel.agents.terminals.frontend import InTerminal, attaching
from carrel.agents.terminals.supervisor import (
    GIVE_UP,
    STEADY_S,
    AgentState,
    Backoff,
    TerminalSupervisor,
    heard,
    redacted,
)
from carrel.domain.turns import (
    KEY,
    Activity,
    AgentEventType,
    AgentSetup,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Told,
    TurnRequest,
    TurnResult,
)
from tests.agents.staging import WAIT_S, Heard, is_gone, setup_in, started

QUICK = 0.001
"""What stands for a second between two starts."""
STOP = Control(ControlKind.STOP)


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    return setup_in(tmp_path)


def hook(setup: AgentSetup, event: str, key: str = "k1", **more: object) -> str:
    """A piece of a script that tells as agents do."""
    told = json.dumps({"hook_event_name": event, "session_id": key, **more})
    return f"echo {shlex.quote(told)} | {shlex.join(hook_program.command(setup))}"


def sh(script: str, *words: str) -> list[str]:
    return ["/bin/sh", "-c", script, "sh", *words]


@dataclass
class Terminal:
    setup: AgentSetup
    stage: Heard
    work: asyncio.Future[TurnResult]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def file(self, name: str) -> str:
        """What a script has written to the workspace."""
        path = Path(self.setup.workspace, name)
        await self.until(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text()

    async def result(self) -> TurnResult:
        return await asyncio.wait_for(asyncio.shield(self.work), WAIT_S)

    async def tmux(self, *words: str) -> str:
        argv = attaching(self.setup.state, read_only=False).argv[:5]
        process = await asyncio.create_subprocess_exec(
            *argv,
            *words,
            cwd=f"{self.setup.state}/{hook_program.FOLDER}",
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
        assert process.returncode == 0
        return out.decode().strip()

    def supervised(self, what: str) -> list[Told]:
        logs = self.stage.of(AgentEventType.LOG)
        return [told for told in logs if told.payload.get("supervision") == what]

    @property
    def activities(self) -> list[object]:
        return [told.payload["activity"] for told in self.stage.of(AgentEventType.STATE)]


@asynccontextmanager
async def terminal(
    setup: AgentSetup,
    first: list[str],
    again: list[str] | None = None,
    *,
    asked: str = "",
    silent: bool = False,
) -> AsyncIterator[Terminal]:
    stage = Heard()
    continuation = Continuation("any", asked) if asked else None
    request = TurnRequest("x", "", continuation=continuation, mode=InteractionMode.INTERACTIVE)
    supervisor = TerminalSupervisor(first, again or (), silent=silent, unit_s=QUICK)
    work = asyncio.ensure_future(supervisor(request, setup, stage))
    try:
        yield Terminal(setup, stage, work)
    finally:
        work.cancel()
        await asyncio.wait({work}, timeout=WAIT_S)
    assert not list(Path(setup.state, hook_program.FOLDER).glob("*.sock"))


async def test_one_that_ends_well_is_not_started_again(setup: AgentSetup) -> None:
    script = f"echo x >> ran; {hook(setup, 'Stop', last_assistant_message='bye')}; exit 0"
    async with terminal(setup, sh(script)) as here:
        result = await here.result()
    assert result == TurnResult(True, "bye")
    assert Path(setup.workspace, "ran").read_text() == "x\n"
    assert [told.payload["code"] for told in here.supervised("ended")] == [0]


async def test_its_last_words_count_though_nobody_was_told_yet(
    setup: AgentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listens is told one thing after the other, and the terminal may be slow to answer."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(AgentState, "_show", never)
    words = (("UserPromptSubmit", {"prompt": "hello"}), ("Stop", {"last_assistant_message": "bye"}))
    script = "; ".join(hook(setup, name, **more) for name, more in words)
    async with terminal(setup, sh(f"{script}; exit 0")) as here:
        assert await here.result() == TurnResult(True, "bye")
    said = [told.payload["text"] for told in here.stage.of(AgentEventType.MESSAGE)]
    assert said == ["hello", "bye"]


async def test_it_gives_up_after_five_failures_in_a_row(setup: AgentSetup) -> None:
    async with terminal(setup, sh("echo x >> ran; echo so sad; exit 3")) as here:
        result = await here.result()
    assert Path(setup.workspace, "ran").read_text() == "x\n" * 5
    assert not result.success and result.error is not None
    assert result.error.code == "agent_crashed" and "gives up" in result.error.message
    assert result.error.details["code"] == 3 and "so sad" in str(result.error.details["lines"])
    crashes = here.supervised("crashed")
    assert [told.payload["code"] for told in crashes] == [3] * 5
    pauses = [told.payload["pause_s"] for told in crashes]
    assert pauses == [2 * QUICK, 4 * QUICK, 8 * QUICK, 16 * QUICK, None]
    assert all("so sad" in str(told.payload["lines"]) for told in crashes)


async def test_a_restart_goes_on_with_the_same_conversation(setup: AgentSetup) -> None:
    first = f"{hook(setup, 'UserPromptSubmit', 'key-7', prompt='hello')}; kill -9 $$"
    again = ["/bin/sh", "-c", 'echo "$1" > again; exit 0', "sh", KEY]
    async with terminal(setup, sh(first), again) as here:
        assert (await here.result()).success
    assert Path(setup.workspace, "again").read_text() == "key-7\n"
    (crash,) = here.supervised("crashed")
    assert (crash.payload["code"], crash.payload["signal"]) == (None, 9)
    assert [told.payload["resumed"] for told in here.supervised("started")] == [False, True]
    assert here.stage.key == "key-7"


async def test_a_conversation_that_was_not_kept_is_begun_again(setup: AgentSetup) -> None:
    """An agent may be killed before it has written anything down of what was said."""
    tell = hook(setup, "UserPromptSubmit", "key-7", prompt="hello")
    first = f"{tell}; echo x >> ran; test $(wc -l < ran) = 2"
    async with terminal(setup, sh(first), sh("echo y >> ran-again; exit 1")) as here:
        assert (await here.result()).success
    assert Path(setup.workspace, "ran-again").read_text() == "y\n" * 2
    assert [told.payload["resumed"] for told in here.supervised("started")] == [
        False,
        True,
        True,
        False,
    ]


async def test_what_has_not_begun_is_begun_again(setup: AgentSetup) -> None:
    """An agent that died before anything was said has nothing that could be gone on with."""
    first = f"{hook(setup, 'SessionStart', 'key-7')}; echo x >> ran; test $(wc -l < ran) = 2"
    async with terminal(setup, sh(first), sh("exit 9")) as here:
        assert (await here.result()).success
    assert Path(setup.workspace, "ran").read_text() == "x\n" * 2


async def test_another_conversation_than_the_one_that_was_asked_for(setup: AgentSetup) -> None:
    first = f"{hook(setup, 'SessionStart', 'other')}; exec sleep 1000"
    async with terminal(setup, sh(first), asked="mine") as here:
        result = await here.result()
    assert result.error is not None and result.error.code == "continuation_not_found"
    assert result.error.details["came"] == "other"


async def test_a_person_may_begin_another_conversation(setup: AgentSetup) -> None:
    """As `/clear` does; a restart goes on with that one."""
    parts = [hook(setup, "UserPromptSubmit", key, prompt=key) for key in ("mine", "new")]
    again = ["/bin/sh", "-c", 'echo "$1" > again', "sh", KEY]
    async with terminal(setup, sh("; ".join([*parts, "exit 1"])), again, asked="mine") as here:
        assert (await here.result()).success
    assert Path(setup.workspace, "again").read_text() == "new\n"


async def test_what_the_agent_does_is_known(setup: AgentSetup) -> None:
    given = {"tool_name": "Write", "tool_use_id": "t1"}
    parts = [
        hook(setup, "SessionStart"),
        hook(setup, "UserPromptSubmit", prompt="write it"),
        hook(setup, "PreToolUse", **given, tool_input={"path": "a"}),
        hook(setup, "PermissionRequest", tool_name="Write"),
        hook(setup, "PostToolUse", **given, tool_response="done"),
        hook(setup, "Stop", last_assistant_message="It is written."),
    ]
    async with terminal(setup, sh("; ".join(parts))) as here:
        assert (await here.result()).final_output == "It is written."
    assert here.activities == [
        Activity.IDLE,
        Activity.WORKING,
        Activity.WAITING,
        Activity.WORKING,
        Activity.INPUT,
    ]
    kinds = [told.type for told in here.stage.all if told.type is not AgentEventType.LOG]
    state = AgentEventType.STATE
    assert kinds == [
        state,
        AgentEventType.MESSAGE,
        state,
        AgentEventType.TOOL_CALL,
        state,
        AgentEventType.TOOL_RESULT,
        state,
        AgentEventType.MESSAGE,
        state,
    ]


async def test_what_is_said_waits_until_it_can_be_heard(setup: AgentSetup) -> None:
    """A question about a permission would take the words for its answer."""
    ask, go = hook(setup, "PermissionRequest", tool_name="Write"), hook(setup, "PostToolUse")
    script = (
        f'{hook(setup, "SessionStart")}; read one; echo "$one" > one;'
        f"{ask}; echo asked > asked; while [ ! -e go ]; do sleep 0.02; done;"
        f'{go}; read two; echo "$two" > two'
    )
    async with terminal(setup, sh(script)) as here:
        here.stage.controls.put_nowait(Control(ControlKind.INPUT, text="first thing"))
        assert await here.file("one") == "first thing\n"
        await here.file("asked")
        await here.until(lambda: Activity.WAITING in here.activities)
        here.stage.controls.put_nowait(Control(ControlKind.INPUT, text="second thing"))
        screen = await here.tmux("capture-pane", "-p", "-t", "agent")
        assert "second thing" not in screen
        Path(setup.workspace, "go").touch()
        assert await here.file("two") == "second thing\n"
        assert (await here.result()).success


async def test_one_that_tells_nothing_is_up_when_its_screen_stands_still(setup: AgentSetup) -> None:
    script = 'echo up; read one; echo "$one" > one'
    async with terminal(setup, sh(script), silent=True) as here:
        here.stage.controls.put_nowait(Control(ControlKind.INPUT, text="hello"))
        assert await here.file("one") == "hello\n"


async def test_an_interrupt_is_a_key(setup: AgentSetup) -> None:
    script = "trap 'echo stopped > stopped; exit 0' INT; echo up > up; while :; do sleep 0.05; done"
    async with terminal(setup, sh(script)) as here:
        await here.file("up")
        here.stage.controls.put_nowait(Control.interrupt())
        assert await here.file("stopped") == "stopped\n"
        assert (await here.result()).success


async def test_stopping_one_that_does_not_listen(setup: AgentSetup) -> None:
    script = "trap '' INT TERM HUP; echo $$ > pid; while :; do sleep 0.05; done"
    async with terminal(setup, sh(script)) as here:
        pid = int(await here.file("pid"))
        here.stage.controls.put_nowait(STOP)
        result = await here.result()
    assert result.error is not None and result.error.code == "interrupted"
    assert is_gone(pid)


async def test_stopping_between_two_starts(setup: AgentSetup) -> None:
    request = TurnRequest("x", "", mode=InteractionMode.INTERACTIVE)
    stage = Heard(lambda told: STOP if told.payload.get("supervision") == "crashed" else None)
    supervisor = TerminalSupervisor(sh("exit 1"), unit_s=1000)
    result = await asyncio.wait_for(supervisor(request, setup, stage), WAIT_S)
    assert result.error is not None and result.error.code == "interrupted"


async def test_the_terminal_itself_is_killed(setup: AgentSetup) -> None:
    """An agent may do that too: it is started again, in another one."""
    script = "echo x >> ran; echo up > up; test $(wc -l < ran) = 2 || exec sleep 1000"
    async with terminal(setup, sh(script)) as here:
        await here.file("up")
        os.kill(int(await here.tmux("display-message", "-p", "#{pid}")), signal.SIGKILL)
        assert (await here.result()).success
    assert len(here.supervised("crashed")) == 1


async def test_cancelling_leaves_nothing(setup: AgentSetup) -> None:
    async with terminal(setup, sh("echo $$ > pid; exec sleep 1000")) as here:
        pid = int(await here.file("pid"))
        here.work.cancel()
        await asyncio.wait({here.work}, timeout=WAIT_S)
        assert is_gone(pid)


async def test_the_supervisors_program_is_killed(setup: AgentSetup) -> None:
    """Nobody is left to look after the agent, so it goes too."""
    frontend = InTerminal(Scripted(Locator(Path("/nonexistent"))))
    request = TurnRequest(
        "scripted", "run echo $PPID > pid", "s", "r", mode=InteractionMode.INTERACTIVE
    )
    prepared = frontend.prepare(request, setup)
    async with started(prepared, setup, frontend.translator(request)) as program:
        while "waiting for input" not in str(program.heard.all):
            assert await program.line()
        pid = int(Path(setup.workspace, "pid").read_text())
        program.process.kill()
        assert is_gone(pid)


async def test_a_long_command_in_a_deep_folder(tmp_path: Path) -> None:
    """tmux takes neither."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    setup = setup_in(deep)
    script = f'{hook(setup, "SessionStart")}; printf %s "$1" | wc -c > size'
    async with terminal(setup, sh(script, "x" * 100_000)) as here:
        assert (await here.result()).success
    assert Path(setup.workspace, "size").read_text().strip() == "100000"
    assert here.activities == [Activity.IDLE]


async def test_a_program_that_is_not_there(setup: AgentSetup) -> None:
    async with terminal(setup, ["/no/such/program"]) as here:
        result = await here.result()
    assert result.error is not None and result.error.details["code"] == 127
    assert "cannot be started" in str(result.error.details["lines"])


async def test_keys_on_the_screen_are_not_written_down(
    setup: AgentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-planted-1234567")
    async with terminal(setup, sh('echo "key: $ANTHROPIC_API_KEY"; exit 1')) as here:
        result = await here.result()
    assert "key: <ANTHROPIC_API_KEY>" in str(result.error)
    assert "sk-planted" not in str(here.stage.all) + str(result)


async def test_several_are_attached_at_once(setup: AgentSetup) -> None:
    """In terminals of another tmux server, as people would sit there."""
    outer = f"{setup.workspace}/o.sock"
    script = f'{hook(setup, "SessionStart")}; read one; echo "said $one"; read two; exit 0'
    async with terminal(setup, sh(script)) as here:
        await here.until(lambda: bool(here.activities))
        try:
            for name, read_only in (("one", False), ("two", False), ("three", True)):
                how = attaching(setup.state, read_only=read_only)
                await _tmux(outer, "new-session", "-d", "-s", name, "-c", how.cwd, "--", *how.argv)
            await _attached(here, 3)
            await _tmux(outer, "send-keys", "-t", "three", "unheard", "Enter")
            await _tmux(outer, "send-keys", "-t", "one", "hello", "Enter")
            for name in ("one", "two", "three"):
                await _shows(outer, name, "said hello")
            await _tmux(outer, "send-keys", "-t", "one", "C-b", "d")
            await _attached(here, 2)
            assert not here.work.done()
            await _tmux(outer, "send-keys", "-t", "two", "bye", "Enter")
            assert (await here.result()).success
        finally:
            await _tmux(outer, "kill-server")


async def _tmux(socket: str, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "tmux", "-S", socket, "-f", "/dev/null", *words, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    return out.decode()


async def _attached(here: Terminal, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while await here.tmux("display-message", "-p", "#{session_attached}") != str(count):
            await asyncio.sleep(0.02)


async def _shows(socket: str, session: str, text: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while text not in await _tmux(socket, "capture-pane", "-p", "-t", session):
            await asyncio.sleep(0.02)


def test_pauses_double_and_end() -> None:
    backoff = Backoff()
    assert [backoff.failed(0.1) for _ in range(GIVE_UP)] == [2, 4, 8, 16, None]


def test_one_that_ran_long_begins_a_new_row() -> None:
    backoff = Backoff()
    for _ in range(GIVE_UP - 1):
        backoff.failed(0.1)
    assert backoff.failed(STEADY_S) == 2


@pytest.mark.parametrize(
    ("told", "activity"),
    [
        ({"hook_event_name": "Notification", "notification_type": "idle_prompt"}, Activity.INPUT),
        (
            {"hook_event_name": "Notification", "notification_type": "permission_prompt"},
            Activity.WAITING,
        ),
        ({"hook_event_name": "Notification", "notification_type": "auth_success"}, None),
        ({"hook_event_name": "PreToolUse", "tool_name": "AskUserQuestion"}, Activity.INPUT),
        ({"hook_event_name": "PreToolUse", "tool_name": "mcp__carrel__ask_user"}, Activity.INPUT),
        ({"hook_event_name": "PostToolUseFailure", "error": "no"}, Activity.WORKING),
        ({"hook_event_name": "SomethingNew", "session_id": 7}, None),
        ({}, None),
    ],
)
def test_what_hooks_mean(told: dict[str, object], activity: Activity | None) -> None:
    assert heard(told).activity is activity


def test_only_what_looks_like_a_key_is_taken_out() -> None:
    env = {"MY_TOKEN": "abcdefgh", "SHORT_KEY": "abc", "NAME": "hello world"}
    assert redacted("abcdefgh abc hello world", env) == "<MY_TOKEN> abc hello world"
