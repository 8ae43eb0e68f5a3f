"""What an agent waits for, by the events of its turn."""

from __future__ import annotations

from carrel.domain.agents import Activity, AgentEvent, AgentEventType, Asked
from carrel.service.turn_waiting import Waiting


def permission(seq: int, id: str, **more: object) -> AgentEvent:
    payload = {"id": id, "name": "write", "input": {"path": id}, **more}
    return AgentEvent(AgentEventType.PERMISSION, 0.0, seq, "s", "r", payload)


def test_a_permission_is_open_until_it_is_decided() -> None:
    waiting = Waiting(told=0)
    assert not waiting.may_answer("a")
    waiting.hear(permission(1, "a"))
    waiting.hear(permission(2, "b"))
    assert list(waiting.asking.values()) == [
        Asked("a", "write", {"path": "a"}),
        Asked("b", "write", {"path": "b"}),
    ]
    assert waiting.activity is Activity.WAITING and waiting.may_answer("a")
    waiting.hear(permission(3, "a", decision="allow"))
    assert list(waiting.asking) == ["b"] and not waiting.may_answer("a")


def test_what_was_told_before_is_heard_first() -> None:
    """A daemon that comes back does not know yet what is open."""
    waiting = Waiting(told=2)
    assert waiting.may_answer("a")
    waiting.hear(permission(1, "a"))
    waiting.hear(permission(2, "a", decision="deny"))
    assert not waiting.may_answer("a") and waiting.news() == ""
