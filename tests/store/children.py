"""What tests of the store let other processes do: `python -m tests.store.children VERB PATH`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from carrel.domain.errors import CarrelError
from carrel.store import open_store
from tests.accounts import SOURCE
from tests.store import records
from tests.store.filling import check_full_disk

WRITERS = 20
END_TIMEOUT_S = 60.0
"""For a process that was killed or told to end, on a loaded machine."""


@contextlib.contextmanager
def child(
    verb: str, path: Path, *more: str, module: str = __name__
) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end, if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, verb, str(path), *more],
        env={**os.environ, "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=END_TIMEOUT_S)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def endless(path: Path, first: int) -> None:
    """Writes without end, and says which writes were acknowledged."""
    numbers = itertools.count(first)
    say("up")
    async with open_store(path) as store:

        async def work() -> None:
            for number in numbers:
                await store.write(
                    records.space(number),
                    records.event(of=number, n=number),
                    records.run(number, of=number),
                    records.step("tree", of=number),
                )
                say(str(number))

        await asyncio.gather(*(work() for _ in range(WRITERS)))


async def tell_opening(path: Path) -> None:
    """Says with which code the opening failed, if it did."""
    try:
        async with open_store(path) as store:
            await store.write(records.space(1))
            say("ok")
    except CarrelError as error:
        say(error.code)


CheckFull = Callable[[Path, Callable[[], None], Callable[[], None]], Awaitable[None]]


async def limited(path: Path, check: CheckFull = check_full_disk) -> None:
    """A disk that is full for this process alone."""

    def limit(number: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, hard))

    await check(path, lambda: limit(400 << 10), lambda: limit(resource.RLIM_INFINITY))
    say("ok")


def lock(path: Path) -> None:
    """Holds the lock on the database until standard input ends."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    say("locked")
    sys.stdin.read()
    connection.execute("ROLLBACK")


def lock_writing(path: Path) -> None:
    """Holds the lock that writers need until standard input ends."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("locked")
    sys.stdin.read()
    connection.execute("ROLLBACK")


def main(verb: str, path: Path, *more: str) -> None:
    match verb:
        case "endless":
            asyncio.run(endless(path, int(more[0])))
        case "open":
            asyncio.run(tell_opening(path))
        case "limited":
            asyncio.run(limited(path))
        case "lock":
            lock(path)
        case "lock-writing":
            lock_writing(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
