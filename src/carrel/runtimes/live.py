"""A live run: its streams, and its end as the launcher tells it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.domain.errors import LauncherUnavailable
from carrel.domain.runtimes import Exit, ExitReason
from carrel.runtimes.streams import Streams

AGAIN_S = (0.05, 0.2, 1.0, 3.0, 10.0)
"""The pauses of who asks for the end of a run and gets no answer."""


@dataclass(frozen=True)
class Links:
    """What a live run asks of others."""

    find: Callable[[LiveRun], Awaitable[dict[str, Any] | None]]
    """Asks again how a run ended, when the launcher went away before it could tell."""
    end_input: Callable[[], Awaitable[None]]
    """Makes the launcher close its end of standard input."""
    on_exit: Callable[[Exit], None]


def parse_exit(record: dict[str, Any]) -> Exit:
    return Exit(
        reason=ExitReason(record["reason"]),
        code=record["code"],
        signal=record["signal"],
        started_at=record["started_at"],
        ended_at=record["ended_at"],
        cpu_seconds=record["cpu_seconds"],
        max_rss_bytes=record["max_rss_bytes"],
    )


class LiveRun:
    """Implements `Run`. Made inside the running event loop, which hears of its end."""

    def __init__(self, run_id: str, streams: Streams, exit_pipe: int, links: Links) -> None:
        self.run_id = run_id
        self.pid = 0
        self._streams = streams
        self._exit_pipe = exit_pipe
        self._links = links
        self._told = b""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        self._search: asyncio.Task[None] | None = None

    @property
    def stdin(self) -> int | None:
        return self._streams.stdin

    @property
    def input_bytes(self) -> int | None:
        count = self._streams.count
        return None if count is None else count.given

    def give(self, data: bytes | memoryview) -> int:
        return self._streams.give(data)

    @property
    def stdout(self) -> Path | int | None:
        return self._streams.stdout

    @property
    def stderr(self) -> Path | int | None:
        return self._streams.stderr

    def begin(self, pid: int) -> None:
        self.pid = pid
        os.set_blocking(self._exit_pipe, False)
        self._loop.add_reader(self._exit_pipe, self._readable)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._exit_pipe, 65536)
        except BlockingIOError:
            return
        self._told += chunk
        if chunk and not self._told.endswith(b"\n"):
            return
        self._close_pipe()
        if self._told.endswith(b"\n"):
            self._end(parse_exit(json.loads(self._told)))
        else:
            self._search = self._loop.create_task(self._look_for_end())

    async def _look_for_end(self) -> None:
        try:
            record = await self._find()
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            return
        if record is not None:
            self._end(parse_exit(record))

    async def _find(self) -> dict[str, Any] | None:
        """The launcher that should know may be killed as well, or be slow to start."""
        for pause_s in AGAIN_S:
            try:
                return await self._links.find(self)
            except LauncherUnavailable:
                await asyncio.sleep(pause_s)
        return await self._links.find(self)

    def resume(self, exit_pipe: int) -> None:
        """Another launcher has taken the run up."""
        self._exit_pipe = exit_pipe
        self._told = b""
        self.begin(self.pid)

    def _end(self, ended: Exit) -> None:
        if self._ended.done():
            return
        self._ended.set_result(ended)
        self._links.on_exit(ended)

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    def _close_pipe(self) -> None:
        if self._exit_pipe >= 0:
            self._loop.remove_reader(self._exit_pipe)
            os.close(self._exit_pipe)
            self._exit_pipe = -1

    def still_held(self) -> tuple[str, list[int]]:
        """What a launcher that takes the run up cannot have from elsewhere, and its name."""
        stdin = self._streams.stdin
        if stdin is None or not (self._streams.terminal or self._streams.held):
            return "", []
        return "terminal" if self._streams.terminal else "input", [stdin]

    async def close_input(self) -> None:
        if self._streams.terminal:
            return
        self._streams.close_stdin()
        if self._streams.held:
            self._streams.held = False
            await self._links.end_input()

    def resize(self, rows: int, cols: int) -> None:
        self._streams.resize(rows, cols)

    def close(self) -> None:
        self._streams.close_ours()
        self._close_pipe()
        if self._search is not None:
            self._search.cancel()
        if not self._ended.done():
            self._ended.cancel()
