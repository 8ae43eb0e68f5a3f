"""Processes that do jobs at the same time, and end with whoever asked for them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.hub_jobs import GO, READY, Job, Result

WORKER = Path(__file__).with_name("hub_workers.py")
MOST_S = 600.0
"""Longer than any job: what hangs ends here."""
END_S = 20.0
"""For a process that has done its job to say goodbye, a thousand times if it has as many
clients."""


class WorkerFailed(RuntimeError):
    """With what it said last."""


class Worker:
    def __init__(self, job: Job) -> None:
        self.job = job
        # In a session of its own: Ctrl-C is for the benchmark, which then ends this.
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self._timer = threading.Timer(MOST_S, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def begin(self) -> None:
        self._say(msgspec.json.encode(self.job).decode())

    def await_ready(self) -> None:
        if self._hear() != READY:
            raise self._failed()

    def go(self) -> None:
        self._say(GO)

    def result(self) -> Result:
        said = self._hear()
        if not said:
            raise self._failed()
        return msgspec.json.decode(said, type=Result)

    def end(self) -> None:
        """It is told by the end of its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.result()
        self._process.wait(END_S)

    def close(self) -> None:
        """Whatever it does; nothing is left."""
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _failed(self) -> WorkerFailed:
        assert self._process.stderr is not None
        said = self._process.stderr.read().strip()
        job = self.job
        return WorkerFailed(f"{job.side}, {job.role}: {said or 'it ended without a word'}")


@contextmanager
def ready(jobs: Sequence[Job]) -> Iterator[list[Worker]]:
    """All connected, none begun."""
    with ExitStack() as stack:
        workers = []
        for job in jobs:
            workers.append(Worker(job))
            stack.callback(workers[-1].close)
        for worker in workers:
            worker.begin()
        for worker in workers:
            worker.await_ready()
        yield workers


def do(jobs: Sequence[Job]) -> list[Result]:
    """At the same time; ends when the last is done. `WorkerFailed` when one is not."""
    with ready(jobs) as workers:
        for worker in workers:
            worker.go()
        return [worker.result() for worker in workers]


@contextmanager
def meanwhile(jobs: Sequence[Job]) -> Iterator[None]:
    """Jobs that go on until the end of this, and then end in peace."""
    with ready(jobs) as workers:
        for worker in workers:
            worker.go()
        yield
        for worker in workers:
            worker.end()


def duration_s(results: Sequence[Result]) -> float:
    """From the first that began to the last that ended."""
    return (max(one.ended for one in results) - min(one.begun for one in results)) / 1e9
