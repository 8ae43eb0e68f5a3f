"""Live handles for the async client: as `spaces`, awaitable."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, Unpack

from carrel.client import calls, models, transfer
from carrel.client.aio_link import AsyncLink
from carrel.client.aio_streaming import AsyncRunStream
from carrel.client.calls import Call, CommandOptions, TurnOptions
from carrel.client.exchange import Exchange, Output
from carrel.client.link import Link
from carrel.client.results import MAX_OUTPUT, Collector, RunResult
from carrel.client.spaces import GRACE_S, Input, input_pieces
from carrel.domain.errors import DaemonUnavailable
from carrel.domain.runs import Stream
from carrel.domain.spaces import Retention

T = TypeVar("T")


class _Handle:
    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def _send(self, call: Call[T]) -> T:
        return call.decode(await self._link.json(call.request))


class AsyncSpace(_Handle):
    """See `Space`."""

    def __init__(self, link: AsyncLink, info: models.SpaceInfo) -> None:
        super().__init__(link)
        self.info = info
        self.files = AsyncFiles(link, info.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    def __repr__(self) -> str:
        return f"<AsyncSpace {self.name} {self.id} {self.info.state}>"

    # Commands

    async def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = False,
        stdin: Input = None,
        max_output_bytes: int = MAX_OUTPUT,
        **options: Unpack[CommandOptions],
    ) -> RunResult:
        """To its end. A command that fails is no error, unless `check` is asked for
        (`CommandFailed`); one that cannot be started is (`CommandError`s)."""
        content = calls.command_content(argv, options)
        content["stdin"] = stdin is not None
        collector = Collector(max_output_bytes)
        exchange = Exchange.starting(self.id, content)
        async with await AsyncRunStream(self._link, exchange).open() as stream:
            feeding = asyncio.create_task(_feed(stream, stdin))
            try:
                async for output in stream:
                    collector.add(output)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        result = collector.result(exchange.run)
        return result.check() if check else result

    async def start_run(
        self, argv: Sequence[str], *, stdin: str = "", **options: Unpack[CommandOptions]
    ) -> AsyncRunHandle:
        """Starts a command and does not wait. It goes on when this program ends."""
        content = calls.command_content(argv, options)
        if stdin:
            content["stdin"] = stdin
        return AsyncRunHandle(self._link, await self._send(calls.start_run(self.id, content)))

    async def runs(self) -> list[AsyncRunHandle]:
        """Its commands, newest first."""
        found = await self._send(calls.runs(self.id))
        return [AsyncRunHandle(self._link, info) for info in found]

    # Agents

    async def send(
        self, prompt: str, *, wait: bool = True, **options: Unpack[TurnOptions]
    ) -> models.Turn:
        """Gives the agent of the space something to do. With `wait` to its end, which is a
        success or an error in `result`; else it is told when the agent works. A conversation
        goes on only when a `continuation` is passed. Raises `AgentError`s when it cannot begin,
        and `StateConflict` when another turn runs."""
        content = calls.turn_content(prompt, options)
        turn = await self._send(calls.start_turn(self.id, content))
        return await self.wait_for(turn) if wait else turn

    async def wait_for(self, turn: models.Turn, timeout_s: float | None = None) -> models.Turn:
        """The turn when it has ended, or as it is when the time is over."""
        for wait_s in calls.waits(timeout_s):
            turn = await self._send(calls.turn(turn.id, wait_s))
            if turn.ended:
                break
        return turn

    async def turns(self) -> list[models.Turn]:
        """Newest first."""
        return await self._send(calls.turns(self.id))

    async def open_terminal(self, prompt: str = "", **options: Unpack[TurnOptions]) -> models.Turn:
        """The agent in a terminal of the space; it may be told something first. It raises what
        `send` does, and `UnsupportedFrontend` when the agent has no terminal."""
        content = {**calls.turn_content(prompt, options), "terminal": True}
        return await self._send(calls.start_turn(self.id, content))

    async def terminal(self, *, read_only: bool = False) -> models.Attaching:
        """The command in the space that attaches to the terminal of its agent, when that is
        up. `StateConflict` when there is none."""
        return await self._send(calls.terminal(self.id, read_only))

    async def stop_agent(self, turn: models.Turn) -> models.Turn:
        """Ends the agent, in a terminal too; `wait_for` tells its end."""
        return await self._send(calls.stop_turn(turn.id))

    async def interrupt(self, turn: models.Turn) -> models.Turn:
        """As Ctrl-C; `wait_for` tells its end."""
        return await self._send(calls.interrupt(turn.id))

    async def queue_input(self, turn: models.Turn, text: str) -> models.Turn:
        """Said to an agent that works. `UnsupportedFrontend` when it does not listen."""
        return await self._send(calls.queue_input(turn.id, text))

    async def decide(self, turn: models.Turn, permission: str, allow: bool) -> models.Turn:
        """Answers one of the turn's `permissions`. `StateConflict` when it does not wait for
        that one."""
        return await self._send(calls.decide(turn.id, permission, allow))

    async def context(self) -> list[models.ContextFile]:
        """What its agent is given to read, beside the project."""
        return await self._send(calls.context(self.id))

    async def put_context(self, name: str, data: bytes) -> None:
        """Instead of what had that name; the agent sees it at once."""
        await self._send(calls.put_context(self.id, name, data))

    async def remove_context(self, name: str) -> None:
        await self._send(calls.remove_context(self.id, name))

    # Its life

    async def refresh(self) -> models.SpaceInfo:
        return await self._now(calls.space(self.id))

    async def stop(self, *, grace_s: float = GRACE_S) -> models.SpaceInfo:
        """Nothing of it runs when this returns."""
        return await self._now(calls.stop(self.id, grace_s))

    async def start(self) -> models.SpaceInfo:
        """After a stop, or a failure."""
        return await self._now(calls.start(self.id))

    async def update(
        self,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
    ) -> models.SpaceInfo:
        """Labels and retention are replaced as a whole."""
        return await self._now(calls.update(self.id, name, labels, retention))

    async def remove(self, *, force: bool = False) -> models.Removal:
        """Raises `UnexportedChanges` unless `force`; nothing of it is left but what
        `undelete` needs."""
        return await self._send(calls.remove(self.id, force))

    # Looking

    async def changes(self) -> list[models.Change]:
        """What differs from its base."""
        return await self._send(calls.changes(self.id))

    async def usage(self) -> models.Usage:
        return await self._send(calls.usage(self.id))

    async def verify(self) -> models.Proof:
        """Tries to break out, now."""
        return await self._send(calls.verify(self.id))

    async def _now(self, call: Call[models.SpaceInfo]) -> models.SpaceInfo:
        self.info = await self._send(call)
        return self.info


class AsyncFiles(_Handle):
    """See `Files`."""

    def __init__(self, link: AsyncLink, space: str) -> None:
        super().__init__(link)
        self._space = space

    async def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """All of it, or the bytes from `start` up to (not with) `end`."""
        return (await self._link.ask(calls.read(self._space, path, start, end))).check().body

    async def write(
        self, path: str, data: bytes | str | Iterable[bytes], *, mode: int | None = None
    ) -> None:
        """Replaces it as a whole, or makes it."""
        content = data.encode() if isinstance(data, str) else data
        await self._send(calls.write(self._space, path, content, mode))

    async def list(self, path: str = ".") -> list[models.File]:
        return await self._send(calls.list_files(self._space, path))

    async def stat(self, path: str) -> models.File:
        return await self._send(calls.stat(self._space, path))

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        await self._send(calls.mkdir(self._space, path, mode, parents))

    async def move(self, source: str, target: str, *, replace: bool = False) -> None:
        await self._send(calls.move(self._space, source, target, replace))

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        await self._send(calls.delete(self._space, path, recursive))

    async def download(self, path: str, dest: str | os.PathLike[str] = ".") -> transfer.Moved:
        """A file or folder to this machine: into a folder that is there, else under the new
        name. Symlinks that lead out are left out, and told."""
        return await self._in_thread(transfer.download, path, os.fspath(dest))

    async def upload(self, source: str | os.PathLike[str], path: str = ".") -> transfer.Moved:
        """A file or folder of this machine, likewise."""
        return await self._in_thread(transfer.upload, os.fspath(source), path)

    async def _in_thread(
        self, work: Callable[[Link, str, str, str], transfer.Moved], first: str, second: str
    ) -> transfer.Moved:
        """Disks and compression block, so all of it is done by the sync client's parts."""
        own = self._link
        link = Link(own.place, timeout_s=own.timeout_s, start=own.start)
        try:
            return await asyncio.to_thread(work, link, self._space, first, second)
        finally:
            link.close()


