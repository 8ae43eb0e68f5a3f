"""Telling a person: by a webhook of a real server, and by the desktop's own program."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from carrel.domain.hub import ANSWER
from carrel.interfaces import notifications as notifying
from carrel.interfaces.notifications import (
    Notice,
    NoticeChannel,
    NoticeWebhook,
    Notifier,
    NotTold,
    find_desktop,
)
from tests.hub.rig import OTHER, SPACE, HubRig, Peer, open_rig

WAIT_S = 30.0


class Receiver:
    """A web server that notes what it gets, and answers as it is told to."""

    def __init__(self) -> None:
        self.got: Queue[dict[str, Any]] = Queue()
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                outer.got.put(json.loads(self.rfile.read(length)))
                self.send_response(outer.answers.pop(0) if outer.answers else 204)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    async def next(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.got.get, True, WAIT_S)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "FIRST_PAUSE_S", 0.0)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HubRig]:
    async with open_rig(tmp_path, "unix") as opened:
        yield opened


Failures = list[tuple[str, str]]


@asynccontextmanager
async def telling(rig: HubRig, note: Path, *ways: NoticeChannel) -> AsyncIterator[Failures]:
    """Gives what could not be told. It has begun to listen when this is entered."""
    failures: Failures = []

    def failed(_space: str, notice: Notice, why: str) -> None:
        failures.append((notice["id"], why))

    found = Notifier(rig.hub.log, rig.hub.keeper, note, ways, failed)
    rig.hub.on_kept.append(found.ring)
    task = asyncio.create_task(found.run())
    await until(note.exists)
    try:
        yield failures
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        rig.hub.on_kept.remove(found.ring)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0)


async def ask(agent: Peer, number: str, space: str = SPACE) -> None:
    payload = {"question": f"May I {number}?", "choices": ["yes", "no"]}
    await agent.ask("buffer_user_question", payload, space=space, id=number)


async def signal(agent: Peer, *texts: str) -> None:
    said = [{"type": "buffer_taskspace_signal_user", "payload": {"message": t}} for t in texts]
    await agent.ask("buffer_publish", {"messages": said}, space=SPACE)


async def test_what_waits_for_a_person_is_sent_on(
    rig: HubRig, tmp_path: Path, receiver: Receiver
) -> None:
    agent = await rig.agent()
    await ask(agent, "before")
    async with telling(rig, tmp_path / "note", NoticeWebhook(receiver.address)) as failures:
        await agent.ask("buffer_custom_x", {}, space=SPACE)
        await ask(agent, "one")
        signal = {"message": "look", "priority": "urgent", "suggested_actions": ["run it"]}
        await agent.ask("buffer_taskspace_signal_user", signal, space=SPACE)
        asked, told = await receiver.next(), await receiver.next()
    assert (asked["kind"], asked["id"], asked["text"]) == ("question", "one", "May I one?")
    assert (asked["space"], asked["choices"]) == (SPACE, ["yes", "no"])
    assert (told["kind"], told["priority"], told["suggested_actions"]) == (
        *("signal", "urgent"),
        ["run it"],
    )
    assert failures == [] and receiver.got.empty()


async def test_it_goes_on_where_it_was(rig: HubRig, tmp_path: Path, receiver: Receiver) -> None:
    agent, note = await rig.agent(), tmp_path / "note"
    async with telling(rig, note, NoticeWebhook(receiver.address)):
        await ask(agent, "one")
        assert (await receiver.next())["id"] == "one"
        place = await rig.hub.log.last_place()
        await until(lambda: note.read_text() == str(place))
    await ask(agent, "two")
    async with telling(rig, note, NoticeWebhook(receiver.address)):
        assert (await receiver.next())["id"] == "two"


async def test_a_server_that_is_down_is_tried_again(
    rig: HubRig, tmp_path: Path, receiver: Receiver
) -> None:
    agent = await rig.agent()
    receiver.answers = [503, 429, 200]
    async with telling(rig, tmp_path / "note", NoticeWebhook(receiver.address)) as failures:
        await ask(agent, "one")
        await ask(agent, "two")
        ids = [(await receiver.next())["id"] for _ in range(4)]
    assert ids == ["one", "one", "one", "two"] and failures == []


@pytest.mark.parametrize("status", [400, 404, 302])
async def test_what_is_refused_is_given_up_and_said(
    rig: HubRig, tmp_path: Path, receiver: Receiver, status: int
) -> None:
    agent = await rig.agent()
    receiver.answers = [status]
    async with telling(rig, tmp_path / "note", NoticeWebhook(receiver.address)) as failures:
        await ask(agent, "one")
        await ask(agent, "two")
        assert [(await receiver.next())["id"] for _ in range(2)] == ["one", "two"]
        await until(lambda: failures)
    assert failures == [("one", f"the webhook answered {status}")]


async def test_nobody_is_there(rig: HubRig, tmp_path: Path) -> None:
    agent = await rig.agent()
    async with telling(rig, tmp_path / "note", NoticeWebhook("http://127.0.0.1:1/")) as failures:
        await ask(agent, "one")
        await until(lambda: failures)
    assert "cannot be reached" in failures[0][1]


class Gated:
    """A way on which what `SPACE` says stays until it is opened; notes what was told."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.told: list[Notice] = []
        self.open = asyncio.Event()
        self.fails = fails

    async def tell(self, notice: Notice) -> None:
        if notice["space"] == SPACE and self.fails is not None:
            raise self.fails
        if notice["space"] == SPACE:
            await self.open.wait()
        self.told.append(notice)

    @property
    def texts(self) -> list[str]:
        return [one["text"] for one in self.told]


