"""A stage, a setup and a program for the tests of drivers."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from carrel.agents import wire
from carrel.agents.programs import Locator
from carrel.domain.agents import Prepared, Translator
from carrel.domain.turns import AgentEventType, AgentSetup, Control, ControlKind, Told, TurnResult
from tests.agents.installed import require_programs

WAIT_S = 60.0
"""For a real agent on a busy machine."""

PINNED = Path(__file__).parents[2] / "tools" / "agents"
"""Where `make setup` puts the programs."""

INTERRUPT = Control(ControlKind.INTERRUPT)


def setup_in(folder: Path, *, confined: bool = True, mcp: tuple[str, ...] = ()) -> AgentSetup:
    for name in ("workspace", "state", "context"):
        (folder / name).mkdir(exist_ok=True)
    return AgentSetup(
        str(folder / "workspace"), str(folder / "state"), str(folder / "context"), confined, mcp
    )


def pinned(folder: Path, *frontends: str) -> Locator:
    """Finds the pinned programs as if Carrel had installed them."""
    require_programs()
    own = folder / "own"
    own.mkdir()
    for frontend in frontends:
        (own / frontend).symlink_to(PINNED, target_is_directory=True)
    return Locator(own)


def code_of(result: TurnResult) -> str:
    return result.error.code if result.error else ""


class Heard:
    """Implements `Stage`: keeps what was told; `when` answers it."""

    def __init__(self, when: Callable[[Told], Control | None] | None = None) -> None:
        self.all: list[Told] = []
        self.controls: asyncio.Queue[Control] = asyncio.Queue()
        self._when = when

    def tell(self, told: Told) -> None:
        self.all.append(told)
        if self._when is not None and (control := self._when(told)) is not None:
            self.controls.put_nowait(control)

    async def control(self) -> Control:
        return await self.controls.get()

    def of(self, type: AgentEventType) -> list[Told]:
        return [told for told in self.all if told.type is type]

    @property
    def texts(self) -> list[Any]:
        return [told.payload["text"] for told in self.of(AgentEventType.MESSAGE)]

    @property
    def key(self) -> str:
        return next((told.key for told in self.all if told.key), "")


class Program:
    """A driver's program as the service starts it."""

    def __init__(self, process: asyncio.subprocess.Process, translator: Translator) -> None:
        self.process = process
        self._translator = translator
        self.heard = Heard()

    async def line(self) -> bytes:
        """The next one that it wrote; empty at the end."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), WAIT_S)
        for told in self._translator.line(line.rstrip(b"\n")):
            self.heard.tell(told)
        return line

    async def until(self, type: AgentEventType) -> None:
        while not self.heard.of(type):
            assert await self.line(), "the program ended too early"

    async def say(self, control: Control) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(wire.line_of(control))
        await self.process.stdin.drain()

    async def result(self) -> TurnResult:
        while await self.line():
            pass
        assert self.process.stderr is not None
        stderr = await asyncio.wait_for(self.process.stderr.read(), WAIT_S)
        code = await asyncio.wait_for(self.process.wait(), WAIT_S)
        return self._translator.ended(code if code >= 0 else None, stderr.decode())


@asynccontextmanager
async def started(
    prepared: Prepared, setup: AgentSetup, translator: Translator
) -> AsyncIterator[Program]:
    for name, content in prepared.files.items():
        file = Path(setup.state, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *prepared.argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=setup.workspace,
        env={**os.environ, **prepared.env},
        start_new_session=True,
        limit=1 << 24,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(prepared.first)
        await process.stdin.drain()
        if not prepared.duplex:
            process.stdin.close()
        yield Program(process, translator)
    finally:
        _kill(process.pid)
        await asyncio.wait_for(process.wait(), WAIT_S)
        process.stdin.close()


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_gone(pid: int) -> bool:
    """Waits for one that is dying."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    try:
        return bool(waiting.poll(WAIT_S * 1000))
    finally:
        os.close(process)


class Held:
    """A command of an agent that is known to run, and known to be gone: it reads a pipe with a
    name, of which this is the other end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "held"
        os.mkfifo(self._path)
        self.command = f"cat {self._path}"
        self._end = -1

    async def taken(self) -> None:
        """The command runs."""
        opening = asyncio.to_thread(os.open, self._path, os.O_WRONLY)
        try:
            self._end = await asyncio.wait_for(asyncio.shield(opening), WAIT_S)
        except TimeoutError:
            # Lets the thread go.
            os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))
            raise

    def is_free(self) -> bool:
        """Nobody has it any more; waits for those that are dying."""
        waiting = select.poll()
        waiting.register(self._end, 0)
        try:
            return bool(waiting.poll(WAIT_S * 1000))
        finally:
            os.close(self._end)
