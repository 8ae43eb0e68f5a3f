"""What an agent waits for, by the events of its turn."""

from __future__ import annotations

from carrel.domain.turns import Activity, AgentEvent, AgentEventType, Asked
from carrel.service.turn_follower import MAX_INPUT, MOST_OPEN, Waiting


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


def retry(seq: int, at: float, status: object = 503) -> AgentEvent:
    told = {"text": "Try again", "kind": "retry", "status": status}
    return AgentEvent(AgentEventType.LOG, at, seq, "s", "r", told)


def test_nothing_but_retries_for_a_minute() -> None:
    waiting = Waiting(told=0)
    waiting.hear(retry(1, at=10.0, status=529))
    note = AgentEvent(AgentEventType.LOG, 20.0, 2, "s", "r", {"text": "Rate limit: allowed"})
    waiting.hear(note)
    assert waiting.doing(69.9) == "" and waiting.activity is Activity.WORKING
    waiting.hear(retry(3, at=60.0))
    assert waiting.doing(70.0) == "retrying (503) for 1 min"
    assert waiting.doing(310.0) == "retrying (503) for 5 min"
    waiting.hear(retry(4, at=70.0, status=1 << 60))
    assert waiting.doing(70.0) == "retrying for 1 min"
    said = AgentEvent(AgentEventType.MESSAGE_DELTA, 71.0, 5, "s", "r", {"text": "h"})
    waiting.hear(said)
    assert waiting.doing(1000.0) == ""
    waiting.hear(retry(6, at=990.0))
    assert waiting.doing(1000.0) == ""


def test_what_waits_has_a_bound() -> None:
    """Whatever can write in the agent's name: all of it is kept in memory, and told."""
    waiting = Waiting(told=0)
    for seq in range(2 * MOST_OPEN):
        waiting.hear(permission(seq, str(seq), input="x" * 10 * MAX_INPUT, name="n" * MAX_INPUT))
        called = {"id": f"q{seq}", "name": "ask_user"}
        waiting.hear(AgentEvent(AgentEventType.TOOL_CALL, 0.0, seq, "s", "r", called))
    waiting.hear(permission(1, "i" * MAX_INPUT))
    assert list(waiting.asking) == [str(seq) for seq in range(MOST_OPEN)]
    assert all(len(str(one)) < 2 * MAX_INPUT for one in waiting.asking.values())
    waiting.hear(permission(1, "0", decision="deny"))
    waiting.hear(permission(1, "later"))
    assert waiting.may_answer("later") and not waiting.may_answer("0")
