"""`carrel codesmith` as its clients start it, and a look at what it has running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from tests.cli.program import PROGRAM
from tests.mcp.dialogue import INITIALIZED, LONGEST, Message, encoded, initialize, request
from tests.mcp.rig import STEP_S

LOOK_S = 0.01


def environment(data: Path) -> dict[str, str]:
    return {**os.environ, "CARREL_DATA": str(data)}


@contextlib.asynccontextmanager
async def client(data: Path, *words: str, mode: Any = "auto") -> AsyncIterator[Client]:
    """The SDK's own."""
    server = StdioServerParameters(
        command=str(PROGRAM), args=["codesmith", *words], env=environment(data)
    )
    async with asyncio.timeout(2 * STEP_S), Client(server, mode=mode) as found:
        yield found


class Smith:
    """By hand: every byte is seen."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.heard: list[Message] = []

    def say(self, *messages: Message | bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encoded(messages))

    def call(self, id: Any, token: Any = None, **arguments: Any) -> None:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        params = {"name": "generate", "arguments": arguments, **meta}
        self.say(request(id, "tools/call", params))

    def cancel(self, id: Any) -> None:
        method = "notifications/cancelled"
        self.say({"jsonrpc": "2.0", "method": method, "params": {"requestId": id}})

    async def answer(self, id: Any) -> Message:
        """The answer to that, however much is said before."""
        while not (found := [one for one in self.heard if one.get("id", self) == id]):
            await self.message()
        assert len(found) == 1
        return found[0]

    async def result(self, id: Any) -> Message:
        return dict((await self.answer(id))["result"])

    async def message(self) -> Message:
        assert self.process.stdout is not None
        message = json.loads(await self.process.stdout.readline())
        assert message["jsonrpc"] == "2.0"
        self.heard.append(message)
        return dict(message)

    async def end(self) -> tuple[bytes, str]:
        """What it still said, and all that it told people."""
        out, err = await self.process.communicate(b"")
        assert self.process.returncode == 0, err
        return out, err.decode()


@contextlib.asynccontextmanager
async def smith(data: Path, *words: str) -> AsyncIterator[Smith]:
    """One that is spoken with already. Ends it, if a test has not."""
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), "codesmith", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        limit=LONGEST,
        env=environment(data),
    )
    found = Smith(process)
    try:
        async with asyncio.timeout(2 * STEP_S):
            found.say(initialize(), INITIALIZED)
            await found.answer(0)
            yield found
            if process.returncode is None:
                await process.communicate(b"")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def good(result: Message) -> dict[str, Any]:
    """What it holds, after a look that both ways to tell it say the same."""
    assert not result["isError"], result
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    return dict(result["structuredContent"])


def bad(result: Message) -> dict[str, Any]:
    assert result["isError"] and json.loads(result["content"][0]["text"])["message"], result
    content = dict(result["structuredContent"])
    assert content["code"] and content["message"] and set(content) == {"code", "message", "hint"}
    return content


def paths(content: dict[str, Any]) -> list[str]:
    return [file["path"] for file in content["files"]]


# Processes


def running(mark: str) -> list[int]:
    """The processes of this machine whose command has that word."""
    return [pid for pid, words in _commands() if mark.encode() in words]


def _commands() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes()


async def begun(mark: str) -> None:
    await _until(lambda: bool(running(mark)), STEP_S)


async def gone(mark: str, within_s: float) -> float:
    """How long it took."""
    since = time.monotonic()
    await _until(lambda: not running(mark), within_s)
    return time.monotonic() - since


async def _until(holds: Any, within_s: float) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "it took too long"
        await asyncio.sleep(LOOK_S)


def memory_of(pid: int) -> int:
    """Resident, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def work_of(pid: int) -> list[tuple[int, ...]]:
    """Of each thread: how long it ran, in nanoseconds, and how often."""
    tasks = sorted(Path(f"/proc/{pid}/task").iterdir())
    figures = [(one / "schedstat").read_text().split() for one in tasks]
    return [(int(ran), int(times)) for ran, _, times in figures]
