"""Agents that ask Carrel for spaces, from inside real sandboxes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from carrel import __version__
from carrel.api.types.hub import SYSTEM_REQUESTS
from carrel.domain.hub import ANSWER, NOT_YOURS
from tests.daemon.hub_rig import PYTHON, line_to, make, speak
from tests.daemon.rig import Daemon, bad, fresh_daemon, good

# They share a daemon.
pytestmark = pytest.mark.xdist_group("families")


@pytest.fixture(scope="module")
def _daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def daemon(_daemon: Daemon) -> Iterator[Daemon]:
    """One for all; no test leaves a space to the next."""
    yield _daemon
    with _daemon.local() as client:
        for one in good(client.get("/v1/spaces"))["spaces"]:
            good(client.delete(f"/v1/spaces/{one['id']}", params={"force": True}))


def ask(daemon: Daemon, inside: str, type: str, /, **payload: Any) -> dict[str, Any]:
    (answer,) = speak(daemon, inside, {"type": type, "id": "x", "payload": payload})
    return answer


def data(answer: dict[str, Any]) -> dict[str, Any]:
    assert answer.get("status") == "success", answer
    return dict(answer["data"])


def run(daemon: Daemon, space: str, script: str) -> str:
    with daemon.local() as client:
        body = {"argv": ["sh", "-c", script]}
        done = good(client.post(f"/v1/spaces/{space}/exec", json=body))
    assert done["run"]["exit"]["code"] == 0, done
    return str(done["stdout"])


def test_an_agent_has_a_family_and_nobody_else(daemon: Daemon) -> None:
    own, stranger = make(daemon, labels={"team": "blue"}), make(daemon)
    made = data(
        ask(
            daemon,
            own,
            "system_spawn_space",
            name="helper",
            description="does the half",
            initial_prompt="do your half",
        )
    )["space"]
    child = made["id"]
    assert (made["state"], made["parent"], made["description"]) == ("ready", own, "does the half")
    with daemon.local() as client:
        shown, parent = (good(client.get(f"/v1/spaces/{one}")) for one in (child, own))
    assert (shown["labels"], shown["parent"], shown["network"]) == ({"team": "blue"}, own, "none")
    assert shown["limits"]["disk_bytes"] == parent["default_disk_bytes"] > 0

    listed = data(ask(daemon, own, "system_list_spaces"))["spaces"]
    assert [one["id"] for one in listed] == [own, child]
    state = data(ask(daemon, child, "system_space_state"))["space"]
    assert (state["id"], state["parent"], state["children"]) == (child, own, [])
    assert data(ask(daemon, own, "system_space_state"))["space"]["children"] == [child]
    # Those that its parent made besides do not exist for it.
    sibling = data(ask(daemon, own, "system_spawn_space", name="sibling"))["space"]["id"]
    seen = data(ask(daemon, child, "system_space_state", space=own))["space"]["children"]
    assert seen == [child]
    data(ask(daemon, own, "system_delete_space", space=sibling))
    asked: list[tuple[str, dict[str, Any]]] = [
        ("system_space_state", {"space": stranger}),
        ("system_message_space", {"space": stranger, "text": "hello"}),
        ("system_wait_for_space", {"space": stranger, "seconds": 1}),
        ("system_delete_space", {"space": stranger}),
    ]
    for type, payload in asked:
        assert ask(daemon, own, type, **payload)["code"] == "space_not_found"

    read = data(ask(daemon, child, "system_read_messages"))
    (prompt,) = read["messages"]
    assert prompt["payload"]["text"] == "do your half" and prompt["sender"]["space"] == own
    data(ask(daemon, child, "system_message_space", space=own, text="done"))
    (answer,) = data(ask(daemon, own, "system_read_messages"))["messages"]
    assert (answer["payload"]["text"], answer["sender"]["space"]) == ("done", child)
    later = data(ask(daemon, own, "system_read_messages", after=answer["seq"]))
    assert later["messages"] == []


def test_this_program_works_in_every_space(daemon: Daemon) -> None:
    """However it was installed, and without an agent there. It speaks to the space's own hub."""
    own = make(daemon)
    said = run(daemon, own, "carrel --version; carrel log 'half done'; carrel hub dump")
    assert said.startswith(f"carrel, version {__version__}") and "half done" in said


