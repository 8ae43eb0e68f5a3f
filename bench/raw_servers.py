"""MCP servers as people start them by hand: no sandbox, no token, and nobody who looks after
them. They get the settings and the arguments that Carrel gives them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.instances import Server, Transport
from carrel.domain.server_adapter import NotReady
from carrel.instances.handshake import HANDSHAKE, greet
from carrel.instances.inside.furnish import Furnisher
from carrel.instances.processes import PortWatch, tree
from carrel.instances.programs import ServerLocator
from carrel.instances.servers import HOST, fill, filled

READY_S = 120.0
"""For many that start at once on a few cores."""
END_S = 10.0
LOOK_S = 0.005
"""Between two looks for a port: as often as somebody who is in a hurry."""
GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "0"},
    },
}


@dataclass(frozen=True)
class Recipe:
    """All that is found and written before it is timed."""

    server: Server
    argv: tuple[str, ...]
    env: dict[str, str]
    folder: str


@contextmanager
def recipe(server: Server, project: Path, place: Path) -> Iterator[Recipe]:
    """With a state of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="raw-", dir=place) as state:
        places = {"project": str(project), "state": state, "host": HOST}
        furnisher = Furnisher(state)
        furnisher.put(filled(server.files, places))
        furnisher.copy(str(project), dict(server.copies))
        found = ServerLocator().locate(server)
        argv = tuple(fill(word, places) for word in found.argv)
        path = os.pathsep.join(filter(None, (found.path, os.environ.get("PATH", os.defpath))))
        env = {"PATH": path, "HOME": state, "LANG": "C.UTF-8", **filled(server.env, places)}
        yield Recipe(server, argv, env, state)


class RawServer:
    """In a session of its own. Its output is in a file, as that of Carrel's is."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        pipe = subprocess.PIPE if self._streams else subprocess.DEVNULL
        with open(os.path.join(recipe.folder, "output"), "wb") as output:
            self.process = subprocess.Popen(
                recipe.argv,
                env=recipe.env,
                cwd=recipe.folder,
                stdin=pipe,
                stdout=subprocess.PIPE if self._streams else output,
                stderr=output,
                start_new_session=True,
            )
        self._port_watch = PortWatch(self.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def _streams(self) -> bool:
        return self._recipe.server.transport is Transport.STDIO

    async def ready(self, look_s: float = LOOK_S) -> None:
        """When it has answered a handshake."""
        if self._streams:
            await asyncio.to_thread(self._greet_on_streams)
            return
        async with asyncio.timeout(READY_S):
            while not await self._greeted():
                self._check()
                await asyncio.sleep(look_s)

    async def _greeted(self) -> bool:
        for endpoint in sorted(self._port_watch.look(whole_network=False)):
            try:
                await greet(f"http://{HOST}:{endpoint.port}{self._recipe.server.path}", {})
            except NotReady:
                continue
            return True
        return False

    def _greet_on_streams(self) -> None:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(GREETING).encode() + b"\n")
        stdin.flush()
        if not select.select([stdout], [], [], READY_S)[0]:
            raise RuntimeError(f"{self._recipe.server.name} does not answer")
        if "result" not in json.loads(stdout.readline() or b"{}"):
            raise RuntimeError(f"{self._recipe.server.name} answered something else")

    def _check(self) -> None:
        if self.process.poll() is not None:
            output = Path(self._recipe.folder, "output").read_text(errors="replace")
            raise RuntimeError(f"{self._recipe.server.name} ended: {output[-500:]}")

    def end(self) -> None:
        """With all that it started, which may be in sessions of its own."""
        below = [found for pid in tree(self.pid)[1:] if (found := _held(pid)) is not None]
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for descriptor in below:
            _end(descriptor)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _held(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _end(process: int) -> None:
    """Closes the descriptor."""
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], END_S)
    finally:
        os.close(process)


def raw_start(server: Server, project: Path, place: Path) -> float:
    """Seconds from its start to an answered handshake."""
    with recipe(server, project, place) as made:
        begun = time.perf_counter()
        running = RawServer(made)
        try:
            asyncio.run(running.ready())
            return time.perf_counter() - begun
        finally:
            running.end()


def raw_starts(server: Server, project: Path, place: Path, count: int) -> list[float]:
    """All at the same time, and nobody who holds them back."""
    return asyncio.run(_raw_starts(server, project, place, count))


async def _raw_starts(server: Server, project: Path, place: Path, count: int) -> list[float]:
    begun = time.perf_counter()

    async def one() -> float:
        with recipe(server, project, place) as made:
            running = RawServer(made)
            try:
                # All looks together take no more of a core than those for a single one.
                await running.ready(LOOK_S * count)
                took_s = time.perf_counter() - begun
                await all_up.wait()
                return took_s
            finally:
                running.end()

    all_up = asyncio.Barrier(count)
    return list(await asyncio.gather(*(one() for _ in range(count))))
