"""The library's calls, in this process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents.library import Library, TurnOutcome
from carrel.agents.registry import Registry
from carrel.domain.errors import ResolveFailed, StateConflict, UnsupportedFrontend
from carrel.domain.invocations import IoMode
from carrel.domain.turns import (
    AgentEvent,
    AgentSetup,
    Continuation,
    InteractionMode,
    Permission,
    TurnRequest,
)
from carrel.domain.turns import AgentEventType as Type
from tests.agents.staging import WAIT_S, code_of, pinned, setup_in


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(Registry(pinned(tmp_path, "claude-code", "codex-cli")))


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    return setup_in(tmp_path)


def asking(*lines: str, session: str = "s") -> TurnRequest:
    return TurnRequest("scripted", "\n".join(lines), session_id=session)


async def run(
    library: Library, setup: AgentSetup, request: TurnRequest
) -> tuple[TurnOutcome, list[AgentEvent]]:
    events: list[AgentEvent] = []
    turn = library.run_turn(request, setup, events.append)
    return await asyncio.wait_for(turn, WAIT_S), events


def types(events: Sequence[AgentEvent]) -> list[Type]:
    return [event.type for event in events]


# Turns


async def test_a_turn_and_the_next_one(library: Library, setup: AgentSetup) -> None:
    first, events = await run(library, setup, asking("hello"))
    assert first.result.final_output == "turn 1: hello"
    assert types(events) == [Type.STATE, Type.LOG, Type.MESSAGE, Type.STATE, Type.COMPLETE]
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert first.continuation == events[-1].continuation is not None
    again = replace(asking("hello"), continuation=first.continuation)
    second, _ = await run(library, setup, again)
    assert second.result.final_output == "turn 2: hello"
    assert second.continuation == first.continuation


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"frontend": "no-such"}, "unsupported_frontend"),
        ({"frontend": "claude-code"}, "unsupported_frontend"),
        ({"continuation": Continuation("openai", "k")}, "provider_mismatch"),
        ({"continuation": Continuation("any", "k")}, "continuation_not_found"),
        ({"kits": ("kit:x",)}, "resolve_failed"),
        ({"prompt": "crash"}, "agent_crashed"),
        ({"prompt": ""}, "empty_response"),
        ({"timeout_s": 0.05, "prompt": "say x\nsleep 600"}, "timeout"),
    ],
)
async def test_every_failure_has_its_events(
    library: Library, setup: AgentSetup, change: dict[str, object], code: str
) -> None:
    outcome, events = await run(library, setup, replace(asking("hello"), **change))  # type: ignore[arg-type]
    assert code_of(outcome.result) == code
    assert types(events)[0] is Type.STATE
    assert types(events)[-2:] == [Type.STATE, Type.COMPLETE]
    assert events[-2].payload["state"] == "error"


async def test_a_broken_callback_is_survived_and_known(library: Library, setup: AgentSetup) -> None:
    heard: list[AgentEvent] = []

    def broken(event: AgentEvent) -> None:
        raise RuntimeError("no room")

    outcome = await library.run_turn(asking("hello"), setup, broken, heard.append)
    assert outcome.result.success
    assert outcome.broken == ("RuntimeError: no room",)
    assert any("no room" in str(event.payload) for event in heard)


async def test_two_turns_do_not_see_each_others_environment(
    library: Library, tmp_path: Path
) -> None:
    turns = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        setup = replace(setup_in(tmp_path / name), credentials={"openai": f"key-{name}"})
        request = replace(
            asking("run echo $WORD $OPENAI_API_KEY", session=name), env={"WORD": name}
        )
        turns.append(run(library, setup, request))
    before = dict(os.environ)
    results = await asyncio.gather(*turns)
    outputs = [
        event.payload["output"]
        for _, events in results
        for event in events
        if event.type is Type.TOOL_RESULT
    ]
    assert outputs == ["one key-one\n", "two key-two\n"]
    assert dict(os.environ) == before


# While one runs


async def test_a_session_has_one_turn_at_a_time(library: Library, setup: AgentSetup) -> None:
    began = asyncio.Event()
    turn = asyncio.ensure_future(
        library.run_turn(asking("say now", "sleep 600"), setup, lambda event: began.set())
    )
    await asyncio.wait_for(began.wait(), WAIT_S)
    with pytest.raises(StateConflict):
        await library.run_turn(asking("hello"), setup)
    other, _ = await run(library, setup, asking("hello", session="other"))
    assert other.result.success
    assert library.interrupt("s")
    outcome = await asyncio.wait_for(turn, WAIT_S)
    assert code_of(outcome.result) == "interrupted"
    again, _ = await run(library, setup, asking("hello"))
    assert again.result.success


async def test_input_is_queued(library: Library, setup: AgentSetup) -> None:
    def more(event: AgentEvent) -> None:
        if event.payload.get("text") == "now":
            said.append(library.queue_input("s", "say more"))
            said.append(library.queue_input("s", "say end"))

    said: list[object] = []
    outcome = await library.run_turn(asking("say now", "sleep 0.01"), setup, more)
    assert outcome.result.final_output == "end"
    assert [str(one) for one in said] == [
        "Queued(accepted=True, pending=1)",
        "Queued(accepted=True, pending=2)",
    ]
    assert not library.queue_input("s", "too late").accepted
    assert not library.interrupt("s")


async def test_input_that_comes_too_late_is_told(library: Library, setup: AgentSetup) -> None:
    events: list[AgentEvent] = []

    def late(event: AgentEvent) -> None:
        events.append(event)
        if event.payload.get("text") == "bye":
            library.queue_input("s", "one more thing")

    outcome = await library.run_turn(asking("say bye"), setup, late)
    assert outcome.result.final_output == "bye"
    assert "one more thing" in str(events[-3].payload["text"])


async def test_permissions_are_asked_for(library: Library, setup: AgentSetup) -> None:
    def allow(event: AgentEvent) -> None:
        if event.type is Type.PERMISSION and "decision" not in event.payload:
            assert library.answer("s", str(event.payload["id"]), True)

    request = replace(asking("write a.txt x"), permission=Permission.ASK)
    outcome = await library.run_turn(request, setup, allow)
    assert outcome.result.success
    assert Path(setup.workspace, "a.txt").exists()


async def test_a_turn_that_is_cancelled_has_its_events(library: Library, setup: AgentSetup) -> None:
    events: list[AgentEvent] = []
    began = asyncio.Event()

    def hear(event: AgentEvent) -> None:
        events.append(event)
        began.set()

    turn = asyncio.ensure_future(library.run_turn(asking("say now", "sleep 600"), setup, hear))
    await asyncio.wait_for(began.wait(), WAIT_S)
    turn.cancel()
    await asyncio.wait({turn}, timeout=WAIT_S)
    assert turn.cancelled()
    assert types(events)[-2:] == [Type.STATE, Type.COMPLETE]


# What there is, and how it is started


async def test_capabilities(library: Library) -> None:
    found = {one.id: one for one in await library.capabilities()}
    assert set(found) >= {"any", "anthropic", "openai"}
    names = {one.name: one for provider in found.values() for one in provider.frontends}
    assert names["scripted"].installed and names["agent-sdk"].installed
    assert found["anthropic"].models


def test_how_a_program_is_started(library: Library, setup: AgentSetup) -> None:
    given = replace(setup, credentials={"anthropic": "planted-key"})
    request = TurnRequest("claude-code", "hello", session_id="s", run_id="r")
    for mode, io in (
        (InteractionMode.HEADLESS, IoMode.PIPES),
        (InteractionMode.INTERACTIVE, IoMode.PTY),
    ):
        invocation = library.build_invocation(request, given, mode)
        assert Path(invocation.spec.argv[0]).is_absolute()
        assert invocation.spec.io_mode is io
        assert "planted-key" not in invocation.spec.display_command
    assert any(Path(setup.state).rglob("*"))
    with pytest.raises(UnsupportedFrontend, match="run_turn"):
        library.build_invocation(asking("hello"), setup)


def test_kits_are_not_there_yet(library: Library) -> None:
    assert library.resolve([]).ok
    assert library.describe([], "scripted").hooks == ()
    error = library.resolve(["kit:x"]).error
    assert error is not None and error.code == "resolve_failed"
    with pytest.raises(ResolveFailed):
        library.describe(["kit:x"])


def test_the_library_loads_no_sdk() -> None:
    code = (
        "import sys, carrel.agents.library, carrel.agents.registry\n"
        "import carrel.agents.frontends.agent_sdk, carrel.agents.frontends.acp\n"
        "import carrel.agents.frontends.pi_sdk\n"
        "print([n for n in ('mcp', 'acp', 'claude_agent_sdk', 'pydantic') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, timeout=60)
    assert done.stdout == b"[]\n", done.stderr
