"""The small servers that tests of instances use are wrong as they say, and otherwise right."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from carrel.domain.instances import ToolCall
from carrel.domain.server_adapter import NotReady
from carrel.instances.handshake import greet, greet_sse
from tests.instances import misbehaving

SCRIPT = misbehaving.__file__
WAIT_S = 30.0
MARK = "TEST_STARTED_BY"
ECHO = ToolCall("echo", {"text": "hello"})


@contextlib.contextmanager
def started(*words: str, fds: tuple[int, ...] = ()) -> Iterator[tuple[subprocess.Popen[str], str]]:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", SCRIPT, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=fds,
        env={**os.environ, MARK: mark},
        start_new_session=True,
    )
    try:
        yield process, mark
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=WAIT_S)


def marked(mark: str) -> set[int]:
    """What was started from there, wherever it went."""
    found = set()
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(MARK) == mark:
                found.add(one.pid)
    return found


def told(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"running on (http://\S+)", line):
            return found[1]
    raise AssertionError("it ended")


@pytest.mark.parametrize(
    "words",
    [
        ("ok",),
        ("late", "--seconds", "0.1"),
        ("all-interfaces",),
        ("deaf",),
        ("floods", "--bytes", "100000"),
        ("eats-memory", "--bytes", "1000000", "--seconds", "0"),
        ("crash", "--seconds", "60"),
        ("stateless",),
    ],
    ids=lambda words: str(words[0]),
)
async def test_those_that_answer(words: tuple[str, ...]) -> None:
    with started(*words) as (process, _):
        url = told(process).replace("0.0.0.0", "127.0.0.1")
        greeting = await greet(f"{url}/mcp", {}, ECHO)
        assert (greeting.name, greeting.stateless) == ("misbehaving", words[0] == "stateless")


async def test_the_older_transport() -> None:
    with started("sse") as (process, _):
        assert (await greet_sse(f"{told(process)}/sse", {}, ECHO)).name == "misbehaving"


async def test_a_port_that_is_written_and_a_socket_that_is_given(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number, port = listener.fileno(), listener.getsockname()[1]
        with started("takes-fd", "--fd", str(number), fds=(number,)):
            await greet(f"http://127.0.0.1:{port}/mcp", {})
    file = tmp_path / "port"
    os.mkfifo(f"{file}.half")  # It is opened when somebody reads: no need to look again.
    with started("writes-port-file", "--port-file", str(file)):
        port = int(Path(f"{file}.half").read_text())
        await greet(f"http://127.0.0.1:{port}/mcp", {})


async def test_the_dashboard_is_no_server_and_the_said_port_is_nobodys() -> None:
    with started("two-listeners") as (process, _):
        with pytest.raises(NotReady):
            await greet(told(process).replace("/dashboard", "/mcp"), {})
        await greet(f"{told(process)}/mcp", {})
    with started("wrong-port") as (process, _), pytest.raises(NotReady):
        await greet(f"{told(process)}/mcp", {})


async def test_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "secret")
    with started("ok", "--token-from", "MINE") as (process, _):
        url = f"{told(process)}/mcp"
        await greet(url, {"Authorization": "Bearer secret"})
        with pytest.raises(NotReady, match="401"):
            await greet(url, {})


def test_those_that_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, code in (
            (("exits",), 3),
            (("clash", "--port", port), 98),
            (("crash", "--seconds", "0"), 7),
        ):
            with started(*words) as (process, _):
                assert process.wait(WAIT_S) == code
                assert process.stderr is not None and process.stderr.read().strip()


async def test_those_that_leave_something_behind() -> None:
    with started("forks-away") as (process, mark):
        url = told(process)
        assert process.wait(WAIT_S) == 0
        await greet(f"{url}/mcp", {})
        assert len(marked(mark)) == 1
    with started("leaks-children", "--count", "3") as (process, mark):
        told(process)
        left = marked(mark) - {process.pid}
        assert len(left) == 3
        assert {os.getsid(pid) for pid in left} == left
