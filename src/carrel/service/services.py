"""Services of spaces: started in order, looked after while they run, stopped before their space is.

A service is a run in a sandbox of its own, so it goes on when the daemon ends, and the next one
takes it up by its record. A space is ready when each of them is: healthy by its own check, ended
well where others wait for that, else simply there. Whatever ends afterwards is started again as its
policy says, after a pause that doubles, and is given up after five times in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from carrel.domain.errors import CarrelError, ServiceFailed, StateConflict
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.projects import OnProgress, Progress, ignore_progress
from carrel.domain.runs import RunRecord, RunState, Stream
from carrel.domain.runtimes import Command, Output
from carrel.domain.services import (
    Condition,
    HealthCheck,
    RestartPolicy,
    ServicePhase,
    ServiceStatus,
)
from carrel.domain.spaces import Space
from carrel.domain.store import Store
from carrel.domain.systems import CommandPlace, SpaceService
from carrel.lifecycle.table import LIVE
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces, no_service
from carrel.service.runs import Runs
from carrel.service.shared import Shared

STEADY_S = 0.25
"""What has no check and cannot start has ended by then."""
SETTLED_S = 60.0
"""One that ran for so long has started well: its failures are counted anew."""
MOST_IN_A_ROW = 5
FIRST_PAUSE_S = 1.0
"""Before it is started again; each pause is twice the one before."""
FIRST_LOOK_S, MOST_LOOK_S = 0.1, 2.0
"""Between two looks at a service that was not healthy yet: its own interval is for later."""
MOST_START_S = 900.0
"""Until it is healthy, whatever its check allows: somebody waits for the space."""
MOST_STOP_S = 60.0
"""For all services of a space together: in a chain, each waits for those that depend on it."""
TELL_S = 15.0
"""Clients give up on a daemon that is silent for some minutes."""
CHECK_MARGIN_S = 15.0
"""Over the check's own time, for the launcher."""
LAST_LINES, LAST_BYTES = 12, 4096
MOST_RUNS = 1000
"""Among which the last ones of services are looked for."""
_BAD = (ServicePhase.FAILED, ServicePhase.UNHEALTHY)
_WELL = "healthy"


@dataclass(eq=False)
class LiveService:
    """One of a live space, as far as this daemon knows."""

    space_id: str
    service: SpaceService
    moved: asyncio.Condition
    """Of all services of the space."""
    state: ServicePhase = ServicePhase.WAITING
    health: str = ""
    run_id: str = ""
    restarts: int = 0
    """In a row."""
    code: int | None = None
    ended_well: bool = False
    problem: str = ""
    task: asyncio.Task[None] | None = None
    launching: asyncio.Future[RunRecord] | None = None
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    """Of those who restart it: the next one has the same."""

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def is_there(self) -> bool:
        """Whoever waits for no more than that goes on."""
        return self.state is ServicePhase.RUNNING or self.ended_well

    def satisfies(self, condition: Condition) -> bool:
        if condition is Condition.COMPLETED:
            return self.ended_well
        if condition is Condition.HEALTHY:
            return self.state is ServicePhase.RUNNING
        return self.is_there or self.state is ServicePhase.STARTING

    @property
    def hopeless(self) -> bool:
        """It will not become what others wait for by itself."""
        if self.state in _BAD:
            return True
        ended = self.state is ServicePhase.EXITED and not self.ended_well
        return ended and not _again(self)


