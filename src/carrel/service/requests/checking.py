"""The command that is given with a request, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib

from carrel.domain.errors import CarrelError, CommandError, RunNotFound
from carrel.domain.requests import Checked, Request
from carrel.domain.runs import RunRecord, RunState, Stream
from carrel.domain.runtimes import Command, ExitReason
from carrel.service.requests.parts import RequestParts

TAIL_BYTES = 16_000


async def run(parts: RequestParts, request: Request, run_id: str) -> Checked | None:
    """To its end, whoever began it. What came of it, when it cannot even be started."""
    check = request.asked.check
    assert check is not None
    try:
        await parts.runs.get(run_id)
    except RunNotFound:
        command = Command(check.argv, timeout_s=check.timeout_s)
        try:
            await parts.runs.start(request.space_id, command, run_id=run_id)
        except CommandError as error:
            return Checked(False, None, error.code, error.message)
    await parts.runs.wait(run_id)
    return None


async def outcome(parts: RequestParts, run_id: str) -> Checked:
    record = await parts.runs.get(run_id)
    ended = record.exit
    if record.state is RunState.FAILED or ended is None:
        return Checked(False, None, record.failure_code or "lost", record.failure)
    output = await _tail(parts, record)
    passed = ended.reason is ExitReason.EXITED and ended.code == 0
    seconds = round(ended.ended_at - ended.started_at, 3)
    return Checked(passed, ended.code, str(ended.reason), output, seconds)


async def _tail(parts: RequestParts, record: RunRecord) -> str:
    """The end of what it wrote, of both streams."""
    folder = parts.desks.folder(record.space_id)
    found = b""
    for stream in (Stream.STDOUT, Stream.STDERR):
        with contextlib.suppress(CarrelError, OSError):
            size = await asyncio.to_thread(parts.recordings.size, folder, record.run_id, stream)
            first = max(0, size - TAIL_BYTES)
            piece = await parts.runs.read(record, stream, first, TAIL_BYTES)
            found += piece.data
    return found[-TAIL_BYTES:].decode(errors="replace")