class AsyncRunHandle(_Handle):
    """See `RunHandle`."""

    def __init__(self, link: AsyncLink, info: models.RunInfo) -> None:
        super().__init__(link)
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    def __repr__(self) -> str:
        return f"<AsyncRunHandle {self.id} {self.info.state}>"

    async def refresh(self) -> models.RunInfo:
        self.info = await self._send(calls.run(self.id))
        return self.info

    async def wait(self, timeout_s: float | None = None) -> models.RunInfo:
        """When it has ended, or as it is when the time is over."""
        for pause in calls.waits(timeout_s):
            self.info = await self._send(calls.wait(self.id, pause))
            if self.info.ended:
                break
        return self.info

    async def signal(self, name: str) -> None:
        """To the command's process group: TERM, INT, KILL, …"""
        await self._send(calls.signal(self.id, name))

    async def output(self, *, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Output]:
        """All its output from these offsets on, as it comes, to its end."""
        async with await self.attach(stdout=stdout, stderr=stderr) as stream:
            async for output in stream:
                yield output
        self.info = models.decode(stream.exchange.run, models.RunInfo)

    async def read(self, stream: Stream | str = Stream.STDOUT, *, offset: int = 0) -> bytes:
        """What there is of one stream now."""
        pieces: list[bytes] = []
        while True:
            answer = (await self._link.ask(calls.output(self.id, str(stream), offset))).check()
            if not answer.body:
                return b"".join(pieces)
            pieces.append(answer.body)
            offset = int(answer.head.headers["carrel-offset"]) + len(answer.body)

    async def attach(self, *, stdout: int = 0, stderr: int = 0) -> AsyncRunStream:
        """Its streams, to be read, written to, resized."""
        exchange = Exchange.attaching(self.id, stdout, stderr)
        return await AsyncRunStream(self._link, exchange).open()


async def _feed(stream: AsyncRunStream, stdin: Input) -> None:
    if stdin is None:
        return
    pieces = input_pieces(stdin)
    try:
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await stream.input(piece)
        await stream.close_input()
    except DaemonUnavailable:
        # Whoever reads the output hears of it too, and tells.
        return