def test_an_agent_changes_and_deletes_what_is_its_own(daemon: Daemon) -> None:
    own = make(daemon)
    changed = data(ask(daemon, own, "system_update_space", name="mine", description="all of it"))
    assert (changed["space"]["name"], changed["space"]["description"]) == ("mine", "all of it")
    bad = ask(daemon, own, "system_update_space", name="NOT A NAME")
    assert bad["code"] == "space_invalid"
    child = data(ask(daemon, own, "system_spawn_space"))["space"]["id"]
    assert ask(daemon, own, "system_update_space", space=child, name="x")["code"] == "forbidden"
    assert ask(daemon, child, "system_delete_space", space=own)["code"] == "forbidden"
    run(daemon, child, "echo work > file")
    refused = ask(daemon, own, "system_delete_space", space=child)
    assert refused["code"] == "unexported_changes"

    def question(number: str, text: str) -> dict[str, Any]:
        payload = {"question": text, "choices": ["yes", "no"]}
        type = "buffer_user_question"
        return {"type": type, "id": number, "space": own, "payload": payload}

    speak(daemon, own, question("q6", "Run the tests?"), question("q7", f"Delete {child}?"))
    refused = ask(daemon, own, "system_delete_space", space=child, agreed="q7")
    assert refused["code"] == "unexported_changes", "nobody has answered"
    with line_to(daemon, kind="cli") as person:
        for number in ("q6", "q7"):
            payload = {"answer": "Yes"}
            person.send("buffer_user_answer", payload, id=number, space=own, reply_to=number)
            while person.receive().get("type") != "response":
                pass
    refused = ask(daemon, own, "system_delete_space", space=child, agreed="q6")
    assert refused["code"] == "unexported_changes", "a yes to something else"
    gone = data(ask(daemon, own, "system_delete_space", space=child, agreed="q7"))
    assert gone == {"removed": child}
    waited = ask(daemon, own, "system_wait_for_space", space=child, seconds=1)
    assert waited["code"] == "space_not_found"


def test_what_is_answered_as_json(daemon: Daemon, tmp_path: Path) -> None:
    """To every request: these members in this order, times as numbers, null where there is none."""
    (tmp_path / "kept").write_bytes(b"\xff")
    own = make(daemon, project={"kind": "folder", "location": str(tmp_path)}, name="answering")
    wanted: dict[str, dict[str, Any]] = {
        "system_update_space": {"description": "the work"},
        "system_spawn_space": {"name": "answered", "initial_prompt": "go"},
        "system_space_state": {},
        "system_list_spaces": {},
        "system_wait_for_space": {"space": "answered", "states": ["ready"]},
        "system_message_space": {"space": "answering", "text": "hello", "data": {"n": 1}},
        "system_read_messages": {"limit": 1},
        "system_list_changes": {"space": "answered"},
        "system_read_file": {"space": "answered", "path": "kept"},
        "system_take_changes": {"space": "answered"},
        "system_checkpoint": {"message": "half way"},
        "system_delete_space": {"space": "answered"},
    }
    assert set(wanted) == set(SYSTEM_REQUESTS)
    said = [{"type": type, "id": type, "payload": one} for type, one in wanted.items()]
    found = dict(zip(wanted, map(data, speak(daemon, own, *said)), strict=True))
    at, child_at = (found["system_list_spaces"]["spaces"][n]["created_at"] for n in (0, 1))
    assert all(isinstance(one, float) for one in (at, child_at))
    child = found["system_spawn_space"]["space"]["id"]
    about = {
        **{"id": own, "name": "answering", "state": "running", "description": "the work"},
        **{"parent": "", "project": tmp_path.name, "network": "none", "created_at": at},
        "problem": None,
    }
    about_child = {**about, "id": child, "name": "answered", "description": "", "parent": own}
    about_child |= {"state": "ready", "created_at": child_at}
    (message,) = found["system_read_messages"]["messages"]
    assert list(message) == ["type", "id", "ts", "sender", "payload", "space", "seq"]
    assert message["payload"] == {"text": "hello", "data": {"n": 1}}
    seq = message["seq"]
    kept = found["system_checkpoint"]["id"]
    assert kept.startswith("ck_")
    expected = {
        "system_update_space": {"space": about},
        "system_spawn_space": {"space": about_child},
        "system_space_state": {"space": {**about, "children": [child]}},
        "system_list_spaces": {"spaces": [about, about_child]},
        "system_wait_for_space": {"space": about_child, "reached": True, "turn": None},
        "system_message_space": {"seq": seq, "turn": ""},
        "system_list_changes": {"changes": [], "total": 0, "commits": 0},
        "system_read_file": {"text": None, "base64": "/w==", "next": None},
        "system_take_changes": {"written": [], "deleted": [], "left": []},
        "system_checkpoint": {"id": kept, "files": 0, "changed": 0},
        "system_read_messages": {"messages": [message], "next": seq},
        "system_delete_space": {"removed": child},
    }
    for type, one in expected.items():
        assert json.dumps(found[type]) == json.dumps(one), type
        read = msgspec.convert(one, SYSTEM_REQUESTS[type].answer)
        assert json.dumps(msgspec.to_builtins(read)) == json.dumps(one), type


