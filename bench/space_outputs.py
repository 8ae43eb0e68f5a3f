"""How fast a large file leaves a space by `carrel exec`, and a container by `docker exec`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.containers import waiting_containers
from bench.measuring import Board, say, settle
from bench.own_spaces import Daemon
from bench.reporting import Report, Row
from bench.sandbox_rivals import RivalFailed

FILE = "f"
OWN, DOCKER, PODMAN = "carrel exec", "docker exec", "podman exec"
NULL, PIPE = "to /dev/null", "to a pipe"
LEAST = 0.5
"""Of what `docker exec` moves in the same time."""
MOVE_S = 120.0
"""For one file; the slowest engine takes a few seconds."""
READ_BYTES = 1 << 20
CHUNK = 1 << 24
PAUSE_S = 0.2
"""Before each subject: what the last one leaves to be done in the background is not the
next one's."""


@dataclass(frozen=True)
class Subject:
    """A command line that writes the file to its standard output."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def to_null(self, _size: int) -> None:
        with self._running(subprocess.DEVNULL):
            pass

    def to_pipe(self, size: int) -> None:
        buffer = bytearray(READ_BYTES)
        came = 0
        with self._running(subprocess.PIPE) as running:
            assert running.stdout is not None
            while count := os.readv(running.stdout.fileno(), [buffer]):
                came += count
        if came != size:
            raise RivalFailed(f"{came:,} of {size:,} bytes came")

    @contextmanager
    def _running(self, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
        """To its end."""
        env = {**os.environ, **self.env}
        running = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=stdout, env=env)
        timer = threading.Timer(MOVE_S, running.kill)
        timer.start()
        try:
            with running:
                yield running
        finally:
            timer.cancel()
        if running.returncode != 0:
            raise RivalFailed(f"ended with {running.returncode}")


class Outputs:
    """The file is the same everywhere: it is in the base of the space and in the image."""

    def __init__(
        self, options: argparse.Namespace, place: Path, daemon: Daemon, report: Report
    ) -> None:
        self._options = options
        self._place = place
        self._daemon = daemon
        self._report = report
        self._board = Board()
        """Of rates: a ratio says how many times as much is moved."""

    def measure(self) -> None:
        program = Path(sys.executable).with_name("carrel")
        if not program.exists():
            self._report.skip(OWN, f"{program} is not installed")
            return
        project = self._place / "large"
        project.mkdir()
        _write_file(project / FILE, self._options.output)
        base = self._daemon.client.make_base(str(project)).id
        with self._daemon.client.space(base=base) as space, ExitStack() as stack:
            env = {"CARREL_DATA": str(self._daemon.data), "CARREL_NO_START": "1", "CARREL_URL": ""}
            subjects = [Subject(OWN, (str(program), "exec", space.id, "--", "cat", FILE), env)]
            if not self._options.no_containers:
                found, missing = stack.enter_context(waiting_containers(self._place, project))
                for name, why in missing.items():
                    self._report.skip(f"a large file, {name} exec", why)
                for name, (engine, mark) in found.items():
                    argv = (*engine.argv, "exec", mark, "cat", f"/workspace/{FILE}")
                    subjects.append(Subject(f"{name} exec", argv, engine.env))
            self._in_turn(subjects)
        self._tell()

    def _in_turn(self, subjects: list[Subject]) -> None:
        """Once untimed: the first command sets its sandbox up. Then the order changes from
        round to round."""
        settle()
        for subject in subjects:
            self._try(subject, None)
        for number in range(self._options.rounds):
            say(f"a large file, round {number + 1} of {self._options.rounds}")
            turn = number % len(subjects)
            for subject in subjects[turn:] + subjects[:turn]:
                self._try(subject, number)

    def _try(self, subject: Subject, number: int | None) -> None:
        """`None`: not noted."""
        size = self._options.output
        for where, move in ((NULL, subject.to_null), (PIPE, subject.to_pipe)):
            name = f"{subject.name} {where}"
            time.sleep(PAUSE_S)
            begun = time.perf_counter()
            try:
                move(size)
            except RivalFailed as error:
                self._report.skip(f"a large file, {name}", str(error))
                continue
            if number is not None:
                self._board.add(name, number, size / 1e6 / (time.perf_counter() - begun))

    def _tell(self) -> None:
        board, report = self._board, self._report
        for name in board.names:
            report.rows.append(Row(f"a large file, {name}", "MB/s", board.spread(name)))
        for where in (NULL, PIPE):
            own, docker = f"{OWN} {where}", f"{DOCKER} {where}"
            if own in board and docker in board:
                name = f"a large file {where}: {OWN} / {DOCKER}"
                report.at_least(name, LEAST, "x", board.ratio(own, docker))
            report.add_ratio(board, own, f"{PODMAN} {where}")


def _write_file(path: Path, size: int) -> None:
    with path.open("wb") as file:
        while left := size - file.tell():
            file.write(os.urandom(min(CHUNK, left)))