async def test_a_flood_of_one_space_is_folded_and_keeps_no_other_waiting(
    rig: HubRig, tmp_path: Path
) -> None:
    agent, other = await rig.agent(), await rig.join("agent", "other")
    way, note = Gated(), tmp_path / "note"
    async with telling(rig, note, way) as failures:
        for start in range(0, 5000, 1000):
            await signal(agent, *(f"flood {number}" for number in range(start, start + 1000)))
        await ask(agent, "mine")
        await ask(other, "honest", OTHER)
        await until(lambda: way.told)
        assert way.texts == ["May I honest?"]
        way.open.set()
        await until(lambda: "May I mine?" in way.texts)
        place = await rig.hub.log.last_place()
        await until(lambda: note.read_text() == str(place))
    most = notifying.MOST_WAITING
    assert way.texts[1 : most + 1] == [f"flood {number}" for number in range(most)]
    assert [one["more"] for one in way.told if "more" in one] == [5000 - most]
    assert f"{5000 - most} more" in way.told[-2]["text"] and failures == []


async def answer(person: Peer, number: str) -> None:
    await person.ask(ANSWER, {"answer": "yes"}, space=SPACE, reply_to=number)


async def taken_in(other: Peer, way: Gated) -> None:
    """All that came until now: what another account says is told as soon as it is."""
    number = f"o{len(way.told)}"
    await ask(other, number, OTHER)
    await until(lambda: f"May I {number}?" in way.texts)


async def test_questions_beyond_some_are_told_as_one(rig: HubRig, tmp_path: Path) -> None:
    """Those that are answered before that are not told, and not counted."""
    agent, person, other = await rig.agent(), await rig.join(), await rig.join("agent", "other")
    way, most, note = Gated(), notifying.MOST_WAITING, tmp_path / "note"
    asked = [f"q{number}" for number in range(2 * most)]
    async with telling(rig, note, way):
        for number in asked:
            question = {"question": f"{number} " + "x" * 20_000}
            await agent.ask("buffer_user_question", question, id=number, space=SPACE)
        await taken_in(other, way)
        for number in (asked[1], asked[most], asked[-1], "nothing"):
            await answer(person, number)
        await taken_in(other, way)
        way.open.set()
        place = await rig.hub.log.last_place()
        await until(lambda: note.read_text() == str(place))
    told = [one for one in way.told if one["space"] == SPACE]
    assert [one["id"] for one in told] == [asked[0], *asked[2:most], asked[-2]]
    assert [one["more"] for one in told if "more" in one] == [most - 2]
    assert max(map(len, way.texts)) == notifying.MOST_TOLD


async def test_who_answers_itself_has_no_more_to_say_by_that(rig: HubRig, tmp_path: Path) -> None:
    """Questions that were answered are bounded by nothing else: they do not wait in memory."""
    agent, person, other = await rig.agent(), await rig.join(), await rig.join("agent", "other")
    way = Gated()
    async with telling(rig, tmp_path / "note", way):
        await ask(agent, "first")
        await taken_in(other, way)
        for number in range(3 * notifying.MOST_WAITING):
            await ask(agent, f"q{number}")
            await answer(person, f"q{number}")
        await signal(agent, "at last")
        await taken_in(other, way)
        way.open.set()
        await until(lambda: "at last" in way.texts)
    assert [one["text"] for one in way.told if one["space"] == SPACE] == ["May I first?", "at last"]


