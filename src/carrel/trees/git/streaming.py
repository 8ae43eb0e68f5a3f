"""Git with an input that is written as it comes, or an output that is read as it comes.

As in `runner`: nobody's settings, a process group of its own, bounded in time, and gone when
the caller is.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from carrel.domain.errors import GitFailed, GitTimeout
from carrel.trees.git.environment import environment, options
from carrel.trees.git.runner import close_streams, command_name, failure, kill

Write = Callable[[bytes], object]

_CHUNK = 1 << 16
_END_S = 60.0
"""From the end of its input to git's own: it writes an index of what it got."""
_SAID = 16 << 10
_ERRORS = "errors"


@contextlib.contextmanager
def feed_git(args: Sequence[str], *, folder: Path, timeout_s: float) -> Iterator[Write]:
    """Runs git in `folder`, a bare repository of ours, and gives it what is written. When the
    context ends it has ended well; else `GitFailed`, `GitTimeout`, `InsufficientDisk`."""
    with _running(args, folder, feeds=True) as process:
        late = threading.Event()

        def give_up() -> None:
            late.set()
            kill(process)

        timer = threading.Timer(timeout_s, give_up)
        timer.start()
        stdin = process.stdin
        assert stdin is not None
        try:
            # What git did not take is told by how it ended.
            with contextlib.suppress(BrokenPipeError):
                yield stdin.write
                stdin.close()
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            late.set()
        finally:
            timer.cancel()
            timer.join()
        _expect_well(args, folder, process, timeout_s if late.is_set() else None)


def read_git(args: Sequence[str], *, folder: Path, idle_s: float) -> Generator[bytes, None, None]:
    """What git prints, as it prints it. It may be silent for so long; how long the reader
    takes does not count."""
    with _running(args, folder, feeds=False) as process:
        stdout = process.stdout
        assert stdout is not None
        silent = None
        while True:
            if not select.select([stdout], [], [], idle_s)[0]:
                silent = idle_s
                break
            piece = os.read(stdout.fileno(), _CHUNK)
            if not piece:
                break
            yield piece
        if silent is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        _expect_well(args, folder, process, silent)


@contextlib.contextmanager
def _running(
    args: Sequence[str], folder: Path, *, feeds: bool
) -> Iterator[subprocess.Popen[bytes]]:
    errors = os.open(folder / _ERRORS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            ["git", *options(remote=False), *args],
            cwd=folder,
            env=environment({"GIT_DIR": "."}, remote=False),
            stdin=subprocess.PIPE if feeds else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if feeds else subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            umask=0o077,
        )
    except FileNotFoundError as error:
        raise GitFailed("git is not installed.", hint="Install the package `git`.") from error
    finally:
        os.close(errors)
    try:
        yield process
    finally:
        kill(process)
        close_streams(process)


def _expect_well(
    args: Sequence[str], folder: Path, process: subprocess.Popen[bytes], late_s: float | None
) -> None:
    name = command_name(["git", *args])
    code = process.poll()
    if late_s is not None or code is None:
        raise GitTimeout(f"git {name} did not finish in time.", hint="Try again when less runs.")
    if code != 0:
        raise failure(name, code, (folder / _ERRORS).read_bytes()[-_SAID:])
