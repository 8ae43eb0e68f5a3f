"""Instances that live, as this daemon knows them; how they and their secrets are written down."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carrel.domain.errors import CarrelError, InstanceNotFound
from carrel.domain.events import EventType, NewEvent
from carrel.domain.instances import LIVE, Found, Hold, Instance, InstanceState, Servers
from carrel.domain.pauses import pauses
from carrel.domain.runs import Recordings
from carrel.domain.runtimes import Run
from carrel.domain.server_adapter import (
    ClientSockets,
    CompileCaches,
    HubClients,
    Owners,
    ServerAdapter,
)
from carrel.domain.store import Forget, Store
from carrel.service.instances.places import Places
from carrel.service.journal import Journal, printable
from carrel.service.shared import Errands, Shared
from carrel.service.spaces import Spaces

if TYPE_CHECKING:
    from carrel.service.instances.draft import Equipping, Needs
    from carrel.service.instances.warm import Bridging, Warming

KEEP_ENDED = 1000
"""So many records of instances that have ended are kept: a second release finds them there."""
_log = logging.getLogger("carrel")


@dataclasses.dataclass
class LiveInstance:
    """The handles of one. What is None is not there yet, or not needed."""

    instance: Instance
    token: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What its caller gave; like the token, it is in no record."""
    streams: bool = False
    """Its client speaks on streams."""
    found: Found | None = None
    """Its program, as it was when it was asked for."""
    run: Run | None = None
    gate: Run | None = None
    sockets: ClientSockets | None = None
    work: asyncio.Task[Any] | None = None
    """Starts it, or starts it again."""
    watch: asyncio.Task[None] | None = None
    """Waits for its end."""
    ends: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    """Take back what was to end it: timers, and looks at its owners."""
    hold_ends: dict[str, Callable[[], None]] = dataclasses.field(default_factory=dict)
    """The same for one of its clients, by the id of that one's hold."""
    over: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    spare: bool = False
    """It stands ready, and nobody has it."""
    leaving: bool = False
    """Somebody ends it already."""
    active_at: float = 0.0
    cpu_seconds: float = 0.0
    failures: int = 0
    """In a row."""
    ready_since: float = 0.0
    """By the clock; whatever is changed of it later."""
    said: str = ""
    """What came instead of an answer."""
    brought: bool = False
    """The project has settings for it."""

    @property
    def instance_id(self) -> str:
        return self.instance.instance_id

    def drop(self) -> None:
        """Lets go of what this process has of it."""
        self.take_back()
        self.drop_handles()

    def take_back(self) -> None:
        """What was to end it does not any more."""
        for take_back in (*self.ends, *self.hold_ends.values()):
            take_back()
        self.ends.clear()
        self.hold_ends.clear()

    def take_back_of(self, hold: Hold) -> None:
        """That client has it no more: one that comes and goes leaves nothing here."""
        take_back = self.hold_ends.pop(hold.hold_id, None)
        if take_back is not None:
            take_back()

    def drop_handles(self) -> None:
        for run in (self.run, self.gate):
            if run is not None:
                run.close()
        if self.sockets is not None:
            self.sockets.close()
        self.run = self.gate = self.sockets = None


