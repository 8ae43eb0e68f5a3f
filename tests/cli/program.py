"""The installed program, as a person or a script starts it.

Commands whose output is all that is looked at are forked from a process that has loaded all of
them: hundreds would else begin an interpreter each. Who talks with one (`Program.start`,
`in_terminal`) starts the program itself, and so does `test_starting`, which sees what it loads.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.forking import forked

PROGRAM = Path(sys.executable).with_name("carrel")
TIMEOUT_S = 60.0
"""For one command, on a busy machine; most take a fraction of a second."""


class Program:
    """For one data folder."""

    def __init__(self, data: Path, cwd: Path) -> None:
        self.data = data
        self.cwd = cwd
        self.env = {
            **{name: value for name, value in os.environ.items() if _is_ours(name)},
            "CARREL_DATA": str(data),
            "PYTHONUTF8": "1",
        }
        # As most have it: written when there is enough of it.
        self.env.pop("PYTHONUNBUFFERED", None)

    def __call__(
        self, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> Done:
        whole = {**self.env, **(env or {})}
        process, ends = _forked(words, whole, self.cwd)
        with ThreadPoolExecutor(3) as threads:
            threads.submit(_feed, ends[0], stdin)
            out, err = (threads.submit(_read, end) for end in ends[1:])
            process.join(TIMEOUT_S)
            if process.exitcode is None:
                process.kill()
                raise TimeoutError(f"{words} did not end: {out.result()!r} {err.result()!r}")
            code = process.exitcode
            process.close()
            return Done(code, out.result(), err.result().decode())

    def good(self, *words: str, stdin: bytes = b"") -> str:
        """What it printed, after a look that it went well."""
        done = self(*words, stdin=stdin)
        assert done.code == 0, done
        assert "Traceback" not in done.err
        return done.out

    def json(self, *words: str) -> Any:
        return json.loads(self.good(*words, "--json"))

    def bad(self, code: int | None, *words: str, stdin: bytes = b"") -> str:
        """The sentence and the hint of an error; with None, whatever its code is."""
        done = self(*words, stdin=stdin)
        assert done.code == code if code is not None else 0 < done.code < 10, done
        lines = done.err.strip().splitlines()
        assert lines and lines[0].startswith("carrel: "), done
        assert all(line.startswith("hint: ") for line in lines[1:2]) and len(lines) <= 2, done
        return done.err

    def start(
        self, *words: str, before: Sequence[str] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        line = [*before, str(PROGRAM), *words]
        return subprocess.Popen(line, env=self.env, cwd=self.cwd, **options)


def _forked(words: Sequence[str], env: dict[str, str], cwd: Path) -> tuple[Any, list[int]]:
    """The command, and the other ends of its standard streams."""
    inside, outside = [], []
    for number in range(3):
        ends = os.pipe2(os.O_CLOEXEC)
        inside.append(Connection(ends[number != 0], readable=not number, writable=bool(number)))
        outside.append(ends[number == 0])
    process = forked.Process(target=_become, args=(words, env, str(cwd), inside))
    process.start()
    for connection in inside:
        connection.close()
    return process, outside


def _become(words: Sequence[str], env: dict[str, str], cwd: str, streams: list[Connection]) -> None:
    """As an interpreter in UTF-8 mode begins it, which `Program.env` asks for."""
    from carrel.cli.main import main

    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = [str(PROGRAM), *words]
    main()


def _feed(end: int, data: bytes) -> None:
    # It need not read all of it.
    with suppress(BrokenPipeError), open(end, "wb", buffering=0) as file:
        file.write(data)


def _read(end: int) -> bytes:
    with open(end, "rb") as file:
        return file.read()


class Done:
    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code = code
        self.bytes = out
        self.out = out.decode("utf-8", "replace")
        self.err = err

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Terminal:
    """A program in a terminal of its own, with somebody who types and reads."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master = master
        self.process = process
        self.text = b""

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def until(self, wanted: bytes, timeout_s: float = TIMEOUT_S) -> bytes:
        """Reads until that was shown; gives all that was, and forgets it."""
        until = time.monotonic() + timeout_s
        while wanted not in self.text:
            left = until - time.monotonic()
            assert left > 0, f"{wanted!r} was not shown: {self.text!r}"
            readable, _, _ = select.select([self.master], [], [], left)
            if readable:
                try:
                    piece = os.read(self.master, 65536)
                except OSError:
                    piece = b""
                assert piece, f"the program ended: {self.text!r}"
                self.text += piece
        end = self.text.index(wanted) + len(wanted)
        shown, self.text = self.text[:end], self.text[end:]
        return shown

    def rest(self) -> bytes:
        """All that is shown until the program ends."""
        while True:
            readable, _, _ = select.select([self.master], [], [], TIMEOUT_S)
            assert readable, f"the program does not end: {self.text!r}"
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                return self.text
            if not piece:
                return self.text
            self.text += piece

    def end(self) -> int:
        self.rest()
        return self.process.wait(TIMEOUT_S)

    def close(self) -> int:
        """As somebody does who closes the window."""
        os.close(self.master)
        self.master = -1
        return self.process.wait(TIMEOUT_S)

    def resize(self, rows: int, cols: int) -> None:
        """As a window does: the program that has the terminal is told."""
        termios.tcsetwinsize(self.master, (rows, cols))

    @property
    def mode(self) -> list[Any]:
        return termios.tcgetattr(self.master)


@contextmanager
def in_terminal(
    program: Program, *words: str, rows: int = 24, cols: int = 80
) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (rows, cols))
    terminal = process = None
    try:
        # `setsid --ctty` makes it the terminal's own, so that keys and windows reach it.
        process = program.start(
            *words, before=("setsid", "--ctty"), stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        slave = -1
        terminal = Terminal(master, process)
        yield terminal
    finally:
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
        if process is not None:
            process.wait(TIMEOUT_S)
        for descriptor in (master if terminal is None else terminal.master, slave):
            if descriptor >= 0:
                os.close(descriptor)


def _is_ours(name: str) -> bool:
    """Neither a person's settings nor the size of a terminal that is not the test's."""
    return not name.startswith("CARREL_") and name not in ("COLUMNS", "LINES", "NO_COLOR")
