"""One server from its request to its first answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.domain.errors import CarrelError, InstanceFailed
from carrel.domain.ids import new_id
from carrel.domain.instances import Found, Instance, Server, ToolCall, Wrap
from carrel.domain.runs import Recordings, Stream
from carrel.domain.runtimes import (
    Command,
    Exit,
    ExitReason,
    Run,
    host_pid,
)
from carrel.domain.server_adapter import (
    Furnished,
    HandshakeAttempt,
    NeverReady,
    NotReady,
    PortSearch,
    PreparedServer,
    ServerAdapter,
    Surroundings,
)
from carrel.service.instances.book import InstanceBook, LiveInstance
from carrel.service.instances.places import Place, Places
from carrel.service.shared import Errands, Locks

LOOK_S, MOST_LOOK_S = 0.005, 0.05
"""Between two looks for a port: a look takes a tenth of a millisecond, or a whole one."""
LATE = 0.01
"""A server is found at most so much of its own time later than it could be."""
TRY_S = 5.0
"""For one of several ports to answer: the wrong one may never."""
BEGIN_S, WORK_S = 2.0, 20.0
"""For a server that answers to say that it begins with what it needs to work, and that it can: one
that never says so is another version, and one with a large project takes longer than that."""
MOST_WHY = 300
"""Characters of what a server says when it gives up."""
SLOW = "It was still starting what it needs for its work: its first tool calls may wait, or fail."
KEEP_BYTES = 1 << 20
"""Of a server's output."""
TAIL_BYTES = 4000
"""Of what it wrote last are told when it fails."""
OUTPUT_BYTES = 64 << 10
"""Of its output are looked through for its port."""
FURNISH_S = 30.0
"""For a few small files; a starved machine may need more."""
GATE_S = 2.0
"""A gate that cannot take a line in that time is stopped, or dead."""
TOKEN = "CARREL_TOKEN"
"""By which our own programs in the sandbox are told it."""
_log = logging.getLogger("carrel")


@dataclass(frozen=True)
class Wanted:
    """What is to be started, beside the record."""

    server: Server
    found: Found
    ready_s: float
    tool: ToolCall | None
    uids: frozenset[int]
    """Who may come to a gate, with the token."""
    streams: bool = False
    warm: str = ""
    """The warm process that it is a fork of."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What it starts sooner by; the caller's own counts more."""


