"""One suite for every frontend, in the real sandbox of a real daemon."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents.installed import require_programs
from tests.agents.standins import Standin, serving
from tests.agents.standins.script import INPUT_TOKENS, OUTPUT_TOKENS
from tests.conformance.frontends import CASES, CLAUDE, CODEX, PROGRAMS, SCRIPTED, Case, able
from tests.daemon.rig import Daemon, good

TURN_S = 60.0
"""For one turn of a real agent on two busy cores."""
Turn = dict[str, Any]
UNKNOWN_KEY = "0b5bd2f4-31ac-4c57-9f2b-1f0a4c1d9e77"


class Desk:
    """A space, its agent, and a stand-in for the model."""

    def __init__(self, daemon: Daemon, case: Case, standin: Standin) -> None:
        if case.by_npm:
            require_programs()
        self.daemon = daemon
        self.case = case
        self.standin = standin
        self.client = daemon.local()
        self.space = good(self.client.post("/v1/spaces", json={"agent": case.name}))["id"]

    def begin(self, prompt: str, **options: Any) -> httpx.Response:
        own = {"env": self.case.env(self.standin.url), "model": self.case.model}
        body = {"prompt": prompt, **own, **options}
        return self.client.post(f"/v1/spaces/{self.space}/turns", json=body)

    def turn(self, prompt: str, **options: Any) -> Turn:
        return self.end(good(self.begin(prompt, **options))["id"])

    def end(self, turn: str) -> Turn:
        until = time.monotonic() + TURN_S
        while True:
            found = good(self.client.get(f"/v1/turns/{turn}", params={"wait_s": 20}))
            if found["state"] != "running":
                return dict(found)
            assert time.monotonic() < until, self.events(turn)

    def events(self, turn: str) -> list[dict[str, Any]]:
        """All that is kept of it, as the log has them."""
        with self.daemon.websocket("/v1/hub") as hub:
            register = {"kind": "app", "subscriptions": {"types": ["*"], "spaces": [self.space]}}
            hub.send(json.dumps({"type": "client_register", "id": "r", "payload": register}))
            replay = {"space": self.space, "seq": 0}
            hub.send(json.dumps({"type": "buffer_replay", "id": "p", "payload": replay}))
            found, last = [], None
            while last is None or (last > 0 and (not found or found[-1]["seq"] < last)):
                envelope = json.loads(hub.recv(timeout=TURN_S))
                if envelope.get("reply_to") == "p":
                    last = envelope["payload"]["data"]["replay_to"][self.space]
                elif "seq" in envelope and last is not None:
                    found.append(envelope)
        ours = [one for one in found if one["type"].startswith("agent.")]
        return [one for one in ours if one["payload"]["run_id"] == turn]

    def read(self, path: str) -> str:
        answer = self.client.get(f"/v1/spaces/{self.space}/files", params={"path": path})
        return answer.text if answer.status_code == 200 else f"{answer.status_code}"

    def works(self, turn: str, text: str) -> None:
        """Returns when the agent has begun with what it was told."""
        if self.case.scripted:
            self._until(lambda: len(self.events(turn)) > 1)
        else:
            self._until(lambda: any(text in one for one in self.standin.texts()))

    @staticmethod
    def _until(holds: Callable[[], bool]) -> None:
        until = time.monotonic() + TURN_S
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.02)


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("frontends")
    folder.chmod(0o711)
    daemon = Daemon(folder / "data")
    equip(daemon)
    try:
        yield daemon
    finally:
        daemon.close()


def equip(daemon: Daemon) -> None:
    """With the pinned programs, as if it had installed them."""
    own = daemon.data / "agents"
    own.mkdir(parents=True)
    for case in CASES:
        (own / case.name).symlink_to(PROGRAMS, target_is_directory=True)
    daemon.start()
    client = daemon.local()
    for name in ("anthropic", "openai"):
        good(client.put(f"/v1/credentials/{name}", json={"value": f"sk-{name}-planted"}))


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def desk(shared: Daemon, case: Case, standin: Standin) -> Desk:
    return Desk(shared, case, standin)


def test_one_turn_with_text(desk: Desk) -> None:
    turn = desk.turn("hello there")
    assert turn["result"]["success"], turn
    assert "1: hello there" in turn["result"]["final_output"]
    events = desk.events(turn["id"])
    kinds = [one["type"].removeprefix("agent.") for one in events]
    assert kinds[0] == "state" and kinds[-2:] == ["state", "complete"] and "message" in kinds
    assert events[0]["payload"]["payload"] == {"state": "running"}
    seqs = [one["payload"]["seq"] for one in events]
    assert seqs == sorted(set(seqs)) and seqs[0] == 1
    known = [one["payload"].get("continuation") for one in events]
    first = next(n for n, one in enumerate(known) if one is not None)
    assert set(map(str, known[first:])) == {str(turn["continuation"])}
    assert turn["continuation"]["provider"] == desk.case.provider


def test_a_file_is_written_in_the_tree(desk: Desk) -> None:
    turn = desk.turn(desk.case.write("made.txt", "by the agent"))
    assert turn["result"]["success"], turn
    assert desk.read("made.txt").strip() == "by the agent"
    kinds = {one["type"] for one in desk.events(turn["id"])}
    assert {"agent.tool_call", "agent.tool_result"} <= kinds


def test_a_conversation_goes_on(desk: Desk) -> None:
    first = desk.turn("hello")
    second = desk.turn("once more", continuation=first["continuation"])
    assert second["result"]["success"], second
    assert "2: once more" in second["result"]["final_output"]
    assert second["continuation"] == first["continuation"]
    fresh = desk.turn("anew")
    assert "1: anew" in fresh["result"]["final_output"]
    assert fresh["continuation"] != first["continuation"]


@pytest.mark.parametrize("case", able("usage"), indirect=True, ids=str)
def test_what_is_used_is_counted_once(desk: Desk) -> None:
    """Some frontends tell what the whole conversation used, at every turn of it."""
    first = desk.turn("hello")
    second = desk.turn("once more", continuation=first["continuation"])
    for turn in (first, second):
        assert turn["usage"]["output_tokens"] == OUTPUT_TOKENS
        assert 0 < turn["usage"]["input_tokens"] <= INPUT_TOKENS
    spent = good(desk.client.get(f"/v1/spaces/{desk.space}"))["spent"]
    assert (spent["turns"], spent["output_tokens"]) == (2, 2 * OUTPUT_TOKENS)


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


@pytest.mark.parametrize("key", [UNKNOWN_KEY, "no-such-conversation"])
def test_an_unknown_conversation(desk: Desk, key: str) -> None:
    asked = {"provider": desk.case.provider, "key": key}
    assert code_of(desk.begin("hello", continuation=asked), desk) == "continuation_not_found"


def test_another_providers_conversation(desk: Desk) -> None:
    asked = {"provider": "nobody", "key": UNKNOWN_KEY}
    assert code_of(desk.begin("hello", continuation=asked), desk) == "provider_mismatch"


@pytest.mark.parametrize("case", able("unknown_model"), indirect=True, ids=str)
def test_an_unknown_model(desk: Desk) -> None:
    answer = desk.begin("hello", model=desk.case.unknown_model)
    assert code_of(answer, desk) == "model_not_supported"


def test_interrupt(desk: Desk) -> None:
    turn = good(desk.begin(desk.case.wait(300)))["id"]
    desk.works(turn, "300")
    good(desk.client.post(f"/v1/turns/{turn}/interrupt"))
    ended = desk.end(turn)
    assert ended["result"]["error"]["code"] == "interrupted", ended
    assert desk.turn("and now")["result"]["success"]


def test_killed_in_the_middle_and_gone_on_with(desk: Desk) -> None:
    first = desk.turn("hello")
    turn = good(desk.begin(desk.case.wait(300), continuation=first["continuation"]))["id"]
    desk.works(turn, "300")
    good(desk.client.post(f"/v1/runs/{turn}/signal", json={"signal": "KILL"}))
    ended = desk.end(turn)
    assert ended["result"]["error"]["code"] == "agent_crashed", ended
    again = desk.turn("still there", continuation=first["continuation"])
    assert again["result"]["success"] and again["continuation"] == first["continuation"], again
    assert "still there" in again["result"]["final_output"]


def test_one_at_a_time(desk: Desk) -> None:
    turn = good(desk.begin(desk.case.wait(300)))["id"]
    refused = desk.begin("me too")
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert turn in refused.json()["detail"]
    desk.works(turn, "300")
    good(desk.client.post(f"/v1/turns/{turn}/interrupt"))
    desk.end(turn)


@pytest.mark.parametrize("case", able("keys"), indirect=True, ids=str)
def test_two_at_once_with_their_own_keys(shared: Daemon, case: Case, standin: Standin) -> None:
    with serving() as other:
        desks = [Desk(shared, case, one) for one in (standin, other)]
        variable = f"{case.key.upper()}_API_KEY"
        turns = []
        for number, desk in enumerate(desks):
            env = {**case.env(desk.standin.url), variable: f"sk-key-{number}"}
            turns.append(good(desk.begin(case.write("own.txt", f"desk {number}"), env=env)))
        for number, (desk, turn) in enumerate(zip(desks, turns, strict=True)):
            assert desk.end(turn["id"])["result"]["success"]
            assert desk.read("own.txt").strip() == f"desk {number}"
            seen = " ".join(str(dict(one.headers)) for one in desk.standin.requests)
            assert f"sk-key-{number}" in seen and f"sk-key-{1 - number}" not in seen


@pytest.mark.parametrize("case", able("keys"), indirect=True, ids=str)
def test_the_key_is_given_and_shown_nowhere(desk: Desk) -> None:
    planted = f"sk-{desk.case.key}-planted"
    turn = desk.turn("hello")
    headers = " ".join(str(dict(one.headers)) for one in desk.standin.requests)
    assert planted in headers
    shown = json.dumps([turn, desk.events(turn["id"])])
    shown += desk.client.get(f"/v1/spaces/{desk.space}").text
    shown += desk.client.get(f"/v1/runs/{turn['id']}").text
    shown += desk.client.get("/v1/credentials").text + desk.daemon.log()
    assert planted not in shown
    for path in written(desk.daemon.data):
        if path.parent.name != "auth":
            assert planted.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("case", able("keys"), indirect=True, ids=str)
def test_a_key_of_the_turns_own_is_used_and_kept_nowhere(desk: Desk) -> None:
    planted = f"sk-{desk.case.key}-of-the-turn-alone"
    env = {**desk.case.env(desk.standin.url), f"{desk.case.key.upper()}_API_KEY": planted}
    turn = desk.turn("hello", env=env)
    headers = " ".join(str(dict(one.headers)) for one in desk.standin.requests)
    assert planted in headers and f"sk-{desk.case.key}-planted" not in headers
    assert planted not in json.dumps([turn, desk.events(turn["id"])]) + desk.daemon.log()
    for path in written(desk.daemon.data):
        assert planted.encode() not in path.read_bytes(), path


def written(data: Path) -> Iterator[Path]:
    """Every file of the data folder; what agents are given to read is not followed."""
    for above, _folders, files in os.walk(data):
        for name in files:
            path = Path(above, name)
            if path.is_file() and not path.is_symlink():
                yield path


def test_documents_are_there_to_be_read(desk: Desk) -> None:
    where = f"/v1/spaces/{desk.space}/context/the rules.md"
    good(desk.client.put(where, content=b"Be brief."))
    turn = desk.turn(desk.case.run("cp '/agent/context/the rules.md' copy"))
    assert turn["result"]["success"], turn
    assert desk.read("copy") == "Be brief."
    desk.turn(desk.case.run("sh -c 'echo no > /agent/context/more; rm /agent/context/*'"))
    assert good(desk.client.get(f"/v1/spaces/{desk.space}/context")) == {
        "files": [{"name": "the rules.md", "size": 9}]
    }
    if not desk.case.scripted:
        assert "/agent/context" in desk.standin.texts()[0]


@pytest.mark.parametrize("case", able("attachments"), indirect=True, ids=str)
def test_files_go_with_a_prompt(desk: Desk) -> None:
    tree, context = f"/v1/spaces/{desk.space}/files", f"/v1/spaces/{desk.space}/context"
    good(desk.client.put(tree, params={"path": "notes.txt"}, content=b"in the tree"))
    good(desk.client.put(f"{context}/given.txt", content=b"given"))
    attached = [{"path": "notes.txt"}, {"path": "given.txt", "folder": "context"}]
    turn = desk.turn("look at these", attachments=attached)
    assert turn["result"]["success"], turn
    said = json.dumps([one.body for one in desk.standin.requests])
    assert "/workspace/notes.txt" in said and "/agent/context/given.txt" in said


def test_a_write_outside_is_refused(desk: Desk, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    tmp_path.chmod(0o777)
    desk.turn(desk.case.write(str(outside), "never"))
    desk.turn(desk.case.run(f"sh -c 'echo never > {outside}'"))
    assert not outside.exists()


# What is left to read after the end is the same for all that Carrel's own driver speaks for.
KILLED = [
    *((case, "working") for case in CASES),
    *((case, "after its end") for case in (SCRIPTED, CLAUDE, CODEX)),
]


@pytest.mark.parametrize(("case", "moment"), KILLED, indirect=["case"], ids=str)
def test_the_daemon_is_killed(case: Case, standin: Standin, data: Path, moment: str) -> None:
    daemon = Daemon(data / "data")
    with contextlib.closing(daemon):
        equip(daemon)
        desk = Desk(daemon, case, standin)
        script = "\n".join([case.wait(2), case.write("late.txt", "written")])
        turn = good(desk.begin(script))["id"]
        if moment == "working":
            desk.works(turn, "late.txt")
        daemon.kill()
        if moment != "working":
            run = data / "data" / "spaces" / desk.space / "runs" / turn
            Desk._until((run / "exit.json").exists)
        daemon.start()
        desk.client = daemon.local()
        ended = desk.end(turn)
        assert ended["result"]["success"], ended
        assert desk.read("late.txt").strip() == "written"
        seqs = [one["payload"]["seq"] for one in desk.events(turn)]
        assert seqs == sorted(set(seqs)) and seqs[0] == 1
        kinds = [one["type"] for one in desk.events(turn)]
        assert kinds.count("agent.complete") == 1 and kinds[-1] == "agent.complete"
        assert {"agent.tool_call", "agent.tool_result"} <= set(kinds)
