"""docs/client.md and docs/agents.md, in Python."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import carrel
from carrel.client.spaces import Space
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "greet"
    found.mkdir()
    (found / "greet.py").write_text("print('Hello')\n")
    return found


@pytest.fixture
def space(client: carrel.Client, project: Path) -> Iterator[Space]:
    with client.space(project, agent="scripted") as found:
        yield found


def test_a_space_exists_while_the_context_is_open(client: carrel.Client, project: Path) -> None:
    steps: list[str] = []
    with client.space(
        project, name="py-open", on_progress=lambda one: steps.append(one.stage)
    ) as one:
        assert client.get("py-open").id == client.get(one.id[:12]).id == one.id
        one.files.write("left.txt", "x\n")
    assert steps
    with pytest.raises(carrel.errors.SpaceNotFound) as refused:
        client.get("py-open")
    error = refused.value
    assert (error.code, bool(error.message), bool(error.hint)) == ("space_not_found", True, True)
    with client.space(project, keep=True) as kept:
        pass
    assert client.get(kept.id).info.state == "ready"
    kept.remove()


def test_what_was_changed_is_asked_for_and_restored(client: carrel.Client, project: Path) -> None:
    space = client.create(project, labels={"team": "py"})
    space.files.write("notes.txt", "mine\n")
    assert [one.path for one in space.changes()] == ["notes.txt"]
    assert b"+mine" in b"".join(space.diff())
    with pytest.raises(carrel.errors.UnexportedChanges) as refused:
        space.remove()
    assert refused.value.details["changes"]
    assert [one.id for one in client.spaces(labels={"team": "py"})] == [space.id]
    space.stop()
    with pytest.raises(carrel.errors.StateConflict):
        space.run(["true"])
    space.start()
    back = client.undelete(space.remove(force=True).space)
    assert back.files.read("notes.txt") == b"mine\n"
    back.remove(force=True)


def test_commands(space: Space) -> None:
    result = space.run(["cat"], stdin="in\n", timeout_s=60, env={"X": "1"}, cwd=".")
    assert result.ok and result.stdout == "in\n" and result.stdout_bytes == b"in\n"
    late = space.run(["sleep", "60"], timeout_s=0.2)
    assert late.code == 124 and late.run.exit is not None and late.run.exit.reason == "timeout"
    assert space.run(["sh", "-c", "kill $$"]).code == 143
    with pytest.raises(carrel.CommandFailed) as failed:
        space.run(["false"], check=True)
    assert failed.value.result.code == 1
    with pytest.raises(carrel.errors.CommandNotFound):
        space.run(["no-such-program"])
    with pytest.raises(carrel.errors.CommandNotExecutable):
        space.run(["./greet.py"])
    short = space.run(["seq", "1000"], max_output_bytes=5)
    assert short.truncated and short.stdout == "1000\n" and not short.missing


def test_a_run_goes_on_without_the_program(client: carrel.Client, space: Space) -> None:
    run = space.start_run(["sh", "-c", "for i in 1 2 3; do echo $i; done"])
    again = client.run(run.id)
    assert b"".join(one.data for one in again.output() if one.stream == 1) == b"1\n2\n3\n"
    ended = again.wait().exit
    assert ended is not None and ended.code == 0 and again.read() == b"1\n2\n3\n"


def test_files(space: Space, tmp_path: Path) -> None:
    files = space.files
    assert files.read("greet.py", start=0, end=5) == b"print"
    files.mkdir("a/b", parents=True)
    files.write("a/b/c", b"\x00\x01", mode=0o600)
    files.move("a/b/c", "a/d")
    assert {one.name for one in files.list("a")} == {"b", "d"} and files.stat("a/d").size == 2
    files.write("odd\udcff", "x")
    assert "odd\udcff" in [one.name for one in files.list(".")]
    space.run(["ln", "-s", "/etc/passwd", "out"])
    moved = files.download(".", tmp_path / "out")
    assert moved.bytes_moved and [*moved.skipped]
    assert (tmp_path / "out" / "a" / "d").read_bytes() == b"\x00\x01"
    files.upload(tmp_path / "out", "again")
    assert files.read("again/a/d") == b"\x00\x01"
    files.delete("again", recursive=True)
    with pytest.raises(carrel.errors.CarrelError, match=r"."):
        files.read("../outside")


def test_a_conversation_goes_on_with_what_the_turn_before_gave(space: Space) -> None:
    """Nothing at all, or what a turn that failed left: neither is an error."""
    first = space.send("say one", continuation=None)
    assert first.state == "complete" and first.continuation is not None
    failed = space.send("fail for a reason", continuation=first.continuation)
    assert failed.state == "error"
    again = space.send("hello", continuation=failed.continuation)
    assert again.state == "complete"


def test_who_works_is_told_more_interrupted_and_permitted(space: Space) -> None:
    turn = space.send("sleep 600", wait=False)
    with pytest.raises(carrel.errors.StateConflict):
        space.send("say no")
    space.interrupt(turn)
    ended = space.wait_for(turn, timeout_s=ANSWER_S)
    assert ended.result is not None and ended.result.error is not None
    assert ended.result.error.code == "interrupted"
    turn = space.send("run date > when", permission="ask", wait=False)
    end = time.monotonic() + ANSWER_S
    while not (asking := space.wait_for(turn, timeout_s=0).permissions):
        assert time.monotonic() < end
        time.sleep(LOOK_S)
    space.queue_input(turn, "say later")
    space.decide(turn, asking[0].id, True)
    done = space.wait_for(turn, timeout_s=ANSWER_S)
    assert done.result is not None and done.result.final_output == "later"
    assert space.files.read("when") and len(space.turns()) == 2
    with pytest.raises(carrel.errors.AgentError):
        space.send("x", frontend="no-such-agent")


def test_documents_for_the_agent(space: Space) -> None:
    space.put_context("rules.txt", b"be brief\n")
    assert [(one.name, one.size) for one in space.context()] == [("rules.txt", 9)]
    space.remove_context("rules.txt")
    assert not [*space.context()]


def test_requests(client: carrel.Client, tmp_path: Path) -> None:
    asked = "write hello.py print('hello')\nask Is that all?\nsay It is done."
    stream = client.requests.generate(
        asked, frontend="scripted", check="python3 hello.py", retention={"hold_s": 600}
    )
    types = []
    for frame in stream:
        types.append(frame.type)
        if frame.type == "input_needed":
            stream.answer("yes", id=frame.id)
    result = stream.result()
    assert result.request_id and result.workspace_path
    assert result.complete and result.check is not None and result.check.output == "hello\n"
    assert {"accepted", "progress", "input_needed", "event"} <= {*types}
    assert stream.fetch("hello.py") == b"print('hello')\n"
    saved = stream.save(tmp_path / "made")
    assert [*saved.files] and (tmp_path / "made" / "hello.py").read_text() == "print('hello')\n"
    stream.done()
    failing = client.requests.generate("fail no luck", frontend="scripted")
    with pytest.raises(carrel.errors.CarrelError) as refused:
        failing.result()
    assert refused.value.code == "agent_crashed"


def test_events_and_the_rest(client: carrel.Client, space: Space) -> None:
    space.run(["true"])
    with contextlib.closing(
        client.events(after=0, spaces=[space.id], types=["run.ended"])
    ) as heard:
        event = next(one for one in heard if one.type != "gap")
    assert event.seq and event.type == "run.ended" and dict(event.data)
    assert client.info().version and client.df().parts
    client.doctor()
    client.gc(dry_run=True)
    assert space.id in [one.space for one in client.usage()]
    token = client.tokens.create("label:team=py")
    assert token.secret
    client.tokens.revoke(token.id)


def test_there_is_no_daemon(tmp_path: Path) -> None:
    nobody = carrel.Client(data=tmp_path / "none", autostart=False)
    with nobody, pytest.raises(carrel.errors.DaemonUnavailable):
        nobody.info()


def test_many_at_once(daemon: Daemon, project: Path) -> None:
    async def main() -> list[str]:
        async with carrel.AsyncClient(data=daemon.data, autostart=False) as client:

            async def one(number: int) -> str:
                async with client.space(project) as space:
                    return (await space.run(["echo", str(number)])).stdout

            return await asyncio.gather(*(one(number) for number in range(4)))

    assert asyncio.run(main()) == [f"{number}\n" for number in range(4)]