def test_waiting_for_a_space(daemon: Daemon) -> None:
    own = make(daemon)
    child = data(ask(daemon, own, "system_spawn_space"))["space"]["id"]
    early = data(ask(daemon, own, "system_wait_for_space", space=child, seconds=0))
    assert (early["reached"], early["space"]["state"]) == (False, "ready")
    with line_to(daemon) as line:
        payload = {"space": child, "states": ["stopped"], "seconds": 60}
        line.send("system_wait_for_space", payload, id="w")
        with daemon.local() as client:
            good(client.post(f"/v1/spaces/{child}/stop"))
        answer = line.receive()
        while answer.get("reply_to") != "w":
            answer = line.receive()
    assert answer["payload"]["data"]["reached"] is True
    assert answer["payload"]["data"]["space"]["state"] == "stopped"


def test_there_is_an_end_to_it(daemon: Daemon) -> None:
    """Neither endless depth nor endless breadth."""
    spaces = [make(daemon)]
    for _ in range(3):
        spaces.append(data(ask(daemon, spaces[-1], "system_spawn_space"))["space"]["id"])
    assert ask(daemon, spaces[-1], "system_spawn_space")["code"] == "forbidden"
    codes = [one.get("code") for one in at_once(daemon, spaces[0], 8)]
    assert sorted(codes, key=str) == [None] * 7 + ["state_conflict"], "however they hurry"


def at_once(daemon: Daemon, inside: str, number: int) -> list[dict[str, Any]]:
    """What it is answered that asks for so many spaces before it has heard of the first."""
    body = {"argv": [PYTHON, "-c", _AT_ONCE, str(number)]}
    with daemon.local() as client:
        done = good(client.post(f"/v1/spaces/{inside}/exec", json=body))
    assert done["run"]["exit"]["code"] == 0, done
    return [json.loads(line)["payload"] for line in done["stdout"].splitlines()]


_AT_ONCE = """
import json, os, socket, sys
hub = socket.socket(socket.AF_UNIX)
hub.connect(os.environ["CARREL_HUB"])
lines = hub.makefile("rw")
print('{"type": "client_register", "id": "r", "payload": {"kind": "agent"}}', file=lines)
for number in range(int(sys.argv[1])):
    print('{"type": "system_spawn_space", "id": "s%d"}' % number, file=lines)
lines.flush()
left = int(sys.argv[1])
while left:
    line = lines.readline()
    if json.loads(line).get("reply_to", "r") != "r":
        print(line, end="")
        left -= 1
"""


def test_from_outside_the_caller_decides(daemon: Daemon) -> None:
    with line_to(daemon) as line:
        line.send("system_spawn_space", {"name": "made-outside"}, id="m")
        answer = line.receive()
        while answer.get("reply_to") != "m":
            answer = line.receive()
        made = answer["payload"]["data"]["space"]
        assert (made["name"], made["parent"], made["state"]) == ("made-outside", "", "ready")
        line.send("system_list_spaces", {}, id="l")
        while answer.get("reply_to") != "l":
            answer = line.receive()
        assert made["id"] in [one["id"] for one in answer["payload"]["data"]["spaces"]]


