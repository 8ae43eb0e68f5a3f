"""The stand-ins answer as the APIs do, by the rules of their script."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.agents.standins import UNKNOWN_MODEL, Standin, serving
from tests.agents.standins.script import Call, Fail, Hang, Say, Talk, Tool, decide

SECONDS = 20.0
"""For an answer on a busy machine."""

APIS = ("messages", "responses", "chat/completions")
KEY = {"authorization": "Bearer some-key"}


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as running:
        yield running


def body(api: str, *texts: str, stream: bool = True, model: str = "small") -> dict[str, Any]:
    said = [{"role": "user", "content": text} for text in texts]
    return {"model": model, "stream": stream, "input" if api == "responses" else "messages": said}


def ask(standin: Standin, api: str, *texts: str, **more: Any) -> httpx.Response:
    url = f"{standin.url}/v1/{api}"
    return httpx.post(url, json=body(api, *texts, **more), headers=KEY, timeout=SECONDS)


def spoken(api: str, answer: httpx.Response) -> str:
    """All text of a streamed answer, put together as a client does."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "data: " in line]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if api == "messages":
        return "".join(event.get("delta", {}).get("text", "") for event in events)
    if api == "responses":
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        return "".join(event["delta"] for event in deltas)
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


@pytest.mark.parametrize("api", APIS)
def test_a_reply_counts_what_the_user_said(standin: Standin, api: str) -> None:
    answer = ask(standin, api, "one", "<system-reminder>not typed</system-reminder>", "two")

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert spoken(api, answer) == "reply 2: two"


@pytest.mark.parametrize("api", APIS)
def test_an_answer_can_come_whole(standin: Standin, api: str) -> None:
    answer = ask(standin, api, "one", stream=False).json()

    assert "reply 1: one" in json.dumps(answer)
    assert answer["usage"]


@pytest.mark.parametrize("api", APIS)
def test_errors_are_the_apis_own(standin: Standin, api: str) -> None:
    failed = ask(standin, api, "FAIL 429")
    unknown = ask(standin, api, "hello", model=UNKNOWN_MODEL)

    assert failed.status_code == 429
    assert "rate_limit" in json.dumps(failed.json()["error"])
    assert unknown.status_code in (400, 404)
    assert UNKNOWN_MODEL in unknown.json()["error"]["message"]


def test_requests_are_kept_with_their_keys(standin: Standin) -> None:
    ask(standin, "messages", "one")
    httpx.post(f"{standin.url}/v1/messages/count_tokens", json={}, timeout=SECONDS)

    [seen] = standin.of("/v1/messages")
    assert seen.headers["authorization"] == KEY["authorization"]
    assert seen.body["messages"] == [{"role": "user", "content": "one"}]
    assert len(standin.requests) == 2
    assert standin.texts() == ["one"]


def test_the_end_of_the_server_ends_what_hangs() -> None:
    answers: list[int] = []

    def hang(running: Standin) -> None:
        try:
            answers.append(ask(running, "messages", "HANG").status_code)
        except httpx.TransportError:
            answers.append(0)

    with serving() as running:
        thread = threading.Thread(target=hang, args=(running,))
        thread.start()
        waiting = threading.Event()
        while not running.requests and thread.is_alive():
            waiting.wait(0.01)
    thread.join(SECONDS)

    assert answers in ([503], [0])


def talk(text: str, results: int = 0, *tools: Tool) -> Talk:
    return Talk("small", [text], results, tools)


def test_instructions_are_done_one_after_the_other() -> None:
    text = "WRITE a.txt some text\nSLEEP 2\nRUN make\nthanks"
    tools = Tool("exec_command"), Tool("Write")

    assert decide(talk(text, 0, *tools)) == Call(
        Tool("Write"), {"file_path": "a.txt", "content": "some text"}
    )
    assert decide(talk(text, 1, *tools)) == Call(Tool("exec_command"), {"cmd": "make"}, delay=2.0)
    assert decide(talk(text, 2, *tools)) == Say(f"reply 1: {text}")
    assert decide(talk("FAIL 500")) == Fail(500)
    assert decide(talk("HANG")) == Hang()


@pytest.mark.parametrize("name", ["shout", "mcp__loud__shout"])
@pytest.mark.parametrize("tool", [Tool("mcp__loud__shout"), Tool("shout", "mcp__loud")])
def test_a_tool_is_found_however_its_client_names_it(name: str, tool: Tool) -> None:
    assert decide(talk(f'USE {name} {{"text": "a"}}', 0, tool)) == Call(tool, {"text": "a"})