class Closing(Gated):
    """One that is closed for `SPACE` as soon as it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[str] = []

    async def tell(self, notice: Notice) -> None:
        self.tried.append(notice["id"])
        await super().tell(notice)
        if notice["space"] == SPACE:
            raise NotTold("not now")


async def test_what_is_answered_is_not_tried_again(rig: HubRig, tmp_path: Path) -> None:
    agent, person, other = await rig.agent(), await rig.join(), await rig.join("agent", "other")
    way = Closing()
    async with telling(rig, tmp_path / "note", way) as failures:
        await ask(agent, "one")
        await until(lambda: way.tried)
        await ask(agent, "two")
        await answer(person, "one")
        await taken_in(other, way)
        way.open.set()
        await until(lambda: failures)
    assert way.tried.count("one") == 1
    assert [number for number, _ in failures] == ["two"]


async def test_what_was_answered_before_a_restart_is_not_told(rig: HubRig, tmp_path: Path) -> None:
    """However many messages lie between."""
    agent, person = await rig.agent(), await rig.join()
    way, note = Gated(), tmp_path / "note"
    async with telling(rig, note, way):
        pass
    await ask(agent, "one")
    await signal(agent, *map(str, range(2 * notifying.BATCH)))
    await answer(person, "one")
    await ask(agent, "two")
    way.open.set()
    async with telling(rig, note, way):
        await until(lambda: "May I two?" in way.texts)
    assert "May I one?" not in way.texts


@pytest.mark.parametrize("error", [NotTold("not now"), ValueError("embedded null byte")])
async def test_what_fails_keeps_no_other_waiting(
    rig: HubRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Neither another account's notices, nor another way."""
    monkeypatch.setattr(notifying, "FIRST_PAUSE_S", WAIT_S)
    agent, other = await rig.agent(), await rig.join("agent", "other")
    failing, working = Gated(error), Gated()
    working.open.set()
    async with telling(rig, tmp_path / "note", failing, working):
        await ask(agent, "one")
        await ask(other, "two", OTHER)
        await ask(agent, "three")
        await until(lambda: len(working.told) == 3 and failing.told)
        assert failing.texts == ["May I two?"]


async def test_what_waits_is_told_after_a_restart(rig: HubRig, tmp_path: Path) -> None:
    agent, other = await rig.agent(), await rig.join("agent", "other")
    way, note = Gated(), tmp_path / "note"
    async with telling(rig, note, way):
        await ask(agent, "one")
        await ask(other, "two", OTHER)
        await until(lambda: way.told)
    way = Gated()
    way.open.set()
    async with telling(rig, note, way):
        await until(lambda: "May I one?" in way.texts)


# The desktop

_STAND_IN = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done > "$SAID.new"
mv "$SAID.new" "$SAID"
exit ${CODE:-0}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for notify-send, which needs a desktop."""
    folder = tmp_path / "bin"
    folder.mkdir()
    found = folder / "notify-send"
    found.write_text(_STAND_IN)
    found.chmod(0o755)
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    return found


async def test_the_desktop_is_told(tmp_path: Path, program: Path) -> None:
    desktop = find_desktop({"PATH": str(program.parent), "DISPLAY": ":0"})
    assert desktop is not None
    notice = {"kind": "question", "space": SPACE, "priority": "urgent", "text": "--help <b>?"}
    await desktop.tell(notice)
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:2] == ["--app-name=Carrel", "--urgency=critical"]
    assert said[2:] == ["--", f"{SPACE} asks", "--help &lt;b&gt;?"]


async def test_a_desktop_that_cannot_show_it(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", "3")
    desktop = find_desktop({"PATH": str(program.parent), "DISPLAY": ":0"})
    assert desktop is not None
    notice = {"kind": "signal", "space": SPACE, "priority": "low", "text": "x"}
    with pytest.raises(NotTold, match="ended with 3"):
        await desktop.tell(notice)
    program.unlink()
    with pytest.raises(NotTold):
        await desktop.tell(notice)


def test_no_desktop(program: Path) -> None:
    assert find_desktop({"PATH": str(program.parent)}) is None
    assert find_desktop({"PATH": "/nonexistent", "DISPLAY": ":0"}) is None