def test_an_agent_asks_for_another_agent(daemon: Daemon) -> None:
    """It begins with its work at once, and has no more of a network than who asked for it."""
    own = make(daemon)
    wanted = {"frontend": "scripted", "initial_prompt": "write half.txt done"}
    child = data(ask(daemon, own, "system_spawn_space", **wanted))["space"]["id"]
    with daemon.local() as client:
        (turn,) = good(client.get(f"/v1/spaces/{child}/turns"))["turns"]
        ended = good(client.get(f"/v1/turns/{turn['id']}", params={"wait_s": 60}))
        assert ended["result"]["success"], ended
        path = {"path": "half.txt"}
        assert client.get(f"/v1/spaces/{child}/files", params=path).text == "done\n"
    refused = ask(daemon, own, "system_spawn_space", frontend="nobody")
    assert refused["code"] == "unsupported_frontend"


AGENT = "claude-code"


def questions(daemon: Daemon) -> list[dict[str, Any]]:
    with daemon.local() as client:
        return list(good(client.get("/v1/inbox"))["items"])


@pytest.fixture
def equipped(daemon: Daemon) -> Iterator[None]:
    with daemon.equipped(AGENT):
        yield


@pytest.mark.usefixtures("equipped")
def test_what_a_space_has_not_is_a_persons_to_give(daemon: Daemon) -> None:
    """Code in a space without an agent gets none that has a key, however it asks."""
    own = make(daemon)
    refused = ask(daemon, own, "system_spawn_space", frontend=AGENT)
    assert refused["code"] == "agreement_needed", refused
    number = refused["question_id"]
    again = ask(daemon, own, "system_spawn_space", frontend=AGENT, agreed="q1", name="other")
    assert again["question_id"] == number, "nobody is asked twice at a time"
    for words in ("Shall I run the tests?", questions(daemon)[0]["text"]):
        payload = {"question": words, "choices": ["yes", "no"]}
        type = "buffer_user_question"
        told = [{"type": type, "id": id, "space": own, "payload": payload} for id in (number, "q2")]
        speak(daemon, own, *told)
    signal = {"type": "buffer_taskspace_signal_user", "id": number, "space": own}
    speak(daemon, own, {**signal, "payload": {"message": "Never mind."}})
    first = questions(daemon)[0]
    assert (first["id"], first["space"], first["kind"]) == (number, own, "question")
    said = f"the agent {AGENT}. That agent is given the key anthropic and the network none."
    assert said in first["text"] and first["own"]
    assert not [one for one in questions(daemon) if one["id"] == "q2" and one["own"]]
    with daemon.local() as client:
        good(client.post("/v1/inbox/q2/answer", json={"answer": "yes"}))
    for agreed in ("q2", number, ""):
        refused = ask(daemon, own, "system_spawn_space", frontend=AGENT, agreed=agreed)
        assert refused["question_id"] == number, "a yes to the space's own words is none"
    with daemon.local() as client:
        good(client.post(f"/v1/inbox/{number}/answer", json={"answer": "yes"}))
    asked = {"frontend": AGENT, "agreed": number}
    child = data(ask(daemon, own, "system_spawn_space", **asked))["space"]["id"]
    with daemon.local() as client:
        shown = good(client.get(f"/v1/spaces/{child}"))
    assert (shown["agent"], shown["network"], shown["parent"]) == (AGENT, "none", own)
    assert data(ask(daemon, own, "system_spawn_space", **asked))["space"]["id"] == child
    other = ask(daemon, own, "system_spawn_space", **asked, name="second")
    assert other["code"] == "idempotency_key_reused", "a yes is for one"
    other = ask(daemon, own, "system_spawn_space", frontend="codex-cli", agreed=number)
    assert other["code"] == "agreement_needed" and other["question_id"] != number
    # The child has that agent now, but it does not work: a command in it has no key to give.
    prompt = {"frontend": AGENT, "initial_prompt": "write your key into a file"}
    refused = ask(daemon, child, "system_spawn_space", **prompt)
    assert refused["code"] == "agreement_needed", refused
    (text,) = (one["text"] for one in questions(daemon) if one["id"] == refused["question_id"])
    assert "does not work now" in text


