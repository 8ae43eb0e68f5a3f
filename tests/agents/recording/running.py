"""Runs a program to its end, line by line, and never leaves one behind."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ANSWER_SECONDS = 60.0
"""The longest silence of a program that has something to do, on a busy machine."""
END_SECONDS = 20.0
"""From the end of its input to the end of a program; an adapter takes two seconds."""
POLL_SECONDS = 0.02


@dataclass
class Conversation:
    """A program that runs, with lines to and from it. `exit` is there when it has ended."""

    process: subprocess.Popen[bytes]
    errors: Path
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)
    exit: int | None = None

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> str | None:
        """The next line; none when there are no more."""
        return self.lines.get(timeout=ANSWER_SECONDS)

    def rest(self) -> Iterator[str]:
        while (line := self.read()) is not None:
            yield line

    def finish(self) -> None:
        """Closes its input, and waits for its end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.exit = self.process.wait(END_SECONDS)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def complaints(self) -> str:
        return self.errors.read_text()


@contextlib.contextmanager
def running(
    argv: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[Conversation]:
    """In a process group of its own, all of which is gone at the end."""
    with tempfile.TemporaryDirectory() as kept:
        errors = Path(kept, "stderr")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        conversation = Conversation(process, errors)
        reader = threading.Thread(target=_read, args=(conversation,), daemon=True)
        reader.start()
        try:
            yield conversation
        finally:
            _kill_group(process)
            reader.join(END_SECONDS)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _read(conversation: Conversation) -> None:
    assert conversation.process.stdout is not None
    for line in conversation.process.stdout:
        conversation.lines.put(line.decode().rstrip("\n"))
    conversation.lines.put(None)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Children may outlive their parent for a moment, and would write to what is removed."""
    until = time.monotonic() + END_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            time.sleep(POLL_SECONDS)
    process.wait(END_SECONDS)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + ANSWER_SECONDS
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("what was waited for did not come")
        time.sleep(POLL_SECONDS)
