"""Spaces with a PostgreSQL each, all made at the same time, beside as many `podman run` of the
same image at the same time: until the last of them takes connections."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.containers import Engine, Unavailable, own_podman
from bench.measuring import Board, say, settle
from bench.own_spaces import Daemon
from bench.reporting import Report
from bench.sandbox_rivals import last_line
from carrel.client import AsyncClient, AsyncSpace

SPACES, CONTAINERS = "carrel: the last of {} is ready", "podman run: the last of {} is ready"
IMAGE = "localhost/bench-postgres:1"
READY = b"ready to accept connections"
READY_S = 600.0
_SCRIPT = (
    "initdb -D /var/lib/postgresql/data/pg -N -U postgres --locale=C --auth=trust > /dev/null && "
    "exec postgres -D /var/lib/postgresql/data/pg -c listen_addresses=127.0.0.1 "
    "-c unix_socket_directories=/tmp"
)
_SERVICE = {
    "image": IMAGE,
    "user": "postgres",
    "command": ["sh", "-c", _SCRIPT],
    "volumes": ["pgdata:/var/lib/postgresql/data"],
    "healthcheck": {"test": ["CMD", "pg_isready", "-h", "127.0.0.1"], "retries": 600},
}


def databases(place: Path, daemon: Daemon, report: Report, count: int, rounds: int) -> None:
    board, folder = Board(), place / "databases"
    folder.mkdir()
    ours, theirs = SPACES.format(count), CONTAINERS.format(count)
    try:
        root = postgres_files(folder)
        project = folder / "shop"
        project.mkdir()
        # What is JSON is YAML, too.
        stack = {"services": {"db": _SERVICE}, "volumes": {"pgdata": None}}
        (project / "compose.yaml").write_text(json.dumps(stack))
        daemon.client.images.take(IMAGE, str(root))
        with own_podman(folder) as engine, imported(engine, root, folder):
            for number in range(rounds + 1):
                say(f"databases: round {number} of {rounds}")
                settle()
                board.add(ours, number, asyncio.run(spaces(daemon, project, count)))
                settle()
                board.add(theirs, number, containers(engine, count))
    except Unavailable as error:
        report.skip(ours, str(error))
        return
    board.forget(0)
    report.add_times(board)
    report.at_most(ours, 1.5, "x", board.ratio(ours, theirs))


async def spaces(daemon: Daemon, project: Path, count: int) -> float:
    """Seconds, until a query was answered in the last."""
    async with AsyncClient(data=daemon.data) as client:
        made: list[AsyncSpace] = []

        async def one() -> None:
            space = await client.create(str(project), image="none", services="auto")
            made.append(space)
            words = ("psql", "-h", "127.0.0.1", "-U", "postgres", "-Atc", "select 1")
            done = await space.run(words, place="db")
            if done.stdout != "1\n":
                raise RuntimeError(f"the database said {done}")

        begun = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(one())
            return time.perf_counter() - begun
        finally:
            for space in made:
                await space.remove(force=True)


def containers(engine: Engine, count: int) -> float:
    """Seconds, until the last has said that it takes connections."""
    run = ("run", "--rm", "--network=none", "--pull=never", "--user=postgres", IMAGE)
    begun = time.perf_counter()
    programs = [
        subprocess.Popen(
            [*engine.argv, *run, "sh", "-c", _SCRIPT],
            env={**os.environ, **engine.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    said: list[bytes] = []
    try:
        listeners = [threading.Thread(target=_listen, args=(one, said)) for one in programs]
        for listener in listeners:
            listener.start()
        for listener in listeners:
            listener.join(READY_S)
        took = time.perf_counter() - begun
        if said.count(b"") != count:
            failed = b"\n".join(text for text in said if text).decode(errors="replace")
            raise Unavailable(last_line(failed) or "a container did not get ready")
        return took
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(READY_S)


def _listen(program: subprocess.Popen[bytes], said: list[bytes]) -> None:
    """Adds nothing once it is ready, else what it said."""
    assert program.stderr is not None
    heard = b""
    for line in program.stderr:
        heard += line
        if READY in line:
            said.append(b"")
            break
    else:
        said.append(heard or b"it ended")
    # Whoever is not read blocks.
    threading.Thread(target=program.stderr.read, daemon=True).start()


@contextmanager
def imported(engine: Engine, root: Path, folder: Path) -> Iterator[None]:
    archive = folder / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, ".")
    engine.ask("import", str(archive), IMAGE)
    archive.unlink()
    try:
        yield
    finally:
        engine.ask("rm", "--force", "--all", "--time", "0")
        engine.ask("rmi", "--force", "--all")


def postgres_files(folder: Path) -> Path:
    """The same as the tests have."""
    if shutil.which("busybox") is None or not sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        raise Unavailable("PostgreSQL or busybox is not installed")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.service_images import postgres_image

    return postgres_image(folder)