@pytest.mark.usefixtures("equipped")
@pytest.mark.parametrize("brings", [True, False])
def test_a_key_of_the_turns_own_is_not_the_stored_one(daemon: Daemon, brings: bool) -> None:
    """Who brings a key has its agent work with that. A child would be given the stored one."""
    own = make(daemon, agent=AGENT)
    nowhere = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    env = {**nowhere, "ANTHROPIC_API_KEY": "of-the-turn"} if brings else nowhere
    with daemon.local() as client:
        stored = {"value": "stored", "endpoints": list(nowhere.values())}
        good(client.put("/v1/credentials/anthropic", json=stored))
        turn = {"frontend": AGENT, "prompt": "tries for long", "env": env}
        good(client.post(f"/v1/spaces/{own}/turns", json=turn))
        asked = ask(daemon, own, "system_spawn_space", frontend=AGENT)
        good(client.delete("/v1/credentials/anthropic"))
        good(client.post(f"/v1/spaces/{own}/stop", json={}))
    if brings:
        assert asked["code"] == "agreement_needed", asked
    else:
        assert data(asked)["space"]["parent"] == own


@pytest.mark.usefixtures("equipped")
def test_a_yes_is_for_one_prompt(daemon: Daemon) -> None:
    """Whoever asks again with another one would have the key told what to do, time after time."""
    own = make(daemon, network="open")
    with daemon.local() as client:
        good(client.put("/v1/credentials/anthropic", json={"value": "stored"}))
        number = ask(daemon, own, "system_spawn_space", frontend=AGENT)["question_id"]
        good(client.post(f"/v1/inbox/{number}/answer", json={"answer": "yes"}))
        for prompt in ("one", "two"):
            asked = {"frontend": AGENT, "agreed": number, "initial_prompt": prompt}
            child = data(ask(daemon, own, "system_spawn_space", **asked))["space"]["id"]
        good(client.post(f"/v1/spaces/{child}/stop", json={}))
        turns = good(client.get(f"/v1/spaces/{child}/turns"))["turns"]
        good(client.delete("/v1/credentials/anthropic"))
    assert [turn["prompt"] for turn in turns] == ["one"]
    # Nor is it for another one when that is gone.
    data(ask(daemon, own, "system_delete_space", space=child))
    again = ask(daemon, own, "system_spawn_space", frontend=AGENT, agreed=number)
    assert again["code"] == "agreement_needed" and again["question_id"] != number, again


@pytest.mark.parametrize("scope", ["space:{}", "label:team=blue"])
def test_who_has_less_than_the_owner_agrees_to_nothing(daemon: Daemon, scope: str) -> None:
    own = make(daemon, agent="scripted", labels={"team": "blue"})
    secret = daemon.token(scope.format(own))
    number = ask(daemon, own, "system_spawn_space", frontend=AGENT)["question_id"]
    with daemon.tcp(secret) as client:
        for answer in ("yes", "no"):
            answered = client.post(f"/v1/inbox/{number}/answer", json={"answer": answer})
            bad(answered, 403, "forbidden")
    refused = ask(daemon, own, "system_spawn_space", frontend=AGENT, agreed=number)
    assert refused["question_id"] == number, "the owner can still answer it"
    for sender in ({}, {"owner": True}):
        told = answer_on_hub(daemon, secret, own, number, **sender)
        assert (told["code"], told["message"]) == ("forbidden", NOT_YOURS), told
    with daemon.tcp_websocket("/v1/hub", secret) as hub:
        say(hub, "client_register", {"kind": "app"})
        many = {"messages": [{"type": ANSWER, "payload": {"answer": "no"}, "reply_to": number}]}
        assert say(hub, "buffer_publish", many, space=own)["code"] == "forbidden"
    refused = ask(daemon, own, "system_spawn_space", frontend=AGENT, agreed=number)
    assert refused["question_id"] == number, "it is still open"
    with daemon.local() as client:
        good(client.post(f"/v1/inbox/{number}/answer", json={"answer": "no"}))
    refused = ask(daemon, own, "system_spawn_space", frontend=AGENT, agreed=number)
    assert refused["code"] == "forbidden"
    with daemon.local() as client:
        assert [one["id"] for one in good(client.get("/v1/spaces"))["spaces"]] == [own]


