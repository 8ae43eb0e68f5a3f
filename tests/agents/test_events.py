"""A turn's events: numbered, with a beginning, one end, and the conversation."""

from __future__ import annotations

import pytest

from carrel.agents.events import MAX_KEY, Emitter, failed
from carrel.agents.frontends.lines import log, message
from carrel.domain.errors import AgentCrashed
from carrel.domain.turns import AgentEvent, Continuation, Told, TurnRequest, TurnResult
from carrel.domain.turns import AgentEventType as Type

REQUEST = TurnRequest("scripted", "hello", session_id="s", run_id="r")
DONE = TurnResult(True, "bye")


def shown(events: list[AgentEvent]) -> list[str]:
    return [
        f"{event.type}:{event.payload['state']}" if event.type is Type.STATE else event.type
        for event in events
    ]


def test_a_turn_begins_with_running_and_ends_with_complete() -> None:
    events: list[AgentEvent] = []
    emitter = Emitter(REQUEST, "any", [events.append], clock=lambda: 7.0)
    emitter.start()
    emitter.tell(message("hi"))
    emitter.finish(DONE)
    assert shown(events) == ["state:running", "message", "state:complete", "complete"]
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert {(event.ts, event.session_id, event.run_id) for event in events} == {(7.0, "s", "r")}
    assert events[-1].payload["result"] == {
        "success": True,
        "final_output": "bye",
        "error": None,
    }


def test_a_key_that_is_too_long_is_on_none() -> None:
    """It would be kept once for each of them, however short they are."""
    events: list[AgentEvent] = []
    emitter = Emitter(REQUEST, "any", [events.append])
    emitter.tell(log("first", "k" * (MAX_KEY + 1)))
    emitter.tell(log("second", "k" * MAX_KEY))
    assert [event.continuation for event in events] == [None, Continuation("any", "k" * MAX_KEY)]


def test_the_conversation_is_on_every_event_from_the_first_that_shows_it() -> None:
    events: list[AgentEvent] = []
    emitter = Emitter(REQUEST, "anthropic", [events.append])
    emitter.start()
    emitter.tell(log("nothing yet"))
    emitter.tell(log("here", key="k1"))
    emitter.tell(message("later"))
    emitter.finish(DONE)
    known = Continuation("anthropic", "k1")
    assert [event.continuation for event in events] == [None, None, known, known, known, known]
    assert emitter.continuation == known


def test_a_failure_is_told_before_the_end() -> None:
    events: list[AgentEvent] = []
    emitter = Emitter(REQUEST, "any", [events.append])
    emitter.start()
    emitter.finish(failed(AgentCrashed("gone", hint="Try again.")))
    assert shown(events) == ["state:running", "state:error", "complete"]
    error = {"code": "agent_crashed", "message": "gone", "details": {"hint": "Try again."}}
    assert events[1].payload["error"] == error


def test_the_end_comes_once_and_is_the_last() -> None:
    events: list[AgentEvent] = []
    emitter = Emitter(REQUEST, "any", [events.append])
    emitter.start()
    emitter.finish(DONE)
    emitter.finish(failed(AgentCrashed("again")))
    emitter.tell(message("too late"))
    assert shown(events) == ["state:running", "state:complete", "complete"]


@pytest.mark.parametrize("type", [Type.STATE, Type.COMPLETE])
def test_a_frontend_cannot_tell_the_beginning_or_the_end(type: Type) -> None:
    events: list[AgentEvent] = []
    emitter = Emitter(REQUEST, "any", [events.append])
    emitter.start()
    emitter.tell(Told(type, {"state": "running"}))
    emitter.finish(DONE)
    assert [event.type for event in events].count(Type.COMPLETE) == 1
    assert events[1].type is Type.LOG


# Callbacks that break


def test_a_broken_callback_is_told_to_the_others_once_and_called_on() -> None:
    heard: list[AgentEvent] = []
    calls: list[int] = []

    def broken(event: AgentEvent) -> None:
        calls.append(event.seq)
        raise RuntimeError("no room")

    emitter = Emitter(REQUEST, "any", [broken, heard.append])
    emitter.start()
    emitter.tell(message("hi"))
    emitter.finish(DONE)
    assert shown(heard) == ["state:running", "log", "message", "state:complete", "complete"]
    assert "RuntimeError: no room" in str(heard[1].payload["text"])
    assert calls == [event.seq for event in heard] == [1, 2, 3, 4, 5]
    assert emitter.broken == ("RuntimeError: no room",)


def test_a_callback_that_breaks_at_the_end_is_known_and_nothing_follows() -> None:
    heard: list[AgentEvent] = []

    def broken(event: AgentEvent) -> None:
        if event.type is Type.COMPLETE:
            raise ValueError("at last")

    emitter = Emitter(REQUEST, "any", [broken, heard.append])
    emitter.start()
    emitter.finish(DONE)
    assert heard[-1].type is Type.COMPLETE
    assert emitter.broken == ("ValueError: at last",)


def test_a_coroutine_function_is_no_callback() -> None:
    async def wrong(event: AgentEvent) -> None: ...

    emitter = Emitter(REQUEST, "any", [wrong])
    emitter.start()
    assert "coroutine" in emitter.broken[0]
