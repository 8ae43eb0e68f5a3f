"""Connections by SSH: each is served by an `sshd` of its own in the space.

That is the host's program, so it runs where the host's toolchain is; in a space with an image its
commands go on to that by the agent's shell, as the agent's own do.
The launcher starts it on the connection and keeps it alive, so the daemon may end meanwhile; each
is written down in the folder `ssh` of its space, and the next daemon takes it up. What `sshd` says
goes into a named pipe there: from it the daemon knows what somebody does. It is a pipe, since
whoever has taken over the `sshd` could fill the disk by a file, beyond the limits of the space.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from carrel.domain.access import LOCAL, Caller
from carrel.domain.agents import Attaching
from carrel.domain.errors import (
    CarrelError,
    LauncherUnavailable,
    RateLimited,
    SpaceNotFound,
    SshUnavailable,
    StateConflict,
)
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.runtimes import Command, Output, Run, Sandbox
from carrel.domain.spaces import Space
from carrel.domain.ssh import (
    DOMAIN,
    RUN,
    SshAccess,
    SshArrival,
    SshKeys,
    SshService,
    SshSession,
    SshTarget,
    targets,
)
from carrel.domain.systems import CommandPlace
from carrel.lifecycle.table import LIVE
from carrel.service.access import require_admin
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces
from carrel.service.turns import Turns

FOLDER = "ssh"
LOCALLY = "local"
NOTHING: Mapping[str, str] = MappingProxyType({})
MOST = 200
"""Connections of one space at the same time; each is a process or two in it."""
LOOK_S = 1.0
"""Between two looks at what the `sshd` of a connection says."""
MOST_SAID = 1 << 16
"""Bytes of that in one look; a pipe holds no more."""
MOST_DID = 1000
"""Events of one connection that tell what somebody does: who has taken over the `sshd` may make it
say anything."""
USED_S = 60.0
"""A space with a connection is in use; it is written down so often."""
_BEGAN = re.compile(rb"Starting session: (shell|command|forced-command|subsystem '([\w-]{1,40})')")

HANGS_S = 5.0
"""An `sshd` whose client has gone ends within milliseconds; one that has not by then never will."""
OWNER = (LOCAL,)

Environment = Callable[[Sandbox], Mapping[str, str]]
Connected = Callable[[int], bool]
"""Whether the socket of this inode still has another end."""


@dataclasses.dataclass
class LiveSession:
    session: SshSession
    opened: OpenSpace
    task: asyncio.Task[None] | None = None
    alone_since: float | None = None
    """When its client was first seen to be gone."""
    unfinished: bytes = b""
    """The line that `sshd` has begun."""
    told: int = 0
    """Events of what somebody did."""


class SshSessions:
    def __init__(
        self,
        journal: Journal,
        spaces: Spaces,
        open_spaces: OpenSpaces,
        turns: Turns,
        shared: Shared,
        keys: SshKeys,
        environment: Environment,
        drop: Callable[[Path, str], None],
        connected: Connected,
    ) -> None:
        """`environment` says what commands in a sandbox find, and `drop(folder, run_id)` removes
        what the sandbox in `folder` has of a run; blocking."""
        self._journal = journal
        self._spaces = spaces
        self._open_spaces = open_spaces
        self._turns = turns
        self._locks = shared.locks
        self._tasks = shared.tasks
        self._keys = keys
        self._environment = environment
        self._drop = drop
        self._connected = connected
        self._live: dict[str, LiveSession] = {}
        self._used: dict[str, float] = {}

    async def access(self, caller: Caller) -> SshAccess:
        """What the owner's programs need. Raises `Forbidden`, `SshUnavailable`."""
        require_admin(caller)
        return await asyncio.to_thread(self._keys.access)

    def of(self, space_id: str) -> Sequence[SshSession]:
        live = (one.session for one in self._live.values())
        found = [one for one in live if one.space_id == space_id]
        return sorted(found, key=lambda one: one.begun_at)

    def make_ready(self) -> None:
        """The owner's key, with which the listener comes in; blocking. Raises `SshUnavailable`."""
        self._keys.access()

    # Beginning

    async def begin(
        self,
        arrival: SshArrival,
        connection: int,
        *,
        callers: Sequence[Caller] = OWNER,
        key: str = "",
    ) -> SshSession:
        """Serves a connection, which stays the caller's, of somebody who may be all of `callers`;
        `key` is the id of what they showed. Raises `SpaceNotFound`, `StateConflict`,
        `SshUnavailable`, and what `Runtime.run` does."""
        return await self._tasks.see_through(self._begin(arrival, connection, callers, key))

    async def _begin(
        self, arrival: SshArrival, connection: int, callers: Sequence[Caller], key: str
    ) -> SshSession:
        space, target, caller = await self.find(callers, arrival.host)
        # The owner's own way in is never full of others.
        if sum(bool(one.key) == bool(key) for one in self.of(space.space_id)) >= MOST:
            raise RateLimited(
                f"{MOST} connections to {space.name} are open.", hint="Close some of them."
            )
        async with self._locks.shared(space.space_id):
            opened = await self._open_spaces.of(self._live_space(space.space_id))
            _check(opened)
            usual = CommandPlace.AGENT if opened.dev is None else CommandPlace.DEV
            place = target.place or usual
            conversation = await self._conversation(caller, space) if target.conversation else None
            inode = os.fstat(connection).st_ino
            session = SshSession(
                *(new_id(RUN), space.space_id, place, target.conversation, arrival.client),
                self._journal.clock(),
                key=key,
                origin=arrival.origin,
                # One of another network's is not seen from here.
                inode=inode if self._connected(inode) else 0,
            )
            run = await self._start(opened, session, conversation, connection)
        told = {"place": str(place), "from": arrival.origin or LOCALLY}
        try:
            await self._tell(EventType.SSH_BEGUN, session, {**told, "key": key} if key else told)
        finally:
            self._watch(opened, session, run)
        return session

    async def find(self, callers: Sequence[Caller], host: str) -> tuple[Space, SshTarget, Caller]:
        """The space that a name means for somebody who is all of `callers`, and as whom that one
        has it. Raises `SpaceNotFound`."""
        for target in targets(host):
            for caller in callers:
                with contextlib.suppress(SpaceNotFound):
                    return await self._spaces.existing(caller, target.space), target, caller
        raise SpaceNotFound(
            f"There is no space {host.removesuffix(DOMAIN)[:80]!r}.", hint="`carrel ls` lists them."
        )

    def _live_space(self, space_id: str) -> Space:
        space = self._journal.current(space_id)
        if space.state not in LIVE:
            raise StateConflict(
                f"{space.name} is {space.state}; nothing can run in it.",
                hint=f"Start it: carrel start {space.name}",
                state=str(space.state),
            )
        return space

    async def _conversation(self, caller: Caller, space: Space) -> Attaching:
        """Without a command when no agent is in a terminal."""
        try:
            found = await self._turns.attaching(caller, space.space_id, read_only=False)
        except StateConflict:
            return Attaching((), "/")
        return found.how

    async def _start(
        self,
        opened: OpenSpace,
        session: SshSession,
        conversation: Attaching | None,
        connection: int,
    ) -> Run:
        sandbox = opened.sandbox
        service = SshService(
            folder=sandbox.spec.folder / "hub" / FOLDER,
            place=session.place,
            run_id=session.run_id,
            names=_names(opened.space),
            environment=self._environment(sandbox),
            conversation=conversation,
            agent=opened.space.ssh_agent,
        )
        argv = await asyncio.to_thread(self._keys.serve, service)
        folder = self._folder(session.space_id)
        try:
            said = await asyncio.to_thread(_note, folder, session)
        except OSError as error:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(_forget, folder, session.run_id)
            raise SshUnavailable(
                f"The connection cannot be written down: {error.strerror or error}.",
                hint="Look at the data folder and the room on its disk.",
            ) from error
        command = Command(
            argv=tuple(argv),
            output=Output.GIVEN,
            streams=(connection, connection, said),
            run_id=session.run_id,
        )
        try:
            return await self._open_spaces.run(opened, command, CommandPlace.AGENT)
        except BaseException:
            await asyncio.to_thread(_forget, folder, session.run_id)
            raise
        finally:
            os.close(said)

    # Watching

    def _watch(self, opened: OpenSpace, session: SshSession, run: Run | None) -> None:
        """`run` is None when its launcher is gone, and nobody can tell its end."""
        live = self._live[session.run_id] = LiveSession(session, opened)
        live.task = asyncio.create_task(self._follow(live, run))

    async def _follow(self, live: LiveSession, run: Run | None) -> None:
        """To its end. A daemon that ends leaves it to the next one."""
        session, sandbox = live.session, live.opened.sandbox
        folder = self._folder(session.space_id)
        ending = asyncio.create_task(_ending(run))
        said: int | None = None
        try:
            with contextlib.suppress(OSError):
                said = await asyncio.to_thread(_pipe, folder, session.run_id)
            while not ending.done() or (_is_unknown(ending) and self._is_there(live)):
                if ending.done():
                    await asyncio.sleep(LOOK_S)
                else:
                    await asyncio.wait({ending}, timeout=LOOK_S)
                await self._hear(live, said)
                await self._use(session.space_id)
                await self._look_for_client(live)
        finally:
            self._live.pop(session.run_id, None)
            ending.cancel()
            if run is not None:
                run.close()
            if said is not None:
                os.close(said)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_forget, folder, session.run_id)
            await asyncio.to_thread(self._drop, sandbox.spec.folder, session.run_id)
        await self._tell(EventType.SSH_ENDED, session)

    def _is_there(self, live: LiveSession) -> bool:
        """As far as its socket tells: it goes on without the launcher that began it."""
        inode = live.session.inode
        return bool(inode) and self._connected(inode)

    async def _hear(self, live: LiveSession, said: int | None) -> None:
        if said is None:
            return
        try:
            new = live.unfinished + os.read(said, MOST_SAID)
        except OSError:
            # Nothing came.
            return
        lines, _, rest = new.rpartition(b"\n")
        # What is longer than a pipe is no line of an `sshd`.
        live.unfinished = rest if len(rest) < MOST_SAID else b""
        for kind, subsystem in _BEGAN.findall(lines)[: MOST_DID - live.told]:
            live.told += 1
            what = {"what": (subsystem or kind).decode()}
            await self._tell(EventType.SSH_DID, live.session, what)

    async def _look_for_client(self, live: LiveSession) -> None:
        """Ends an `sshd` that does not see that its client has gone: it was stopped, or hangs."""
        if not live.session.inode or self._is_there(live):
            live.alone_since = None
            return
        now = asyncio.get_running_loop().time()
        live.alone_since = live.alone_since or now
        if now - live.alone_since >= HANGS_S:
            live.alone_since = now
            with contextlib.suppress(CarrelError):
                # Itself alone: what it has begun may be meant to stay, as with every `sshd`.
                opened = live.opened
                await opened.runtime.signal(opened.sandbox, live.session.run_id, signal.SIGKILL)

    async def _kill(self, live: LiveSession) -> None:
        await live.opened.runtime.kill(live.opened.sandbox, live.session.run_id)

    async def end_of_key(self, key: str) -> None:
        """Ends the connections that came by this key, with what they run. Returns when they have
        ended."""
        found = [live for live in self._live.values() if live.session.key == key]
        await asyncio.gather(*(self._kill(live) for live in found))

    async def _use(self, space_id: str) -> None:
        now = self._journal.clock()
        if now - self._used.get(space_id, 0.0) < USED_S:
            return
        self._used[space_id] = now
        with contextlib.suppress(CarrelError):
            await self._journal.write(self._journal.amend(space_id, active_at=now))

    async def _tell(
        self, type: EventType, session: SshSession, more: Mapping[str, str] = NOTHING
    ) -> None:
        data: dict[str, Any] = {"session": session.run_id, **more}
        with contextlib.suppress(CarrelError):
            event = self._journal.event(type, session.space_id, **data)
            await self._journal.write(event)

    # The end of a daemon, and the next one

    async def take_up(self) -> None:
        """Those of an earlier daemon."""
        for space in self._journal.all():
            for session in await asyncio.to_thread(_noted, self._folder(space.space_id)):
                await self._take_up(space, session)

    async def _take_up(self, space: Space, session: SshSession) -> None:
        if space.state in LIVE:
            with contextlib.suppress(CarrelError):
                opened = await self._open_spaces.of(space)
                try:
                    run = await opened.runtime.attach(opened.sandbox, session.run_id)
                except CarrelError:
                    if not self._is_there(LiveSession(session, opened)):
                        raise
                    run = None
                self._watch(opened, session, run)
                return
        await asyncio.to_thread(_forget, self._folder(space.space_id), session.run_id)
        await self._tell(EventType.SSH_ENDED, session)

    async def close(self) -> None:
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _folder(self, space_id: str) -> Path:
        return self._open_spaces.folder(space_id) / FOLDER


