"""Requests through the client: heard over any number of connections, fetched, saved."""

from __future__ import annotations

import os
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel import AsyncClient, Client
from carrel.api.types.requests import RequestInfo
from carrel.client import RequestStream
from carrel.client.aio_requests import AsyncRequestStream
from carrel.client.request_frames import RequestFrame
from carrel.domain.errors import (
    AgentError,
    PathExists,
    RequestCancelled,
    RequestInvalid,
    RequestNotFound,
    RequestReused,
    StateConflict,
    VersionNotFound,
    WorkspaceGone,
)
from carrel.domain.limits import Limits
from carrel.domain.requests import Keeping, Older, Policy, RequestState, Workspace
from tests.client.killing import kill
from tests.daemon.rig import Daemon

GATE = "run until [ -e go ]; do sleep 0.02; done"
HOSTILE = (
    "run ln -s /etc/passwd out; ln -s a.txt in; printf x > \"$(printf 'n\\377')\"; chmod +x a.txt"
)
HELD = {"hold_s": 600}


def open_gate(client: Client, stream: RequestStream | AsyncRequestStream) -> None:
    space = client.requests.get(stream.request_id).space_id
    client.get(space).files.write("go", b"")


def drop(stream: RequestStream) -> None:
    """As a network does."""
    sock: Any = stream._stream._sock
    if sock is not None:
        sock.shutdown(2)


def kept(frames: list[RequestFrame]) -> list[tuple[int, str]]:
    return [(frame.seq, frame.type) for frame in frames if frame.seq]


def test_heard_to_the_end(client: Client) -> None:
    limits = Limits(pids=200)
    with client.requests.generate(
        "write a.txt one\nsay done", limits=limits, tier="minimal", timeout_s=60, check="cat a.txt"
    ) as stream:
        frames = list(stream)
        result = stream.result()
    assert frames[0].type == "accepted" and frames[0].workspace_path
    assert frames[-1] is stream.outcome and frames[-1].result is result
    assert any(frame.event for frame in frames) and any(frame.progress for frame in frames)
    assert result.complete and result.summary == "done" and result.total_files == 1
    assert result.check is not None and result.check.output == "one\n"
    assert (result.files[0].path, result.files[0].data) == ("a.txt", b"one\n")
    assert result.files[0].lines == 1 and frames[-1].raw["type"] == "result"
    stream.done()
    info = client.requests.get(stream.request_id)
    assert info.state is RequestState.DONE and info.workspace is Workspace.GONE
    assert info.ended and info.complete and info.request_id == stream.request_id


def test_errors(client: Client) -> None:
    stream = client.requests.generate("fail it cannot be")
    with pytest.raises(AgentError, match="it cannot be") as failed:
        stream.result()
    assert failed.value.details["step"] == "working" and "retriable" in failed.value.details
    with client.requests.generate(" ") as stream, pytest.raises(RequestInvalid) as refused:
        stream.result()
    assert refused.value.details["step"] == "accept" and refused.value.hint
    stream.done()
    with client.requests.follow("nobody") as stream, pytest.raises(RequestNotFound):
        stream.result()
    stream = client.requests.generate("write a b", request_id="client-same")
    assert stream.result().complete
    with pytest.raises(RequestReused):
        client.requests.generate("write c d", request_id="client-same").result()
    with pytest.raises(WorkspaceGone):
        stream.done()
        stream.fetch("a")


def test_cancelled(client: Client) -> None:
    with client.requests.generate("sleep 600") as stream:
        next(frame for frame in stream if frame.event)
        with pytest.raises(StateConflict):
            stream.answer("to nothing")
        assert stream.cancel().state is RequestState.CANCELLED
        with pytest.raises(RequestCancelled):
            stream.result()
    assert client.requests.get(stream.request_id).workspace is Workspace.GONE


def test_a_question(client: Client) -> None:
    with client.requests.generate("ask Which?\nwrite a b") as stream:
        for frame in stream:
            if frame.type == "input_needed":
                assert frame.question == "Which?"
                stream.answer("red", id=frame.id)
        assert stream.result().complete