class InstanceBook:
    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._live: dict[str, LiveInstance] = {}
        self._unwritten: dict[str, Instance] = {}
        """They are over, which the disk has not taken yet."""
        self._errands = Errands(_not_written)

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> list[LiveInstance]:
        return list(self._live.values())

    def get(self, instance_id: str) -> LiveInstance | None:
        return self._live.get(instance_id)

    def know(self, live: LiveInstance) -> None:
        self._live[live.instance_id] = live

    async def record(self, instance_id: str) -> Instance:
        """Raises `InstanceNotFound`."""
        live = self._live.get(instance_id)
        if live is not None:
            return live.instance
        found = self._unwritten.get(instance_id) or await self._store.instance(instance_id)
        if found is None:
            raise InstanceNotFound(
                f"There is no instance {instance_id[:40]!r}.",
                hint="`carrel instance ls` lists them.",
            )
        return found

    async def ended(self, limit: int) -> list[Instance]:
        stored = [*await self._store.instances(live=False, limit=limit)]
        known = {one.instance_id for one in stored}
        return stored + [one for key, one in self._unwritten.items() if key not in known]

    async def stored(self) -> list[Instance]:
        """What an earlier daemon left as living."""
        return [*await self._store.instances(live=True, limit=1 << 30)]

    def clock(self) -> float:
        return self._journal.clock()

    def note(self, live: LiveInstance, **changes: Any) -> None:
        """What nobody needs after a crash: it is written with the next change."""
        live.instance = dataclasses.replace(live.instance, **changes)

    async def change(self, live: LiveInstance, **changes: Any) -> Instance:
        """As it is from now on; told when it comes into another state."""
        before = live.instance
        live.instance = dataclasses.replace(before, updated_at=self.clock(), **changes)
        told = () if before.state is live.instance.state else (self._told(live.instance),)
        await self._journal.write(live.instance, *told)
        return live.instance

    async def add(self, live: LiveInstance) -> None:
        self._live[live.instance_id] = live
        try:
            await self._journal.write(live.instance, self._told(live.instance))
        except BaseException:
            del self._live[live.instance_id]
            raise

    async def close(self, live: LiveInstance, **changes: Any) -> None:
        """It is over. Whoever waits for that does not wait for a disk that refuses: what could
        not be written now is tried again until it is."""
        now = self.clock()
        live.instance = over = dataclasses.replace(
            live.instance, updated_at=now, ended_at=now, pid=0, holds=(), **changes
        )
        assert over.state not in LIVE
        self._unwritten[over.instance_id] = over
        self._live.pop(over.instance_id, None)
        try:
            await self._write_end(over)
        except BaseException as error:
            self._errands.begin(self._write_later(over))
            if not isinstance(error, CarrelError):
                raise
        finally:
            live.over.set()

    async def _write_end(self, over: Instance) -> None:
        forget = Forget(ended_instances_but=KEEP_ENDED)
        await self._journal.write(over, self._told(over), forget)
        self._unwritten.pop(over.instance_id, None)

    async def _write_later(self, over: Instance) -> None:
        for pause_s in pauses():
            await asyncio.sleep(pause_s)
            with contextlib.suppress(CarrelError):
                await self._write_end(over)
                return

    async def shut(self) -> None:
        """The daemon ends: what is not written by now, the next one finds out."""
        await self._errands.close()

    def _told(self, instance: Instance) -> NewEvent:
        data: dict[str, object] = {
            "instance_id": instance.instance_id,
            "server": instance.server.name,
            "to": str(instance.state),
        }
        if instance.state is InstanceState.READY and instance.port:
            data["url"] = instance.url
        if instance.problem is not None and instance.state is not InstanceState.READY:
            data["problem"] = dataclasses.asdict(instance.problem)
        _note(instance)
        return self._journal.event(EventType.INSTANCE_STATE, instance.space_id, **data)


def _note(instance: Instance) -> None:
    """In the daemon's log: in which project or space it is, and why it is over."""
    where = instance.space_id or instance.project_path
    said = f"{instance.server.name} in {where}: {instance.state}"
    if instance.problem is not None:
        said += f", {instance.problem.message} ({instance.problem.code})"
    _log.info("instance %s (%s)", instance.instance_id, printable(said))


def _not_written(error: BaseException) -> None:
    _log.error("the end of an instance could not be written down", exc_info=error)


# The token of an instance and the variables that its caller gave: in a file that only the
# daemon's user reads, never in a record.

FILE = "secrets"


class Secrets:
    """Blocking."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def write(self, live: LiveInstance) -> None:
        if not live.token and not live.env:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        path = self._places.folder(live.instance_id) / FILE
        with open(os.open(path, flags, 0o600), "w") as file:
            json.dump({"token": live.token, "env": dict(live.env)}, file)

    def read(self, live: LiveInstance) -> None:
        """Into it; nothing where there are none."""
        try:
            found = json.loads((self._places.folder(live.instance_id) / FILE).read_text())
        except (OSError, ValueError):
            return
        live.token, live.env = found["token"], found["env"]


# What instances are put together from.


@dataclass(frozen=True)
class InstanceRules:
    """What the settings say. 0: no bound."""

    most: int = 0
    per_caller: int = 0
    memory_bytes: int = 0
    starting: int = 0
    """At the same time; 0: as many as there are processors."""


@dataclass(frozen=True)
class InstanceParts:
    data: Path
    book: InstanceBook
    places: Places
    adapter: ServerAdapter
    recordings: Recordings
    servers: Servers
    warming: Warming
    bridging: Bridging
    caches: CompileCaches
    owners: Owners
    hub: HubClients
    journal: Journal
    spaces: Spaces
    equipping: Equipping
    needs: Needs
    shared: Shared
    rules: InstanceRules
    reaches: Callable[[str, str], Awaitable[bool]]
    """Whether the token that asked for an instance still opens its space."""