class SpaceServices:
    def __init__(
        self,
        store: Store,
        journal: Journal,
        open_spaces: OpenSpaces,
        runs: Runs,
        shared: Shared,
        drop_run: Callable[[Path, str], None],
    ) -> None:
        """`drop_run` removes what a sandbox's folder has of a run; blocking."""
        self._store = store
        self._journal = journal
        self._open_spaces = open_spaces
        self._runs = runs
        self._locks = shared.locks
        self._drop_run = drop_run
        self._of_space: dict[str, dict[str, LiveService]] = {}

    # Starting

    async def begin(
        self, space: Space, on_progress: OnProgress = ignore_progress, *, stays: bool = False
    ) -> None:
        """Returns when all are ready. Raises `ServiceFailed` for the first that will not be; nobody
        looks after the others then, and they end with their sandboxes, unless the space `stays`."""
        live = self._know(space)
        for one in live.values():
            one.task = asyncio.create_task(self._begin_one(one, live))
        try:
            await self._all_ready(live, on_progress)
        except BaseException as error:
            if not (stays and isinstance(error, ServiceFailed)):
                await self.forget(space.space_id)
            raise

    def _know(self, space: Space) -> dict[str, LiveService]:
        moved = asyncio.Condition()
        live = {one.name: LiveService(space.space_id, one, moved) for one in space.services}
        self._of_space[space.space_id] = live
        return live

    async def _begin_one(self, one: LiveService, live: dict[str, LiveService]) -> None:
        for other in one.service.spec.depends_on:
            before = live.get(other.service)
            if before is None:
                # `dev` stands for it.
                continue
            decided = partial(_decided, before, other.condition)
            async with one.moved:
                await one.moved.wait_for(decided)
            if not before.satisfies(other.condition):
                await self._move(one, ServicePhase.FAILED, problem=f"{before.name} is not there.")
                return
        await self._look_after(one)

    async def _all_ready(self, live: dict[str, LiveService], on_progress: OnProgress) -> None:
        completed = {
            other.service
            for one in live.values()
            for other in one.service.spec.depends_on
            if other.condition is Condition.COMPLETED
        }
        for one in live.values():
            condition = Condition.COMPLETED if one.name in completed else Condition.STARTED
            while True:
                failed = next((each for each in live.values() if each.hopeless), None)
                if failed is not None:
                    raise await self._failure(_first_cause(failed, live))
                if _done(one, condition):
                    break
                if one.task is not None and one.task.done():
                    if one.task.cancelled():
                        raise _stopped_meanwhile(one)
                    # What it raised, if anything: nobody will move it any more.
                    one.task.result()
                    raise await self._failure(one)
                on_progress(Progress(f"service {one.name}: {one.state}", 0, 0))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TELL_S), one.moved:
                        await one.moved.wait()
            on_progress(Progress(f"service {one.name}: {_word(one)}", 0, 0))

    async def _failure(self, one: LiveService) -> ServiceFailed:
        lines = await self._last_lines(one.run_id)
        said = ["It said last:", *lines] if lines else []
        return ServiceFailed(
            "\n".join((f"The service {one.name} {one.problem or 'failed.'}", *said)),
            hint="Mend its compose file or its image, or leave services out: --services none",
            service=one.name,
        )

    async def _last_lines(self, run_id: str) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(CarrelError):
            if not run_id:
                return []
            record = await self._runs.get(run_id)
            if record.state is RunState.FAILED:
                return [record.failure]
            for stream in Stream:
                said = await self._runs.last(record, stream, LAST_BYTES)
                found += said.decode("utf-8", "replace").splitlines()[-LAST_LINES:]
        return found

    # Looking after one

    async def _look_after(self, one: LiveService, record: RunRecord | None = None) -> None:
        """Starts it, unless a `record` says that it runs, and again as often as its policy says."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                record = record or await self._launch(one)
            except (CarrelError, OSError) as error:
                await self._ended(one, None, f"cannot start: {error}")
            else:
                await self._until_end(one, record)
            if asyncio.get_running_loop().time() - began >= SETTLED_S:
                one.restarts = 0
            record = None
            if not _again(one):
                await self._over(one)
                return
            one.restarts += 1
            await self._move(one, ServicePhase.RESTARTING)
            await asyncio.sleep(FIRST_PAUSE_S * 2 ** (one.restarts - 1))

    async def _launch(self, one: LiveService) -> RunRecord:
        one.run_id, one.code, one.ended_well, one.problem = "", None, False, ""
        opened = await self._open_spaces.of(self._journal.current(one.space_id))
        one.launching = asyncio.ensure_future(self._runs.start_service(opened, one.service))
        try:
            record = await asyncio.shield(one.launching)
        finally:
            if one.launching.done():
                one.launching = None
        one.run_id = record.run_id
        one.health = "starting" if one.service.spec.health is not None else ""
        await self._move(one, ServicePhase.STARTING)
        return record

    async def _until_end(self, one: LiveService, record: RunRecord) -> None:
        """Looks at its health meanwhile."""
        one.run_id = record.run_id
        looking = asyncio.create_task(self._watch_health(one))
        try:
            ended = await self._runs.wait(record.run_id)
        finally:
            looking.cancel()
            await asyncio.wait({looking})
        await self._clear(one, record)
        found = ended.exit
        code = None if found is None else found.code
        how = f"ended with {code}." if code is not None else "was ended."
        if found is not None and found.signal is not None:
            how = f"was ended by signal {found.signal}."
        await self._ended(one, code, how)

    async def _clear(self, one: LiveService, record: RunRecord) -> None:
        """What it has left running would be in the way of the next."""
        with contextlib.suppress(CarrelError):
            opened = await self._open_spaces.of(self._journal.current(one.space_id))
            sandbox = opened.at(CommandPlace.DEV, one.name)
            await opened.runtime.kill(sandbox, record.run_id)

    async def _ended(self, one: LiveService, code: int | None, how: str) -> None:
        one.code, one.health = code, ""
        one.ended_well = code == 0
        await self._move(one, ServicePhase.EXITED, problem="" if one.ended_well else how)

    async def _over(self, one: LiveService) -> None:
        if one.restarts >= MOST_IN_A_ROW or (one.restarts and not one.ended_well):
            how = one.problem.rstrip(".") or "ended with 0"
            how = f"{how}, {one.restarts + 1} times in a row."
            await self._move(one, ServicePhase.FAILED, problem=how)

    async def _watch_health(self, one: LiveService) -> None:
        check = one.service.spec.health
        loop = asyncio.get_running_loop()
        if check is None:
            await asyncio.sleep(STEADY_S)
            await self._move(one, ServicePhase.RUNNING)
            return
        began, failures, pause = loop.time(), 0, FIRST_LOOK_S
        most_s = min(check.most_s, MOST_START_S)
        while True:
            if await self._is_healthy(one, check):
                failures, pause = 0, check.interval_s
                one.health = _WELL
                await self._move(one, ServicePhase.RUNNING)
            elif one.health == "starting":
                pause = min(2 * pause, MOST_LOOK_S, check.interval_s)
                if loop.time() - began > most_s:
                    await self._unhealthy(one, "did not become healthy.")
            else:
                failures += 1
                pause = check.interval_s
                if failures >= check.retries and one.state is ServicePhase.RUNNING:
                    await self._unhealthy(one, "is not healthy any more.")
            await asyncio.sleep(pause)

    async def _unhealthy(self, one: LiveService, problem: str) -> None:
        one.health = "unhealthy"
        await self._move(one, ServicePhase.UNHEALTHY, problem=problem)

    async def _is_healthy(self, one: LiveService, check: HealthCheck) -> bool:
        """Its check leaves no record."""
        run_id = new_id("sh")
        folder = self._open_spaces.folder(one.space_id)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        command = Command(
            check.argv,
            cwd=one.service.folder,
            output=Output.GIVEN,
            streams=(nothing, nothing, nothing),
            timeout_s=check.timeout_s,
            run_id=run_id,
            may_make_room=True,
        )
        try:
            async with asyncio.timeout(check.timeout_s + CHECK_MARGIN_S):
                opened = await self._open_spaces.of(self._journal.current(one.space_id))
                run = await self._open_spaces.run(opened, command, service=one.name)
                try:
                    ended = await run.wait()
                finally:
                    run.close()
            return ended.code == 0
        except (CarrelError, TimeoutError, OSError):
            return False
        finally:
            os.close(nothing)
            with contextlib.suppress(OSError, CarrelError):
                await asyncio.to_thread(self._drop_run, folder, run_id)

    async def _move(self, one: LiveService, state: ServicePhase, *, problem: str = "") -> None:
        """Told, if it is another state. What cannot be written down now is so all the same."""
        before, one.state = one.state, state
        if problem:
            one.problem = problem
        elif state is ServicePhase.RUNNING:
            one.problem = ""
        async with one.moved:
            one.moved.notify_all()
        if state is before:
            return
        data: dict[str, object] = {"service": one.name, "to": str(state), "run_id": one.run_id}
        if one.health:
            data["health"] = one.health
        if state is ServicePhase.EXITED:
            data["code"] = one.code
        if one.restarts:
            data["restarts"] = one.restarts
        if one.problem and state is not ServicePhase.RUNNING:
            data["problem"] = one.problem
        event = self._journal.event(EventType.SERVICE_STATE, one.space_id, **data)
        with contextlib.suppress(CarrelError):
            await self._journal.write(event)

    # Taking up

    async def take_up(self) -> None:
        """Those of an earlier daemon, when its runs have been taken up."""
        for space in self._journal.all():
            if space.services and space.state in LIVE:
                with contextlib.suppress(CarrelError):
                    await self._take_up(space)

    async def _take_up(self, space: Space) -> None:
        last: dict[str, RunRecord] = {}
        for record in await self._store.runs(space.space_id, limit=MOST_RUNS):
            if record.entry:
                last.setdefault(record.service, record)
        for record in self._runs.alive():
            if record.space_id == space.space_id and record.entry:
                last[record.service] = record
        live = self._know(space)
        for one in live.values():
            one.task = asyncio.create_task(self._go_on(one, last.get(one.name)))

    async def _go_on(self, one: LiveService, record: RunRecord | None) -> None:
        if record is not None and self._runs.live(record.run_id) is not None:
            one.state = ServicePhase.STARTING
            one.health = "starting" if one.service.spec.health is not None else ""
            await self._look_after(one, record)
            return
        if record is None:
            await self._look_after(one)
            return
        one.run_id, one.state = record.run_id, ServicePhase.EXITED
        one.code = None if record.exit is None else record.exit.code
        one.ended_well = one.code == 0
        one.problem = "" if one.ended_well else "ended while no daemon ran."
        if _again(one):
            await self._look_after(one)

    # Stopping

    async def stop(self, space: Space, most_s: float | None = None) -> None:
        """By its own signal and within its own time, those first that others do not depend on; all
        of them within `most_s`, or a minute."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + (MOST_STOP_S if most_s is None else most_s)
        await self.forget(space.space_id)
        if space.services and space.owner is not None and space.base_id:
            for level in _levels(space.services):
                left_s = max(ends - loop.time(), 0.0)
                ending = [self._stop_one(space, one, left_s) for one in level]
                await asyncio.gather(*ending, return_exceptions=True)

    async def _stop_one(
        self, space: Space, service: SpaceService, most_s: float = MOST_STOP_S
    ) -> None:
        opened = await self._open_spaces.of(space)
        sandbox = opened.at(CommandPlace.DEV, service.name)
        grace_s = service.spec.stop_grace_s
        for record in self._runs.alive():
            if record.space_id != space.space_id or record.service != service.name:
                continue
            if not record.entry:
                continue
            await opened.runtime.signal(sandbox, record.run_id, service.stop_number)
            ended = await self._runs.wait(record.run_id, min(grace_s, most_s))
            if ended.state is RunState.RUNNING:
                await opened.runtime.kill(sandbox, record.run_id)

    async def forget(self, space_id: str) -> None:
        """Nobody looks after them any more; what is just being started is there when this
        returns."""
        live = self._of_space.pop(space_id, {})
        tasks = [one.task for one in live.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        launching = [one.launching for one in live.values() if one.launching is not None]
        if launching:
            await asyncio.wait(launching)

    async def restart(self, space: Space, name: str) -> ServiceStatus:
        """Ends one and starts it anew. Raises `CommandInvalid`, `StateConflict` and
        `ServiceFailed`."""
        async with self._locks.shared(space.space_id):
            space = self._journal.current(space.space_id)
            live = self._of_space.get(space.space_id, {})
            service = next((one for one in space.services if one.name == name), None)
            if service is None:
                raise no_service(space, name)
            before = live.get(name)
            if space.state not in LIVE or before is None:
                raise StateConflict(
                    f"{space.name} is {space.state}.",
                    hint=f"Start it: carrel start {space.name}",
                    state=str(space.state),
                )
            async with before.turn:
                # Somebody else may have restarted it meanwhile.
                before = live[name]
                await _ended_task(before)
                await self._stop_one(space, service)
                if self._of_space.get(space.space_id) is not live:
                    # A rewind has stopped them all, and begins them anew.
                    raise _stopped_meanwhile(before)
                one = LiveService(space.space_id, service, before.moved, turn=before.turn)
                live[name] = one
                one.task = asyncio.create_task(self._look_after(one))
        await self._all_ready({name: one}, ignore_progress)
        return self._status(one)

    async def close(self) -> None:
        """The daemon ends; they go on."""
        for space_id in list(self._of_space):
            await self.forget(space_id)

    # Asking

    def of(self, space: Space) -> tuple[ServiceStatus, ...]:
        live = self._of_space.get(space.space_id, {})
        return tuple(
            self._status(live[one.name]) if one.name in live else _stopped(one)
            for one in space.services
        )

    def _status(self, one: LiveService) -> ServiceStatus:
        found = _stopped(one.service)
        return dataclasses.replace(
            found,
            state=one.state,
            health=one.health,
            run_id=one.run_id,
            restarts=one.restarts,
            code=one.code,
            problem=one.problem,
        )


def _stopped_meanwhile(one: LiveService) -> StateConflict:
    return StateConflict(
        f"The service {one.name} was stopped by somebody else meanwhile.",
        hint="Look at it, and try again: carrel services SPACE",
    )


def _stopped(service: SpaceService) -> ServiceStatus:
    spec = service.spec
    return ServiceStatus(spec.name, ServicePhase.STOPPED, service.image.name, ports=spec.ports)


def _decided(one: LiveService, condition: Condition) -> bool:
    return one.satisfies(condition) or one.hopeless or one.state is ServicePhase.EXITED


def _done(one: LiveService, condition: Condition) -> bool:
    return one.ended_well if condition is Condition.COMPLETED else one.is_there


def _first_cause(one: LiveService, live: dict[str, LiveService]) -> LiveService:
    """What it waits for may be what failed."""
    for other in one.service.spec.depends_on:
        before = live.get(other.service)
        if before is not None and before.hopeless:
            return _first_cause(before, live)
    return one


def _word(one: LiveService) -> str:
    return "ended" if one.ended_well else one.health or "running"


def _again(one: LiveService) -> bool:
    spec = one.service.spec
    if one.restarts >= MOST_IN_A_ROW:
        return False
    if spec.restart is RestartPolicy.ON_FAILURE:
        return not one.ended_well and (not spec.restarts or one.restarts < spec.restarts)
    return spec.restart is not RestartPolicy.NO


def _levels(services: tuple[SpaceService, ...]) -> Iterator[list[SpaceService]]:
    """First those that nobody depends on."""
    left = list(services)
    while left:
        needed = {other.service for one in left for other in one.spec.depends_on}
        last = [one for one in left if one.name not in needed] or left
        yield last
        left = [one for one in left if one not in last]


async def _ended_task(one: LiveService) -> None:
    if one.task is not None:
        one.task.cancel()
        await asyncio.wait({one.task})
    if one.launching is not None:
        await asyncio.wait({one.launching})