def test_lost_again_and_again(client: Client) -> None:
    """After every frame the connection breaks; nothing is missing, and nothing comes twice."""
    steps = f"say one\nwrite a b\n{GATE}\nsay two"
    keeping = Keeping(Policy.RETAIN, seconds=600)
    frames: list[RequestFrame] = []
    with client.requests.generate(steps, retention=keeping) as stream:
        for frame in stream:
            frames.append(frame)
            drop(stream)
            if frame.event and GATE.removeprefix("run ") in str(frame.event):
                open_gate(client, stream)
    with client.requests.follow(stream.request_id) as again:
        assert kept(list(again)) == kept(frames)
    middle = frames[len(frames) // 2]
    with client.requests.follow(stream.request_id, after=middle.seq) as again:
        rest = [one for one in kept(frames) if one[0] > middle.seq]
        assert kept(list(again)) == rest
    client.requests.remove(stream.request_id)


def test_lost_before_anything_was_heard(client: Client) -> None:
    """It is asked for again by its name, and there is one only."""
    stream = client.requests.generate("write a b", owner="lost-at-once")
    drop(stream)
    assert stream.result().complete
    assert len(list(client.requests.list(owner="lost-at-once"))) == 1


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_daemon_that_begins_again(own_daemon: Daemon, how: str) -> None:
    def again() -> None:
        kill(own_daemon) if how == "killed" else own_daemon.stop()
        own_daemon.start()
        open_gate(client, stream)

    frames: list[RequestFrame] = []
    thread = threading.Thread(target=again)
    with Client(data=own_daemon.data, autostart=False) as client:
        steps = f"say one\n{GATE}\nwrite a b"
        with client.requests.generate(steps, retention="retain") as stream:
            for frame in stream:
                frames.append(frame)
                if frame.event and GATE.removeprefix("run ") in str(frame.event):
                    break
            thread.start()
            frames += stream
            assert stream.result().complete
        thread.join()
        assert kept(list(client.requests.follow(stream.request_id))) == kept(frames)


def test_waiting_in_pieces(client: Client) -> None:
    with client.requests.generate(GATE) as stream:
        frames: list[RequestFrame] = []
        while not any(frame.event for frame in frames):
            frames += stream.wait(60)
        assert stream.fileno() >= 0
        while stream.wait(1.0):
            pass
        assert stream.wait(0.0) == [] and not stream.ended
        open_gate(client, stream)
        while not stream.ended:
            frames += stream.wait()
        assert stream.wait() == [] and stream.result().complete
    assert stream.fileno() == -1


# What was made


@pytest.fixture(scope="module")
def made(daemon: Daemon) -> Iterator[RequestInfo]:
    with Client(data=daemon.data, autostart=False) as client:
        steps = f"write a.txt one\nwrite src/b.py print(2)\n{HOSTILE}"
        stream = client.requests.generate(steps, retention={"for": "36h"}, labels={"a": "b"})
        assert stream.result().complete
        yield client.requests.get(stream.request_id)
        client.requests.remove(stream.request_id)


def test_files_one_by_one(client: Client, made: RequestInfo, tmp_path: Path) -> None:
    names = [file.path for file in client.requests.files(made.key)]
    assert names == ["a.txt", "in", "n\udcff", "out", "src/b.py"]
    assert client.requests.fetch(made.key, "src/b.py") == b"print(2)\n"
    assert client.requests.fetch(made.key, "n\udcff") == b"x"
    size = client.requests.archive(made.key, tmp_path / "made.tar.gz")
    assert size == (tmp_path / "made.tar.gz").stat().st_size
    with tarfile.open(tmp_path / "made.tar.gz") as archive:
        assert set(names) <= set(archive.getnames())


def test_saved(client: Client, made: RequestInfo, tmp_path: Path) -> None:
    """Nothing of it is anywhere but in the folder."""
    target = tmp_path / "new" / "folder"
    saved = client.requests.save(made.key, target)
    assert sorted(saved.files) == ["a.txt", "in", "n\udcff", "src/b.py"]
    assert [name for name, _ in saved.skipped] == ["out"] and saved.folder == str(target)
    assert (target / "src/b.py").read_text() == "print(2)\n" and (target / "in").is_symlink()
    assert (target / "a.txt").stat().st_mode & stat.S_IXUSR
    with pytest.raises(PathExists, match="there already"):
        client.requests.save(made.key, target, replace=False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "src").symlink_to(elsewhere)
    with pytest.raises(PathExists):
        client.requests.save(made.key, tmp_path / "trap", replace=False)
    assert [one.name for one in (tmp_path / "trap").iterdir()] == ["src"]
    with pytest.raises(Exception, match="not a folder"):
        client.requests.save(made.key, tmp_path / "trap")
    assert list(elsewhere.iterdir()) == []


def test_saved_from_the_result_itself(client: Client, tmp_path: Path) -> None:
    """What is ephemeral has gone; its result has all of it."""
    stream = client.requests.generate(f"write a.txt one\nwrite b.txt two\n{HOSTILE}")
    stream.result()
    stream.done()
    saved = stream.save(tmp_path)
    assert sorted(saved.files) == ["a.txt", "b.txt", "in", "n\udcff"]
    assert (tmp_path / "a.txt").read_text() == "one\n"
    programs = [name for name in ("a.txt", "b.txt") if os.access(tmp_path / name, os.X_OK)]
    assert programs == ["a.txt"]
    assert [name for name, _ in saved.skipped] == ["out"]
    with pytest.raises(PathExists):
        stream.save(tmp_path, replace=False)
    held = client.requests.generate("run head -c 5000000 /dev/zero > big", retention=HELD)
    assert held.result().files[0].data is None
    held.save(tmp_path)
    assert (tmp_path / "big").stat().st_size == 5_000_000
    held.done()
    with pytest.raises(WorkspaceGone):
        held.save(tmp_path)


def test_lists_and_times(client: Client, made: RequestInfo) -> None:
    listed = {one.key: one for one in client.requests.list(live=False)}
    assert listed[made.key].policy is Policy.RETAIN and listed[made.key].result is None
    assert made.result is not None and made.labels == {"a": "b"}
    assert made.retained_until is not None
    later = client.requests.extend(made.key, 10 * 86_400).retained_until
    assert later is not None and later > made.retained_until
    assert made.key not in [one.key for one in client.requests.list(live=True)]


def test_submitted(client: Client) -> None:
    info = client.requests.submit("write a b", content=False, frontend="scripted")
    ended = client.requests.get(info.request_id, wait_s=60)
    assert ended.result is not None and ended.result.files[0].data is None


def test_versions(client: Client) -> None:
    keeping = Keeping(Policy.VERSIONED, series="client/series", newest=1, older=Older.ARCHIVE)
    for number in (1, 2):
        stream = client.requests.generate(f"write a {number}", retention=keeping)
        assert stream.result().version == number
        stream.done()
    found = client.requests.versions("client/series")
    assert [(one.version, one.workspace) for one in found] == [(2, "there"), (1, "archived")]
    assert "-1\n+2\n" in client.requests.diff("client/series")
    assert "+1\n" in client.requests.diff("client/series", 0, 1)
    assert [one.version for one in client.requests.list(series="client/series")] == [2, 1]
    with pytest.raises(VersionNotFound):
        client.requests.diff("client/series", 1, 9)
    for one in found:
        assert client.requests.remove(one.key).workspace is Workspace.GONE


def test_said_from_another_thread(client: Client) -> None:
    with client.requests.generate("sleep 600") as stream:
        for frame in stream:
            if frame.event:
                thread = threading.Thread(target=stream.cancel)
                thread.start()
                break
        with pytest.raises(RequestCancelled):
            stream.result()
        thread.join()


async def test_awaited(async_client: AsyncClient, client: Client, tmp_path: Path) -> None:
    requests = async_client.requests
    steps = f"write a.txt one\n{GATE}\nsay two"
    async with await requests.generate(steps, retention="retain") as stream:
        frames = []
        async for frame in stream:
            frames.append(frame)
            wire: Any = stream._stream._wire
            if wire is not None:
                wire.close()
            if frame.event and GATE.removeprefix("run ") in str(frame.event):
                open_gate(client, stream)
        assert (await stream.result()).complete
    async with await requests.follow(stream.request_id) as again:
        assert kept([frame async for frame in again]) == kept(frames)
    assert await stream.fetch("a.txt") == b"one\n"
    assert (await stream.save(tmp_path / "new")).files == ["a.txt", "go"]
    assert await stream.archive(tmp_path / "made.tar.gz") > 0
    assert [one.path async for one in requests.files(stream.request_id)] == ["a.txt", "go"]
    extended = await requests.extend(stream.request_id, 60)
    assert extended.retained_until is not None
    assert stream.request_id in [one.request_id async for one in requests.list()]
    await stream.done()
    assert (await requests.remove(stream.request_id)).workspace is Workspace.GONE
    with pytest.raises(WorkspaceGone):
        await stream.save(tmp_path / "other")


async def test_awaited_and_cancelled(async_client: AsyncClient) -> None:
    requests = async_client.requests
    async with await requests.generate("sleep 600") as stream:
        async for frame in stream:
            if frame.event:
                break
        with pytest.raises(StateConflict):
            await stream.answer("to nothing")
        await stream.cancel()
        with pytest.raises(RequestCancelled):
            await stream.result()
    info = await requests.submit("write a b", retention={"series": "awaited"})
    assert (await requests.get(info.key, wait_s=60)).version == 1
    assert [one.version for one in await requests.versions("awaited")] == [1]
    assert "+b\n" in await requests.diff("awaited")
    await requests.remove(info.key)
    async with await requests.generate("") as stream:
        with pytest.raises(RequestInvalid):
            await stream.result()
        await stream.done()
