"""One suite for every frontend, in the real sandbox of a real daemon.

What needs no turn of its own looks at one of the frontend's day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import httpx
import pytest

from tests.agents.standins.script import INPUT_TOKENS, OUTPUT_TOKENS
from tests.conformance.days import Day, Days, days_at
from tests.conformance.desks import UNKNOWN_KEY, Desk, Turn, written
from tests.conformance.frontends import (
    ALL,
    CLAUDE,
    CLAUDE_ACP,
    CODEX,
    CODEX_ACP,
    PI,
    SCRIPTED,
    SDK,
    Case,
    able,
    together,
)
from tests.daemon.rig import Daemon, good
from tests.sampling import EXHAUSTIVE, beyond, every


def sampled(cases: Iterable[Case], *but: Case) -> list[Case]:
    """One frontend speaks for both that speak ACP, and one for both that start Claude's program.
    What is theirs alone is tried by `tests/agents/test_acp.py` and `test_agent_sdk.py`, and by the
    tests of permissions, servers and trust."""
    return [case for case in cases if EXHAUSTIVE or case not in (CLAUDE_ACP, SDK, *but)]


def working(cases: Iterable[Case] = ALL) -> list[Case]:
    """What an ACP agent does to files, and how it is stopped, is tried in `test_acp.py` too."""
    return sampled(cases, CODEX_ACP)


@pytest.fixture(scope="session")
def days(shared: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Days]:
    outside = tmp_path_factory.mktemp("outside")
    outside.chmod(0o755)
    with days_at(shared, outside) as found:
        yield found


@pytest.fixture(params=together(sampled(ALL)))
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def day(days: Days, case: Case) -> Day:
    return days.of(case)


@pytest.fixture
def desk(day: Day) -> Desk:
    return day.desk


# Talking


def test_one_turn_with_text(day: Day) -> None:
    turn, events = day.talk.first, day.talk.events
    assert turn["result"]["success"], turn
    assert "1: hello there" in turn["result"]["final_output"]
    kinds = [one["type"].removeprefix("agent.") for one in events]
    assert kinds[0] == "state" and kinds[-2:] == ["state", "complete"] and "message" in kinds
    assert events[0]["payload"]["payload"] == {"state": "running"}
    seqs = [one["payload"]["seq"] for one in events]
    assert seqs == sorted(set(seqs)) and seqs[0] == 1
    known = [one["payload"].get("continuation") for one in events]
    first = next(n for n, one in enumerate(known) if one is not None)
    assert set(map(str, known[first:])) == {str(turn["continuation"])}
    assert turn["continuation"]["provider"] == day.desk.case.provider


def test_a_conversation_goes_on(day: Day) -> None:
    talk = day.talk
    assert talk.second["result"]["success"], talk.second
    assert "2: once more" in talk.second["result"]["final_output"]
    assert talk.second["continuation"] == talk.first["continuation"]


@pytest.mark.parametrize("case", together(working()), indirect=True)
def test_another_conversation_is_another(day: Day) -> None:
    talk, fresh = day.talk, day.work.turn
    assert "1: anew" in fresh["result"]["final_output"]
    assert fresh["continuation"] != talk.first["continuation"]


@pytest.mark.parametrize("case", together(sampled(able("usage"))), indirect=True)
def test_what_is_used_is_counted_once(day: Day) -> None:
    """Some frontends tell what the whole conversation used, at every turn of it."""
    talk = day.talk
    for turn in (talk.first, talk.second):
        assert turn["usage"]["output_tokens"] == OUTPUT_TOKENS
        assert 0 < turn["usage"]["input_tokens"] <= INPUT_TOKENS
    assert talk.spent == {"turns": 2, "output_tokens": 2 * OUTPUT_TOKENS}


# Working


@pytest.mark.parametrize("case", together(working()), indirect=True)
def test_a_file_is_written_in_the_tree(day: Day) -> None:
    work = day.work
    assert work.turn["result"]["success"], work.turn
    assert day.desk.read("made.txt").strip() == "by the agent"
    kinds = {one["type"] for one in work.events}
    assert {"agent.tool_call", "agent.tool_result"} <= kinds


@pytest.mark.parametrize("case", together(working()), indirect=True)
def test_a_write_outside_is_refused(day: Day) -> None:
    tried = json.dumps([one for one in day.work.events if one["type"] == "agent.tool_call"])
    for path in day.work.outside:
        assert str(path) in tried and not path.exists()


@pytest.mark.parametrize("case", together(working()), indirect=True)
def test_documents_are_there_to_be_read(day: Day) -> None:
    desk, work = day.desk, day.work
    assert desk.read("copy") == "Be brief."
    assert good(desk.client.get(f"/v1/spaces/{desk.space}/context")) == {
        "files": [{"name": "the rules.md", "size": 9}]
    }
    if not desk.case.scripted:
        assert "/agent/context" in work.heard.texts()[0]


@pytest.mark.parametrize("case", together(working(able("attachments"))), indirect=True)
def test_files_go_with_a_prompt(day: Day) -> None:
    said = json.dumps([one.body for one in day.work.heard.requests])
    assert "/workspace/notes.txt" in said and "/agent/context/the rules.md" in said


# Refused


def code_of(answer: httpx.Response, desk: Desk) -> str:
    """Whether it was refused, or went wrong."""
    if answer.status_code >= 400:
        return str(answer.json()["code"])
    turn = desk.end(answer.json()["id"])
    assert not turn["result"]["success"] and turn["state"] == "error"
    last = desk.events(turn["id"])[-2:]
    assert [one["type"] for one in last] == ["agent.state", "agent.complete"]
    assert last[0]["payload"]["payload"]["error"]["code"] == turn["result"]["error"]["code"]
    return str(turn["result"]["error"]["code"])


@pytest.mark.parametrize("key", every(2, [UNKNOWN_KEY, "no-such-conversation"]))
def test_an_unknown_conversation(desk: Desk, key: str) -> None:
    asked = {"provider": desk.case.provider, "key": key}
    assert code_of(desk.begin("hello", continuation=asked), desk) == "continuation_not_found"


def test_another_providers_conversation(desk: Desk) -> None:
    asked = {"provider": "nobody", "key": UNKNOWN_KEY}
    assert code_of(desk.begin("hello", continuation=asked), desk) == "provider_mismatch"


@pytest.mark.parametrize("case", together(sampled(able("unknown_model"))), indirect=True)
def test_an_unknown_model(desk: Desk) -> None:
    answer = desk.begin("hello", model=desk.case.unknown_model)
    assert code_of(answer, desk) == "model_not_supported"


@pytest.mark.parametrize("case", together(working()), indirect=True)
def test_one_at_a_time(day: Day) -> None:
    refused = day.stopped.refused
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert day.stopped.turn["id"] in refused.json()["detail"]


# Stopped and killed


@pytest.mark.parametrize("case", together(working()), indirect=True)
def test_interrupt(day: Day) -> None:
    ended = day.stopped.turn
    assert ended["result"]["error"]["code"] == "interrupted", ended
    assert day.talk.first["result"]["success"]


# Carrel's own driver speaks for Pi and ACP agents: it is killed with them. Codex is
# in its terminal.
@pytest.mark.parametrize("case", together(sampled(ALL, CODEX_ACP, PI, CODEX)), indirect=True)
def test_killed_in_the_middle_and_gone_on_with(day: Day) -> None:
    """And the daemon is killed while it is gone on with."""
    desk, known = day.desk, day.talk.second["continuation"]
    turn = good(desk.begin(desk.case.wait(400), continuation=known))["id"]
    desk.works(turn, "400")
    good(desk.client.post(f"/v1/runs/{turn}/signal", json={"signal": "KILL"}))
    ended = desk.end(turn)
    assert ended["result"]["error"]["code"] == "agent_crashed", ended
    lines = ["still there", *late(desk, "working.txt")]
    again = good(desk.begin("\n".join(lines), continuation=known))["id"]
    desk.works(again, "working.txt")
    with desk.daemon_killed():
        pass
    found = desk.end(again)
    assert_whole(desk, found, "working.txt")
    assert found["continuation"] == known
    assert "still there" in found["result"]["final_output"]


# What is left to read after the end is the same for all that Carrel's own driver speaks for.
@pytest.mark.parametrize("case", together((SCRIPTED, *beyond(CLAUDE, CODEX))), indirect=True)
def test_it_ends_while_there_is_no_daemon(desk: Desk) -> None:
    turn = good(desk.begin("\n".join(late(desk, "ended.txt"))))["id"]
    with desk.daemon_killed():
        run = desk.daemon.data / "spaces" / desk.space / "runs" / turn
        desk.until((run / "exit.json").exists)
    assert_whole(desk, desk.end(turn), "ended.txt")


def late(desk: Desk, name: str) -> list[str]:
    """Writes a file some time after it has begun."""
    return [desk.case.wait(1), desk.case.write(name, "written")]


def assert_whole(desk: Desk, turn: Turn, name: str) -> None:
    """All of it was done, and all of it is told, once and in order."""
    assert turn["result"]["success"], turn
    assert desk.read(name).strip() == "written"
    events = desk.events(turn["id"])
    seqs = [one["payload"]["seq"] for one in events]
    assert seqs == sorted(set(seqs)) and seqs[0] == 1
    kinds = [one["type"] for one in events]
    assert kinds.count("agent.complete") == 1 and kinds[-1] == "agent.complete"
    assert {"agent.tool_call", "agent.tool_result"} <= set(kinds)


# Keys


@pytest.mark.parametrize("case", together(working(able("keys"))), indirect=True)
def test_two_at_once_with_their_own_keys(day: Day) -> None:
    for number, mine in enumerate(day.two):
        other = day.two[1 - number]
        assert mine.turn["result"]["success"], mine.turn
        assert mine.desk.read("own.txt").strip() == f"desk {number}"
        assert mine.key in mine.headers and other.key not in mine.headers


@pytest.mark.parametrize("case", together(working(able("keys"))), indirect=True)
def test_a_key_of_the_turns_own_is_used_and_kept_nowhere(day: Day) -> None:
    for keyed in day.two:
        assert keyed.key in keyed.headers
        assert f"sk-{day.desk.case.key}-planted" not in keyed.headers
        shown = json.dumps([keyed.turn, keyed.desk.events(keyed.turn["id"])])
        assert keyed.key not in shown + keyed.desk.daemon.log()
    keys = [keyed.key.encode() for keyed in day.two]
    for path in written(day.desk.daemon.data):
        content = path.read_bytes()
        assert not any(key in content for key in keys), path


@pytest.mark.parametrize("case", together(sampled(able("keys"))), indirect=True)
def test_the_key_is_given_and_shown_nowhere(day: Day) -> None:
    desk, turn = day.desk, day.talk.first
    planted = f"sk-{desk.case.key}-planted"
    assert planted in day.talk.headers
    shown = json.dumps([turn, day.talk.events])
    shown += desk.client.get(f"/v1/spaces/{desk.space}").text
    shown += desk.client.get(f"/v1/runs/{turn['id']}").text
    shown += desk.client.get("/v1/credentials").text + desk.daemon.log()
    assert planted not in shown
    for path in written(desk.daemon.data):
        # What an agent has written into its own tree is in the checkpoints of that, too.
        if path.parent.name != "auth" and "checkpoints" not in path.parts:
            assert planted.encode() not in path.read_bytes(), path
