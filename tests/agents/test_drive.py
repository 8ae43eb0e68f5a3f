"""The driver's program, started as in a sandbox: by its first line, its signals, its output."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents import programs, wire
from carrel.agents.driven import DrivenTranslator
from carrel.agents.frontends.scripted import Scripted
from carrel.agents.programs import Locator
from carrel.domain.errors import ProviderMismatch, ResolveFailed
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import AgentSetup, Continuation, Control, ControlKind, TurnRequest
from tests.agents.staging import INTERRUPT, Program, setup_in, started

FRONTEND = Scripted(Locator(Path("/nonexistent")))


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    return setup_in(tmp_path)


def asking(*lines: str) -> TurnRequest:
    return TurnRequest("scripted", "\n".join(lines), session_id="s", run_id="r1")


@asynccontextmanager
async def turn(setup: AgentSetup, request: TurnRequest) -> AsyncIterator[Program]:
    prepared = FRONTEND.prepare(request, setup)
    async with started(prepared, setup, FRONTEND.translator(request)) as program:
        yield program


async def test_a_turn(setup: AgentSetup) -> None:
    async with turn(setup, asking("write a.txt x", "say é\u2028x", "hello")) as program:
        result = await program.result()
    assert result.success and result.final_output == "turn 1: hello"
    assert program.heard.texts == ["é\u2028x", "turn 1: hello"]
    assert program.heard.key
    assert program.process.returncode == 0
    assert Path(setup.workspace, "a.txt").read_text() == "x\n"


async def test_the_end_of_its_input_does_not_end_the_turn(setup: AgentSetup) -> None:
    async with turn(setup, asking("say before", "sleep 0.1", "say after")) as program:
        assert program.process.stdin is not None
        program.process.stdin.close()
        result = await program.result()
    assert result.final_output == "after"


async def test_it_is_spoken_to(setup: AgentSetup) -> None:
    async with turn(setup, asking("say now", "sleep 600")) as program:
        await program.until(Type.MESSAGE)
        assert program.process.stdin is not None
        program.process.stdin.write(b"nonsense\n")
        await program.say(Control(ControlKind.INPUT, text="say more"))
        await program.say(INTERRUPT)
        result = await program.result()
    assert result.error is not None and result.error.code == "interrupted"
    assert any("Not understood" in str(told.payload) for told in program.heard.of(Type.LOG))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_stop_it_with_a_last_word(setup: AgentSetup, number: signal.Signals) -> None:
    async with turn(setup, asking("say now", "run sleep 600")) as program:
        await program.until(Type.TOOL_CALL)
        program.process.send_signal(number)
        result = await program.result()
    assert result.error is not None and result.error.code == "interrupted"
    assert program.process.returncode == 1


async def test_a_crash_has_no_last_word_and_can_be_gone_on_with(setup: AgentSetup) -> None:
    async with turn(setup, asking("say before", "crash")) as program:
        result = await program.result()
    assert result.error is not None and result.error.code == "agent_crashed"
    assert program.heard.texts == ["before"]
    again = replace(
        asking("hello"), run_id="r2", continuation=Continuation("any", program.heard.key)
    )
    async with turn(setup, again) as program:
        assert (await program.result()).final_output == "turn 2: hello"


async def test_secrets_are_in_the_environment_only(setup: AgentSetup) -> None:
    request = replace(asking("run echo $OPENAI_API_KEY $OTHER"), env={"OTHER": "word"})
    given = replace(
        setup, credentials={"openai": "planted-key"}, mcp_env={"CARREL_HUB": "planted-path"}
    )
    prepared = FRONTEND.prepare(request, given)
    for value in (b"planted-key", b"planted-path", b"word"):
        assert value not in prepared.first
    async with started(prepared, given, FRONTEND.translator(request)) as program:
        await program.result()
    assert program.heard.of(Type.TOOL_RESULT)[0].payload["output"] == "planted-key word\n"


def test_what_cannot_be_is_refused_before_it_is_started(setup: AgentSetup) -> None:
    other = replace(asking("x"), continuation=Continuation("openai", "k"))
    with pytest.raises(ProviderMismatch):
        FRONTEND.prepare(other, setup)
    with pytest.raises(ResolveFailed):
        FRONTEND.prepare(replace(asking("x"), kits=("kit:x",)), setup)


@pytest.mark.parametrize("first", [b"", b"nonsense\n", b"{}\n"])
def test_a_first_line_that_is_not_understood(first: bytes, tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-m", "carrel.agents.drive"]
    done = subprocess.run(argv, input=first, capture_output=True, timeout=60, cwd=tmp_path)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["payload"]["result"]["error"]["code"] == "message_invalid"
    assert done.returncode == 1


def test_a_driver_that_cannot_be_loaded(setup: AgentSetup) -> None:
    start = wire.Start("no.such.module:Driver", asking("hello"), setup)
    argv = [sys.executable, "-I", "-m", "carrel.agents.drive"]
    done = subprocess.run(argv, input=wire.line_of(start), capture_output=True, timeout=60)
    error = json.loads(done.stdout)["payload"]["result"]["error"]
    assert error["code"] == "frontend_not_installed"


async def test_nothing_is_lost_of_many_events(setup: AgentSetup) -> None:
    async with turn(setup, asking("repeat 20000 say x", "say end")) as program:
        result = await program.result()
    assert result.final_output == "end"
    assert len(program.heard.texts) == 20001


def test_nothing_heavy_is_loaded_for_a_script() -> None:
    code = (
        "import sys, carrel.agents.driver_process, carrel.agents.frontends.scripted_driver\n"
        "heavy = ('mcp', 'acp', 'claude_agent_sdk', 'pydantic', 'anyio', 'msgspec', 'pathlib')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, timeout=60)
    assert done.stdout == b"[]\n", done.stderr


@pytest.mark.parametrize(
    ("before", "said"),
    [("", b"a library's word"), ("sys.stdout = None", b""), ("os.close(1)", b"")],
)
def test_it_leaves_at_once_and_loses_no_word(before: str, said: bytes) -> None:
    code = (
        "import atexit, os, sys\n"
        "from carrel.agents.drive import leave\n"
        "atexit.register(os.abort)\n"
        'print("a library\'s word", end="")\n'
        f"{before}\n"
        "leave(3)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, said), done.stderr


# Its translator


@pytest.mark.parametrize("line", [b"[1]", b'{"type":"new"}', b"\xff", b"{" * 5000, b'{"type":1}'])
def test_lines_that_are_not_understood_are_logged(line: bytes) -> None:
    (told,) = DrivenTranslator().line(line)
    assert told.type is Type.LOG and len(str(told.payload["raw"])) <= 5000


@pytest.mark.parametrize("payload", [{}, {"result": 1}, {"result": {"success": "yes"}}])
def test_a_last_word_that_cannot_be_believed_is_a_crash(payload: object) -> None:
    translator = DrivenTranslator()
    line = json.dumps({"type": "complete", "payload": payload}).encode()
    assert not translator.line(line)
    error = translator.ended(0, "").error
    assert error is not None and error.code == "agent_crashed"


def test_the_end_says_how_it_ended() -> None:
    error = DrivenTranslator().ended(3, "Traceback: …").error
    assert error is not None and "3" in error.message and error.details["stderr"]


def test_the_interpreter_and_this_package_are_shown() -> None:
    shown = [Path(folder) for folder in programs.folders()]
    for path in (Path(sys.executable), Path(sys.prefix), Path(__file__).parents[2] / "src/carrel"):
        assert path.is_relative_to("/usr") or any(path.is_relative_to(one) for one in shown)