class InstanceStarter:
    def __init__(
        self,
        book: InstanceBook,
        places: Places,
        adapter: ServerAdapter,
        recordings: Recordings,
        locks: Locks,
    ) -> None:
        self._book = book
        self._locks = locks
        self._places = places
        self._adapter = adapter
        self._recordings = recordings
        self._errands = Errands(_not_left)

    async def start(self, live: LiveInstance, wanted: Wanted, *, again: bool = False) -> None:
        """Until it answers. Raises `InstanceFailed` and what runtimes raise; what was begun is
        the caller's to end."""
        async with self._staying(live.instance.space_id):
            place, prepared = await self._begin(live, wanted, again=again)
        if not wanted.streams:
            await self._ready(live, place, prepared, wanted)
        if live.sockets is not None and not self._keeps_sockets(live):
            live.sockets.close()
            live.sockets = None

    @asynccontextmanager
    async def _staying(self, space_id: str) -> AsyncIterator[None]:
        """While it is begun in a space, that is not stopped or removed. It may be while its
        answer is waited for, which may never come: then it ends with the space."""
        if not space_id:
            yield
            return
        async with self._locks.shared(space_id):
            yield

    async def _begin(
        self, live: LiveInstance, wanted: Wanted, *, again: bool
    ) -> tuple[Place, PreparedServer]:
        place = await self._places.make(live.instance, streams=wanted.streams)
        live.instance = dataclasses.replace(live.instance, enforced=place.sandbox.limits)
        around = dataclasses.replace(
            place.around, preloaded=bool(wanted.warm), port=live.instance.port
        )
        place = dataclasses.replace(place, around=around)
        env = {**wanted.env, **live.env}
        if live.token:
            env[TOKEN] = live.token
        prepared = self._prepare(wanted, around, env)
        try:
            if not again:
                furnished = await self._furnish(place, prepared)
                live.brought = furnished.brought
                self._book.note(live, notes=tuple(one.note for one in furnished.swapped))
            self._open(live, prepared, wanted)
        finally:
            self._adapter.let_go(prepared)
        await self._run(live, place, prepared, wanted)
        return place, prepared

    def _prepare(
        self, wanted: Wanted, around: Surroundings, env: Mapping[str, str]
    ) -> PreparedServer:
        try:
            return self._adapter.prepare(wanted.server, wanted.found, around, env)
        except OSError as error:
            raise _no_socket(wanted.server, error) from error

    @staticmethod
    def _keeps_sockets(live: LiveInstance) -> bool:
        """So that one that is started again is at the same port, and nobody else meanwhile."""
        return live.instance.restart != "never" and not live.instance.socket

    async def _furnish(self, place: Place, prepared: PreparedServer) -> Furnished:
        if place.around.alone:
            owner = place.sandbox.spec.owner
            return await asyncio.to_thread(self._adapter.furnish, prepared, place.around, owner)
        call, run_id = self._adapter.furnisher(prepared, place.around), new_id("ru")
        async with place.mounted() as mount:
            command = Command(("furnish",), cwd="/", call=call, timeout_s=FURNISH_S, run_id=run_id)
            run = await place.runtime.run(place.sandbox, mount, command)
        try:
            ended = await run.wait()
        finally:
            run.close()
        if ended.code != 0:
            raise InstanceFailed(
                f"The folder of {prepared.server.name} cannot be made in the space.",
                hint="Check the home folder of the space.",
            )
        output = await self.tail(place.folder, run_id, TAIL_BYTES)
        return self._adapter.furnished(prepared, output)

    def _open(self, live: LiveInstance, prepared: PreparedServer, wanted: Wanted) -> None:
        """Written down with the run that they are for. Those that were kept are used again; a
        port that the server binds itself is kept anew before the older ones let go of it."""
        kept = live.sockets
        if kept is not None and not prepared.on_host:
            return
        path = self._places.folder(live.instance_id) / "socket" if wanted.streams else None
        try:
            live.sockets = self._adapter.open(prepared, path, live.instance.port)
        except OSError as error:
            raise _no_socket(prepared.server, error) from error
        if kept is not None:
            kept.close()
        self._book.note(
            live,
            host="" if wanted.streams else "127.0.0.1",
            port=live.sockets.port or live.instance.port,
            socket=str(path) if path is not None else "",
        )

    async def _run(
        self, live: LiveInstance, place: Place, prepared: PreparedServer, wanted: Wanted
    ) -> None:
        """Both at the same time: the gate is up before the server is."""
        assert live.sockets is not None
        run_id, gate_id = new_id("ru"), new_id("ru") if prepared.gated else ""
        await self._book.change(live, run_id=run_id, gate_run_id=gate_id)
        command = Command(
            prepared.argv,
            env=prepared.env,
            cwd=place.around.project,
            keep_bytes=KEEP_BYTES,
            run_id=run_id,
            descriptors=live.sockets.given,
            display=f"{prepared.server.name} (instance)",
            call=prepared.call,
            warm=wanted.warm,
        )
        async with place.mounted() as mount:
            live.run = await place.runtime.run(place.sandbox, mount, command)
            self._book.note(live, pid=host_pid(live.run))
            if gate_id:
                live.gate = await place.runtime.run(
                    place.sandbox,
                    mount,
                    Command(
                        ("gate",),
                        cwd="/",
                        env={TOKEN: live.token},
                        call=self._adapter.gate(wanted.uids),
                        stdin=True,
                        run_id=gate_id,
                        keep_bytes=KEEP_BYTES,
                        descriptors=live.sockets.gate,
                        display=f"{prepared.server.name} (gate)",
                    ),
                )

    # Ready

    async def _ready(
        self, live: LiveInstance, place: Place, prepared: PreparedServer, wanted: Wanted
    ) -> None:
        assert live.run is not None
        ended = asyncio.ensure_future(live.run.wait())
        answered = asyncio.ensure_future(self._answer(live, place, prepared, wanted))
        tasks: list[asyncio.Future[Any]] = [ended, answered]
        if wanted.server.work_lines is not None:
            tasks.append(asyncio.ensure_future(self._gives_up(live, place, wanted.server)))
        try:
            await asyncio.wait(tasks, timeout=wanted.ready_s, return_when=asyncio.FIRST_COMPLETED)
            for given_up in tasks[2:]:
                if given_up.done():
                    raise await given_up
            if answered.done():
                await answered
            elif ended.done():
                gave_up = await self._gave_up(live, place, wanted.server)
                raise gave_up or await self._failed(live, place, await ended)
            else:
                raise await self._late(live, place, wanted)
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, CarrelError, NotReady):
                    await task

    async def _answer(
        self, live: LiveInstance, place: Place, prepared: PreparedServer, wanted: Wanted
    ) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        while True:
            for port in await self._ports(live, place, prepared):
                try:
                    ready = await self._try(live, prepared, wanted, port)
                except NeverReady as error:
                    text = f"{wanted.server.name} answers, but {error}."
                    raise await self._told(live.instance, place.folder, text) from error
                if ready:
                    await self._works(live, place, wanted)
                    await self._inside(live, place, prepared, port)
                    return
            await asyncio.sleep(min(max(LOOK_S, LATE * (clock() - begun)), MOST_LOOK_S))

    async def _works(self, live: LiveInstance, place: Place, wanted: Wanted) -> None:
        """Until it says so, if it is one that does. Who called a tool knows already."""
        lines = wanted.server.work_lines
        if lines is None or wanted.tool is not None:
            return
        clock = asyncio.get_running_loop().time
        begun = clock()
        while not await self._wrote(live, place, lines.works if live.brought else lines.found):
            if clock() > begun + BEGIN_S and not await self._wrote(live, place, lines.begins):
                return
            if clock() > begun + WORK_S:
                self._book.note(live, notes=(*live.instance.notes, SLOW))
                return
            await asyncio.sleep(MOST_LOOK_S)

    async def _gives_up(self, live: LiveInstance, place: Place, server: Server) -> InstanceFailed:
        """When it says that it never can work."""
        while (failed := await self._gave_up(live, place, server)) is None:
            await asyncio.sleep(MOST_LOOK_S)
        return failed

    async def _gave_up(
        self, live: LiveInstance, place: Place, server: Server
    ) -> InstanceFailed | None:
        lines = server.work_lines
        found = await self._wrote(live, place, lines.fails) if lines is not None else None
        if lines is None or found is None:
            return None
        why = found[1].strip()[:MOST_WHY]
        text = f"{server.name} cannot work on this project: {why}"
        return await self._told(live.instance, place.folder, text, hint=lines.hint)

    async def _wrote(self, live: LiveInstance, place: Place, line: str) -> re.Match[str] | None:
        output = await self.tail(place.folder, live.instance.run_id, OUTPUT_BYTES)
        return re.search(line, output.decode("utf-8", "replace"))

    async def _ports(
        self, live: LiveInstance, place: Place, prepared: PreparedServer
    ) -> tuple[int, ...]:
        if prepared.direct:
            return (live.instance.port,)
        assert live.run is not None
        output = ""
        if prepared.server.port_by == "log":
            output = (await self.tail(place.folder, live.instance.run_id, OUTPUT_BYTES)).decode(
                "utf-8", "replace"
            )
        around = place.around
        search = PortSearch(host_pid(live.run), around.state_path, output, around.alone)
        return await asyncio.to_thread(self._adapter.look, prepared, search)

    async def _try(
        self, live: LiveInstance, prepared: PreparedServer, wanted: Wanted, port: int
    ) -> bool:
        if live.gate is not None:
            await _give(live.gate, self._adapter.target(port))
            port = live.instance.port
        url = f"http://127.0.0.1:{port}{prepared.server.path}"
        # A bridge has room for many; another server may have it for one client only.
        later = self._errands.begin if prepared.server.wrap is Wrap.STDIO else None
        attempt = HandshakeAttempt(prepared.server, url, live.token, wanted.tool, later=later)
        patience = (
            wanted.ready_s if prepared.direct else TRY_S + (wanted.ready_s if wanted.tool else 0)
        )
        try:
            async with asyncio.timeout(patience):
                await self._adapter.greet(attempt)
        except NeverReady:
            raise
        except (NotReady, TimeoutError) as error:
            live.said = str(error)
            return False
        if prepared.on_host:
            self._book.note(live, host="127.0.0.1", port=port)
        return True

    async def _inside(
        self, live: LiveInstance, place: Place, prepared: PreparedServer, port: int
    ) -> None:
        """Where others in its sandbox find it."""
        if not prepared.direct:
            self._book.note(live, inside_port=port)
        elif prepared.port_file:
            assert live.run is not None
            search = PortSearch(host_pid(live.run), place.around.state_path)
            found = await asyncio.to_thread(self._adapter.look, prepared, search)
            if found:
                self._book.note(live, inside_port=found[0])

    async def close(self) -> None:
        await self._errands.close()

    # Failing

    async def _late(self, live: LiveInstance, place: Place, wanted: Wanted) -> InstanceFailed:
        said = f" It was tried, and {live.said}." if live.said else ""
        return await self._told(
            live.instance,
            place.folder,
            f"{wanted.server.name} did not answer within {wanted.ready_s:g} s.{said}",
        )

    async def _failed(self, live: LiveInstance, place: Place, ended: Exit) -> InstanceFailed:
        text = f"{live.instance.server.name} ended {how(ended)} before it answered."
        return await self._told(live.instance, place.folder, text, ended)

    async def _told(
        self,
        instance: Instance,
        folder: Path,
        text: str,
        ended: Exit | None = None,
        hint: str = "",
    ) -> InstanceFailed:
        output = (await self.tail(folder, instance.run_id, TAIL_BYTES)).decode("utf-8", "replace")
        lines = [line for line in output.splitlines() if line.strip()]
        last = f" It wrote last: {lines[-1][:300]}" if lines and not hint else ""
        return InstanceFailed(
            text + last,
            hint=hint or "Its output is in the details.",
            output=output,
            exit_code=ended.code if ended is not None else None,
            signal=ended.signal if ended is not None else None,
            reason=str(ended.reason) if ended is not None else "timeout",
        )

    async def tail(self, folder: Path, run_id: str, limit: int) -> bytes:
        """The last that it wrote: of its errors, or where it wrote none, of its output."""
        if not run_id:
            return b""
        found = b""
        for stream in (Stream.STDOUT, Stream.STDERR):
            with contextlib.suppress(CarrelError, OSError):
                size = await asyncio.to_thread(self._recordings.size, folder, run_id, stream)
                piece = await asyncio.to_thread(
                    self._recordings.read, folder, run_id, stream, max(0, size - limit), limit
                )
                found += piece.data
        return found[-limit:]


def _no_socket(server: Server, error: OSError) -> InstanceFailed:
    return InstanceFailed(
        f"No socket can be opened for {server.name}: {error.strerror}.",
        hint="Release some instances, or try again.",
    )


def _not_left(error: BaseException) -> None:
    _log.warning("a server could not be left: %r", error)


async def _give(run: Run, data: bytes) -> None:
    """All of it, or `InstanceFailed`."""
    view = memoryview(data)
    deadline = asyncio.get_running_loop().time() + GATE_S
    while view:
        try:
            view = view[await run.give(view) :]
        except BlockingIOError:
            if asyncio.get_running_loop().time() > deadline:
                raise InstanceFailed("A helper takes no input.", hint="Try again.") from None
            await asyncio.sleep(LOOK_S)


def how(ended: Exit) -> str:
    """In words, after `ended`."""
    if ended.reason is ExitReason.MEMORY:
        return "at its memory limit"
    if ended.signal is not None:
        return f"by signal {ended.signal}"
    if ended.code is not None:
        return f"with code {ended.code}"
    return "and nobody knows how"