async def _ending(run: Run | None) -> None:
    if run is None:
        raise LauncherUnavailable("The launcher that began it is gone.")
    await run.wait()


def _is_unknown(ending: asyncio.Task[None]) -> bool:
    """Whether nobody can tell of the end."""
    return ending.cancelled() or ending.exception() is not None


def _check(opened: OpenSpace) -> None:
    if not opened.runtime.capabilities.own_paths:
        raise SshUnavailable(
            f"Spaces with the runtime {opened.runtime.name} have no accounts of their own.",
            hint="Make one with the runtime bubblewrap.",
        )


def _names(space: Space) -> tuple[str, ...]:
    words = (space.name, space.space_id)
    return tuple(f"{word}{end}{DOMAIN}" for word in words for end in ("", "-dev", "-agent"))


# Written down


def _note(folder: Path, session: SshSession) -> int:
    """Answers where its `sshd` says what it does."""
    folder.mkdir(mode=0o700, exist_ok=True)
    draft = folder / f".{session.run_id}.new"
    draft.write_text(json.dumps(dataclasses.asdict(session)))
    draft.rename(folder / f"{session.run_id}.json")
    os.mkfifo(folder / f"{session.run_id}.log", 0o600)
    return _pipe(folder, session.run_id)


def _pipe(folder: Path, run_id: str) -> int:
    """For both directions: it keeps what was said while no daemon was there, and nobody who writes
    is killed by that. Whoever writes into a full one loses it, and does not wait."""
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(folder / f"{run_id}.log", flags)


def _forget(folder: Path, run_id: str) -> None:
    for name in (f"{run_id}.json", f"{run_id}.log", f".{run_id}.new"):
        (folder / name).unlink(missing_ok=True)


def _noted(folder: Path) -> Iterator[SshSession]:
    """What cannot be read was not there: a disk may have lost it."""
    try:
        paths = sorted(folder.glob(f"{RUN}_*.json"))
    except OSError:
        return iter(())
    return iter([one for path in paths if (one := _session(path)) is not None])


def _session(path: Path) -> SshSession | None:
    try:
        found = json.loads(path.read_text())
        return SshSession(**{**found, "place": CommandPlace(found["place"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
