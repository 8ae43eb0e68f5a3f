"""What the program does that runs a driver inside a sandbox.

Its first line of input says what to do (`wire.Start`), the lines after it are said to the agent
(`Control`). It writes a line for everything told, and `complete` as the last. The end of its
input does not end the turn: whoever spoke to it may have died, and what it writes stays.
SIGINT interrupts the agent, SIGTERM stops it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading

from carrel.agents import wire
from carrel.agents.events import failed, payload_of
from carrel.agents.requests import with_values
from carrel.agents.turns import conduct
from carrel.agents.wire import load
from carrel.domain.errors import FrontendNotInstalled, Interrupted, MessageInvalid
from carrel.domain.turns import AgentEventType, Control, ControlKind, Permission, Told, TurnResult


class LineReader:
    """Reads lines from a descriptor, without a buffer that another thread could hold."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def next(self) -> bytes:
        """Empty at the end. A last line without its end counts."""
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            part = os.read(self._descriptor, 65536)
            if not part:
                self._rest = b""
                return b"".join(parts)
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line + b"\n"


class OutputStage:
    """Implements `Stage`: every line is written whole, at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._torn = False
        self._controls: asyncio.Queue[Control] = asyncio.Queue()

    def tell(self, told: Told) -> None:
        """A full disk or a reader that is gone costs this line, not the turn."""
        left = wire.told_line(told)
        if self._torn:
            left = b"\n" + left
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
            self._torn = False
        except OSError:
            self._torn = True

    async def control(self) -> Control:
        return await self._controls.get()

    def said(self, line: bytes) -> None:
        try:
            self._controls.put_nowait(wire.read_control(line))
        except ValueError as error:
            self.tell(Told(AgentEventType.LOG, {"text": f"Not understood: {error}"}))

    def interrupt(self) -> None:
        self._controls.put_nowait(Control(ControlKind.INTERRUPT))


async def run(start: wire.Start, lines: LineReader, output: OutputStage) -> TurnResult:
    loop = asyncio.get_running_loop()
    try:
        driver = load(start.driver, start.options)
    except FrontendNotInstalled as error:
        return failed(error)
    if start.request.permission is Permission.ASK:
        hide()
    # What was loaded stays; what comes now may go.
    gc.freeze()
    gc.enable()
    setup = with_values(start.setup)
    work = asyncio.ensure_future(conduct(driver, start.request, setup, output))
    loop.add_signal_handler(signal.SIGINT, output.interrupt)
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    threading.Thread(target=_hear, args=(lines, loop, output), daemon=True).start()
    try:
        return await work
    except asyncio.CancelledError:
        return failed(Interrupted("The turn was stopped."))


def _hear(lines: LineReader, loop: asyncio.AbstractEventLoop, output: OutputStage) -> None:
    """Runs in a thread: standard input may be a file, which no loop can wait for."""
    try:
        while line := lines.next():
            if line.strip():
                loop.call_soon_threadsafe(output.said, line)
    except (OSError, RuntimeError):
        return  # It cannot be read, or the turn is over.


def main() -> int:
    # What a library prints must not stand between the lines.
    output = OutputStage(os.dup(1))
    os.dup2(2, 1)
    lines = LineReader(0)
    try:
        start = wire.read_start(lines.next())
    except ValueError as error:
        result = failed(MessageInvalid(f"The first line was not understood: {error}"))
    else:
        result = asyncio.run(run(start, lines, output))
    output.tell(Told(AgentEventType.COMPLETE, {"result": payload_of(result)}))
    if result.error is not None and "traceback" in result.error.details:
        print(result.error.details["traceback"], file=sys.stderr)
    return 0 if result.success else 1


# A command that was allowed could write an answer to the next question into the driver's own
# input, so a driver that asks hides itself from its agent.

_PR_SET_DUMPABLE = 4


def hide() -> None:
    """Hides this process from others of the same user, until it executes another program. Root
    sees it all the same."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
