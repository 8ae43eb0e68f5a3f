"""Agents that ask Carrel for spaces, from inside real sandboxes."""

from __future__ import annotations

import json
from typing import Any

from tests.daemon.hub_rig import line_to, make, speak
from tests.daemon.rig import Daemon, good


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
        shown = good(client.get(f"/v1/spaces/{child}"))
    assert (shown["labels"], shown["parent"], shown["network"]) == ({"team": "blue"}, own, "none")

    listed = data(ask(daemon, own, "system_list_spaces"))["spaces"]
    assert [one["id"] for one in listed] == [own, child]
    state = data(ask(daemon, child, "system_space_state"))["space"]
    assert (state["id"], state["parent"], state["children"]) == (child, own, [])
    assert data(ask(daemon, own, "system_space_state"))["space"]["children"] == [child]
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
    wanted = {"type": "system_spawn_space", "payload": {}}
    answers = speak(daemon, spaces[0], *({**wanted, "id": f"s{n}"} for n in range(8)))
    codes = [one.get("code") for one in answers]
    assert codes == [None] * 7 + ["state_conflict"], json.dumps(answers[-1])


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
        other = data(ask(daemon, own, "system_spawn_space", frontend="claude-code"))["space"]["id"]
        shown = good(client.get(f"/v1/spaces/{other}"))
        assert (shown["agent"], shown["network"]) == ("claude-code", "none")
    refused = ask(daemon, own, "system_spawn_space", frontend="nobody")
    assert refused["code"] == "unsupported_frontend"
