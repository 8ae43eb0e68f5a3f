"""A new space: base, tree, sandbox; each step written down before and after.

Nothing of a space that could not be made is left: its record says `removed`, and why.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

from carrel.domain.collaborators import Bases, Machine, Users
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.limits import Limits
from carrel.domain.projects import BaseRequest, OnProgress, Project
from carrel.domain.runtimes import Runtime
from carrel.domain.spaces import Space, SpaceRequest, SpaceState
from carrel.domain.storing import Record
from carrel.domain.trees import Base, Owner, Tree, TreeDriver, TreeRequest
from carrel.service.desk import Desk, Desks
from carrel.service.journal import Journal, Operation, plain
from carrel.service.space_requests import name_from

OPERATION = "create"
BASE, TREE, FILL, SANDBOX = "base", "tree", "fill", "sandbox"
STEPS = (BASE, TREE, FILL, SANDBOX)

Fill = Callable[[TreeDriver, Tree], None]
"""Puts something into a new tree before anybody sees it; blocking."""
Undo = Callable[[str, Operation, BaseException], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Creator:
    bases: Bases
    machine: Machine
    users: Users
    desks: Desks
    journal: Journal
    undo: Undo

    def draft(self, request: SpaceRequest, limits: Limits) -> Space:
        """The record as it is when nothing has been done yet."""
        now = self.journal.clock()
        space_id = request.space_id or new_id("sp")
        return Space(
            space_id=space_id,
            name=request.name or name_from(request.project, space_id),
            state=SpaceState.CREATING,
            project=request.project,
            created_at=now,
            updated_at=now,
            active_at=now,
            runtime=request.runtime,
            driver=request.driver,
            base_id=request.base_id,
            network=request.network,
            tier=request.tier,
            limits=limits,
            labels=dict(request.labels),
            env=dict(request.env),
            retention=request.retention,
            description=request.description,
            parent=request.parent,
            agent=request.agent,
            network_asked=request.network_asked,
            mcp=request.mcp,
            place=request.place,
            transient=request.transient,
        )

    async def create(
        self,
        space: Space,
        request: SpaceRequest,
        on_progress: OnProgress,
        *records: Record,
        fill: Fill | None = None,
    ) -> Space:
        """`records` are written together with the new space's own. Raises what the step
        that failed raised, when all of the space is gone again."""
        space_id = space.space_id
        operation = self.journal.operation(space_id, OPERATION)
        born = self.journal.event(EventType.SPACE_STATE, space_id, to=str(space.state))
        self.journal.know(space)
        await operation.begin(BASE, space, born, *records)
        try:
            runtime = await self.machine.runtime(space.runtime)
            driver = await self.machine.driver(space.driver, runtime)
            base = await asyncio.to_thread(self._base, request, on_progress)
            resolved = {"runtime": runtime.name, "driver": driver.name, "base_id": base.base_id}
            space = self.journal.amend(space_id, **resolved, project=_project(request, base))
            await operation.begin(TREE, space)
            owner = await asyncio.to_thread(self._claim, space)
            wanted = self._wanted(space, base, owner)
            if fill is None and space.limits.disk_bytes is None:
                # Else the tree would be held to the quota while it is made.
                runtime.begin(self.desks.spec(dataclasses.replace(space, owner=owner)))
                await asyncio.sleep(0)
            tree = await asyncio.to_thread(driver.create, wanted)
            self.desks.made(space_id)
            made = {"owner": owner, "tree_created_ns": tree.created_ns}
            space = self.journal.amend(space_id, **made)
            if fill is not None:
                await operation.begin(FILL, space)
                await asyncio.to_thread(fill, driver, tree)
            await operation.begin(SANDBOX, space)
            return await self._start(space, runtime, driver, tree, operation)
        except BaseException as error:
            told = plain(error)
            await self.undo(space_id, operation, told)
            if told is error:
                raise
            raise told from error

    def _base(self, request: SpaceRequest, on_progress: OnProgress) -> Base:
        if request.base_id:
            return self.bases.get(request.base_id)
        wanted = BaseRequest(
            project=request.project,
            exclude=request.exclude,
            max_bytes=request.max_bytes,
            max_files=request.max_files,
        )
        return self.bases.build(wanted, on_progress)

    def _wanted(self, space: Space, base: Base, owner: Owner) -> TreeRequest:
        place = Path(space.place) if space.place else None
        return TreeRequest(space.space_id, base, self.desks.folder(space.space_id), owner, place)

    def _claim(self, space: Space) -> Owner:
        self.desks.folder(space.space_id).mkdir(mode=0o711)
        owner = self.users.take(space.space_id)
        if space.agent:
            self.desks.seat(space.space_id, owner)
        return owner

    async def _start(
        self, space: Space, runtime: Runtime, driver: TreeDriver, tree: Tree, operation: Operation
    ) -> Space:
        with driver.mount(tree) as mount:
            sandbox = await runtime.start(self.desks.spec(space), mount, wait=False)
        enforced = sandbox.limits
        space, event = self.journal.moved(space.space_id, SpaceState.READY, enforced=enforced)
        await operation.end(space, event)
        return space

    async def start_again(self, desk: Desk, operation: Operation) -> Space:
        """A space that was stopped, or failed."""
        await operation.begin(SANDBOX)
        async with self.desks.mounted(desk) as mount:
            sandbox = await desk.runtime.start(desk.sandbox.spec, mount, wait=False)
        space, event = self.journal.moved(
            desk.space.space_id,
            SpaceState.READY,
            enforced=sandbox.limits,
            stopped_at=None,
            problem=None,
            active_at=self.journal.clock(),
        )
        await operation.end(space, event)
        return space


def _project(request: SpaceRequest, base: Base) -> Project:
    return base.project if request.base_id else request.project