def answer_on_hub(
    daemon: Daemon, secret: str, space: str, number: str, **claims: bool
) -> dict[str, Any]:
    """Says yes, and gives what came of that; at most once with what it claims to be."""
    with daemon.tcp_websocket("/v1/hub", secret) as hub:
        welcome = data(say(hub, "client_register", {"kind": "app"}))
        said: dict[str, Any] = {"space": space, "reply_to": number}
        if claims:
            sender = {"client_id": welcome["client_id"], "kind": "app", **claims}
            told = say(hub, ANSWER, {"answer": "yes"}, **said, sender=sender)
            assert told["code"] == "forbidden", told
        return say(hub, ANSWER, {"answer": "yes"}, **said)


def say(hub: Any, type: str, payload: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Over a WebSocket; gives the payload of the answer."""
    hub.send(json.dumps({"type": type, "id": type, "payload": payload, **fields}))
    while True:
        envelope = json.loads(hub.recv())
        if envelope.get("reply_to") == type:
            return dict(envelope["payload"])


LOGIN = "sk-ant-oat01-of-the-owner"


@pytest.fixture
def recording(daemon: Daemon) -> Iterator[None]:
    """The owner has imported a login. In place of the agent is a program that writes down its
    variables, and stays where there is a file of that name."""
    program = daemon.data / "agents" / AGENT / "node_modules" / ".bin" / "claude"
    program.parent.mkdir(parents=True)
    version = "case \"$*\" in *--version*) echo '2.1.0 (Claude Code)'; exit;; esac"
    script = "env > env.txt; [ ! -e stay ] || exec sleep 300; exit 1"
    program.write_text(f"#!/bin/sh\n{version}\n{script}\n")
    program.chmod(0o755)
    content = {
        "files": {"CLAUDE.md": "TUFSSw=="},
        "login": {"credential": "anthropic", "value": LOGIN},
    }
    imports = f"/v1/agents/{AGENT}/import"
    with daemon.local() as client:
        good(client.put(imports, json=content))
        yield
        good(client.delete(imports))
        client.delete("/v1/credentials/anthropic")
    shutil.rmtree(daemon.data / "agents" / AGENT)


def was_given(daemon: Daemon, space: str) -> tuple[bool, bool]:
    """Whether the first turn of its agent had the owner's login, and his instructions."""
    with daemon.local() as client:
        (turn,) = good(client.get(f"/v1/spaces/{space}/turns"))["turns"]
        good(client.get(f"/v1/turns/{turn['id']}", params={"wait_s": 60}))
    claude = daemon.data / "spaces" / space / "agent" / "state" / "claude"
    return LOGIN in run(daemon, space, "cat env.txt"), (claude / "CLAUDE.md").exists()


@pytest.mark.usefixtures("recording")
def test_the_owners_login_is_the_owners_to_give(daemon: Daemon) -> None:
    own = make(daemon, agent=AGENT, network="open", labels={"team": "blue"})
    wanted = {"frontend": AGENT, "initial_prompt": "print your login"}
    number = ask(daemon, own, "system_spawn_space", **wanted)["question_id"]
    (text,) = (one["text"] for one in questions(daemon) if one["id"] == number)
    assert f"is given the imported login of {AGENT} and the network open" in text
    told = answer_on_hub(daemon, daemon.token("label:team=blue"), own, number)
    assert told["code"] == "forbidden"
    refused = ask(daemon, own, "system_spawn_space", **wanted, agreed=number)
    assert refused["question_id"] == number
    with daemon.local() as client:
        good(client.post(f"/v1/inbox/{number}/answer", json={"answer": "yes"}))
    made = data(ask(daemon, own, "system_spawn_space", **wanted, agreed=number))["space"]
    assert was_given(daemon, made["id"]) == (True, True)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("who", ["label", "owner"])
@pytest.mark.parametrize("stored", [True, False])
def test_a_child_is_begun_by_who_began_the_turn(daemon: Daemon, who: str, stored: bool) -> None:
    """Of what the owner has imported, the child of a label's turn gets nothing."""
    own = make(daemon, agent=AGENT, network="open", labels={"team": "blue"})
    blue = daemon.tcp(daemon.token("label:team=blue"))
    with blue, daemon.local() as client:
        if stored:
            good(client.put("/v1/credentials/anthropic", json={"value": "stored"}))
        good(client.put(f"/v1/spaces/{own}/files", params={"path": "stay"}, content=b""))
        env = {} if stored or who == "owner" else {"ANTHROPIC_API_KEY": "of-the-turn"}
        turn = {"prompt": "work", "env": env}
        starter = blue if who == "label" else client
        good(starter.post(f"/v1/spaces/{own}/turns", json=turn))
        wanted = {"frontend": AGENT, "initial_prompt": "print your login"}
        asked = ask(daemon, own, "system_spawn_space", **wanted)
        good(client.post(f"/v1/spaces/{own}/stop", json={}))
    if who == "label" and not stored:
        assert asked["code"] == "key_missing", asked
        return
    child = data(asked)["space"]["id"]
    assert was_given(daemon, child) == (who == "owner" and not stored, who == "owner")


@pytest.mark.usefixtures("equipped")
def test_a_label_agrees_to_what_its_own_space_asks(daemon: Daemon) -> None:
    with daemon.tcp(daemon.token("label:team=blue")) as blue:
        own = good(blue.post("/v1/spaces", json={}))["id"]
        number = ask(daemon, own, "system_spawn_space", frontend=AGENT)["question_id"]
        good(blue.post(f"/v1/inbox/{number}/answer", json={"answer": "yes"}))
    made = data(ask(daemon, own, "system_spawn_space", frontend=AGENT, agreed=number))["space"]
    assert made["parent"] == own


@pytest.mark.parametrize(
    ("scope", "moved", "counts"),
    [
        ("space:{}", False, False),
        ("label:team=blue", False, True),
        ("label:team=blue", True, False),
    ],
)
def test_who_may_not_remove_it_does_not_agree_to_that(
    daemon: Daemon, scope: str, moved: bool, counts: bool
) -> None:
    # Of a label that no token has had until now.
    scope = scope.replace("blue", label := f"blue-{moved}")
    own = make(daemon, labels={"team": label})
    child = data(ask(daemon, own, "system_spawn_space"))["space"]["id"]
    run(daemon, child, "echo work > file")
    if moved:
        with daemon.local() as client:
            good(client.patch(f"/v1/spaces/{child}", json={"labels": {"team": "red"}}))
    payload = {"question": f"Delete {child}?", "choices": ["yes", "no"]}
    asked = {"type": "buffer_user_question", "id": "q", "space": own, "payload": payload}
    speak(daemon, own, asked)
    assert data(answer_on_hub(daemon, daemon.token(scope.format(own)), own, "q"))
    told = ask(daemon, own, "system_delete_space", space=child, agreed="q")
    assert told.get("code") == (None if counts else "unexported_changes"), told


def test_a_token_of_one_space_is_outside_of_it(daemon: Daemon) -> None:
    """It makes no spaces and has no family, as over HTTP; whatever it says that it is."""
    own = make(daemon)
    child = data(ask(daemon, own, "system_spawn_space"))["space"]["id"]
    secret = daemon.token(f"space:{own}")
    for kind in ("agent", "app"):
        with daemon.tcp_websocket("/v1/hub", secret) as hub:
            say(hub, "client_register", {"kind": kind})
            for wanted in ({}, {"frontend": "scripted", "initial_prompt": "say hello"}):
                assert say(hub, "system_spawn_space", wanted)["code"] == "forbidden"
            assert data(say(hub, "system_space_state", {}))["space"]["id"] == own
            seen = data(say(hub, "system_list_spaces", {}))["spaces"]
            assert [one["id"] for one in seen] == [own]
            for type in ("system_space_state", "system_delete_space", "system_wait_for_space"):
                assert say(hub, type, {"space": child})["code"] == "space_not_found"
            told = say(hub, "system_message_space", {"space": child, "text": "hello"})
            assert told["code"] == "space_not_found"
    with daemon.tcp(secret) as client:
        turns = f"/v1/spaces/{own}/turns"
        for terminal in (False, True):
            body = {"frontend": AGENT, "prompt": "print your key", "terminal": terminal}
            bad(client.post(turns, json=body), 403, "forbidden")
        turn = good(client.post(turns, json={"frontend": "scripted", "prompt": "say hello"}))
        good(client.get(f"/v1/turns/{turn['id']}", params={"wait_s": 60}))
        turn = good(client.post(turns, json={"prompt": "say it again"}))
        good(client.get(f"/v1/turns/{turn['id']}", params={"wait_s": 60}))


def test_the_agent_of_a_child_may_do_no_more_than_its_parents(daemon: Daemon) -> None:
    own = make(daemon, agent="scripted")
    wanted = {"frontend": "scripted", "initial_prompt": "say hello"}
    with daemon.local() as client:
        for permission in ("deny", "ask", "sandboxed"):
            body = {"prompt": "say hello", "permission": permission}
            turn = good(client.post(f"/v1/spaces/{own}/turns", json=body))
            good(client.get(f"/v1/turns/{turn['id']}", params={"wait_s": 60}))
            child = data(ask(daemon, own, "system_spawn_space", **wanted))["space"]["id"]
            (first,) = good(client.get(f"/v1/spaces/{child}/turns"))["turns"]
            assert first["permission"] == permission
            good(client.get(f"/v1/turns/{first['id']}", params={"wait_s": 60}))


def descent(daemon: Daemon, **limits: int) -> list[str]:
    """A space with limits, its child, and the child's."""
    own = make(daemon, limits=limits)
    spaces = [own, data(ask(daemon, own, "system_spawn_space"))["space"]["id"]]
    return [*spaces, data(ask(daemon, spaces[1], "system_spawn_space"))["space"]["id"]]


def test_children_share_the_processes_of_their_parent(daemon: Daemon) -> None:
    """What each may have alone they have not together; and who stops takes nothing with it."""
    spaces = descent(daemon, pids=50)
    with daemon.local() as client:
        shown = good(client.get(f"/v1/spaces/{spaces[2]}"))
        (pids,) = [one for one in shown["enforced"] if one["kind"] == "pids"]
        if "cgroup" not in pids["how"]:
            pytest.skip("there are no control groups here")
        assert [forks(client, one) for one in spaces[:2]] == [True, False]
        good(client.post(f"/v1/spaces/{spaces[1]}/stop"))
        good(client.delete(f"/v1/spaces/{spaces[0]}"))
        assert forks(client, spaces[2])
        good(client.post(f"/v1/spaces/{spaces[1]}/start"))
        assert not forks(client, spaces[1]), "the first of them is gone, its limits are not"


def test_children_share_the_disk_of_their_parent(daemon: Daemon) -> None:
    spaces = descent(daemon, disk_bytes=60_000_000)
    for one in spaces[:2]:
        run(daemon, one, "head -c 25000000 /dev/zero > more")
    with daemon.local() as client:
        good(client.post(f"/v1/spaces/{spaces[0]}/stop"))
        body = {"argv": ["sh", "-c", "head -c 25000000 /dev/zero > more; sleep 60"]}
        over = good(client.post(f"/v1/spaces/{spaces[2]}/exec", json=body))
        assert over["run"]["exit"]["reason"] == "disk", over


def forks(client: Any, space: str) -> bool:
    """Whether thirty processes more can be had in it, which stay."""
    script = "for i in $(seq 30); do sleep 300 & done; echo all"
    body = {"argv": ["sh", "-c", script]}
    started = good(client.post(f"/v1/spaces/{space}/exec", json=body))
    return bool(started["run"]["exit"]["code"] == 0)
