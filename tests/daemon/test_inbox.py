"""What waits for a person, over the API and the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from carrel.service.inbox import MAX_TEXT
from tests.daemon.hub_rig import make, speak
from tests.daemon.rig import Daemon, bad, good

PROGRAM_S = 60.0


def question(space: str, number: str, text: str, *choices: str) -> dict[str, Any]:
    payload = {"question": text, "choices": choices}
    return {"type": "buffer_user_question", "id": number, "space": space, "payload": payload}


def signal(space: str, text: str, priority: str) -> dict[str, Any]:
    payload = {"message": text, "priority": priority}
    type = "buffer_taskspace_signal_user"
    return {"type": type, "id": text, "space": space, "payload": payload}


def carrel(daemon: Daemon, *words: str) -> Any:
    done = subprocess.run(
        [Path(sys.executable).with_name("carrel"), *words, "--json"],
        env={**os.environ, "CARREL_DATA": str(daemon.data)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    return json.loads(done.stdout if done.returncode == 0 else done.stderr)


def test_questions_wait_until_they_are_answered(daemon: Daemon) -> None:
    space = make(daemon)
    speak(
        daemon,
        space,
        question(space, "q1", "Which one?", "left", "right"),
        signal(space, "look here", "high"),
        question(space, "q2", "And now?"),
    )
    with daemon.local() as client:
        items = good(client.get("/v1/inbox"))["items"]
        kinds = [(one["id"], one["kind"], one["text"]) for one in items]
        assert kinds == [
            ("q1", "question", "Which one?"),
            ("look here", "signal", "look here"),
            ("q2", "question", "And now?"),
        ]
        assert (items[0]["choices"], items[1]["priority"]) == (["left", "right"], "high")
        good(client.post("/v1/inbox/q1/answer", json={"answer": "left"}))
        again = client.post("/v1/inbox/q1/answer", json={"answer": "right"})
        bad(again, 409, "state_conflict")
        bad(client.post("/v1/inbox/q9/answer", json={"answer": "x"}), 404, "space_not_found")
        bad(client.post("/v1/inbox/q2/answer", json={"answer": ""}), 422, "message_invalid")
        headers = {"Accept": "application/json"}
        params = {"space": space, "type": "buffer_user_answer"}
        (told,) = good(client.get("/v1/events", params=params, headers=headers))["events"]
        assert told["data"] == {"answer": "left"}
    daemon.stop()
    daemon.start()
    left = [one["id"] for one in carrel(daemon, "inbox")["items"]]
    assert left == ["look here", "q2"]
    assert carrel(daemon, "inbox", "--seen") == {"seen": 1}
    assert carrel(daemon, "answer", "q2", "go on", "--space", space)["seq"] > 0
    assert carrel(daemon, "answer", "q2", "go on")["code"] == "state_conflict"
    assert carrel(daemon, "inbox") == {"items": []}
    daemon.stop()
    daemon.start()
    assert carrel(daemon, "inbox") == {"items": []}


def test_a_long_one_is_shown_in_part(daemon: Daemon) -> None:
    """All of all spaces is told at once. Nobody agrees to what is not shown."""
    space = make(daemon)
    asked = "Do you like tea?" + " " * MAX_TEXT + f"And may I remove {space}?"
    told = {**signal(space, "x" * 50_000, "low"), "id": "told"}
    speak(daemon, space, question(space, "long", asked), told)
    with daemon.local() as client:
        items = good(client.get("/v1/inbox"))["items"]
        mine = [one for one in items if one["space"] == space]
        assert [len(one["text"]) < MAX_TEXT + 50 for one in mine] == [True, True]
        good(client.post("/v1/inbox/long/answer", json={"answer": "yes", "space": space}))
        good(client.put(f"/v1/spaces/{space}/files", params={"path": "new"}, content=b"work"))
    wanted = {"space": space, "agreed": "long"}
    remove = {"type": "system_delete_space", "id": "d", "space": space, "payload": wanted}
    (answer,) = speak(daemon, space, remove)
    assert answer.get("status") != "success", answer
    with daemon.local() as client:
        good(client.get(f"/v1/spaces/{space}"))


def test_a_token_sees_its_own_inbox(daemon: Daemon) -> None:
    blue, red = make(daemon, labels={"team": "blue"}), make(daemon, labels={"team": "red"})
    for space in (blue, red):
        speak(daemon, space, question(space, "same", f"from {space}?"))
    with daemon.tcp(daemon.token("label:team=blue")) as client:
        (item,) = good(client.get("/v1/inbox"))["items"]
        assert item["space"] == blue
        body = {"answer": "x", "space": red}
        bad(client.post("/v1/inbox/same/answer", json=body), 404, "space_not_found")
    with daemon.local() as client:
        unclear = client.post("/v1/inbox/same/answer", json={"answer": "x"})
        bad(unclear, 409, "state_conflict")
        good(client.post("/v1/inbox/same/answer", json={"answer": "x", "space": red}))
        good(client.delete(f"/v1/spaces/{blue}", params={"force": "true"}))
        assert good(client.get("/v1/inbox"))["items"] == []
