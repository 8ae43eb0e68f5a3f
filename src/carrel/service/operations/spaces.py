"""Spaces, as the contract has them: requests become the domain's, records become answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from carrel.api.types import spaces as types
from carrel.api.types.common import members, moment, moment_or_none, shared
from carrel.domain.access import Caller
from carrel.domain.environments import HomeTool, PackageSettings
from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.domain.keys import masked
from carrel.domain.limits import Limits
from carrel.domain.projects import OnProgress, Project, ProjectKind, ignore_progress
from carrel.domain.runtimes import Capabilities, Network
from carrel.domain.spaces import (
    Removal,
    Retention,
    Space,
    SpaceQuery,
    SpaceRequest,
    SpaceState,
    Trashed,
)
from carrel.domain.trees import ReviewQuery
from carrel.lifecycle.table import LIVE
from carrel.service.access import concealed, is_owner, shown_project
from carrel.service.runs import Runs
from carrel.service.space_servers import ResidentServer
from carrel.service.spaces import SpaceChanges, Spaces, SpaceUsage
from carrel.service.turns import Turns

PAGE = 1000
AT_ONCE = 4
"""Each look at a disk has a worker thread."""


class SpaceViews:
    """What is told of spaces, whose record alone does not say what confines them and where
    they are."""

    def __init__(self, spaces: Spaces, runs: Runs, turns: Turns, data: Path) -> None:
        self._spaces = spaces
        self._runs = runs
        self._turns = turns
        self._data = str(data)

    async def one(self, caller: Caller, space: Space) -> types.SpaceInfo:
        return self._info(caller, space, await self._confines(space))

    async def many(self, caller: Caller, spaces: Iterable[Space]) -> tuple[types.SpaceInfo, ...]:
        """What a runtime confines is asked once for all its spaces."""
        known: dict[str, Capabilities | None] = {}
        found = []
        for space in spaces:
            key = space.runtime if space.owner is not None else ""
            if key not in known:
                known[key] = await self._confines(space)
            found.append(self._info(caller, space, known[key]))
        return tuple(found)

    async def trashed(self, caller: Caller, kept: Trashed) -> types.TrashedInfo:
        # It was kept while it was being removed.
        space = dataclasses.replace(kept.space, state=SpaceState.REMOVED)
        return types.TrashedInfo(
            space=await self.one(caller, space),
            trashed_at=moment(kept.trashed_at),
            bytes_kept=kept.bytes_kept,
            changes=kept.changes,
            system=kept.system,
        )

    async def removal(self, caller: Caller, removal: Removal) -> types.RemovalInfo:
        return types.RemovalInfo(
            space=removal.space_id,
            changes=removal.changes,
            kept=None if removal.kept is None else await self.trashed(caller, removal.kept),
            lost=removal.lost,
        )

    async def _confines(self, space: Space) -> Capabilities | None:
        try:
            return await self._spaces.capabilities(space)
        except CarrelError:
            # Made by a daemon that had back ends which this one has not.
            return None

    def concealed(self, caller: Caller, value: Any) -> Any:
        return concealed(caller, self._data, value)

    def _info(self, caller: Caller, space: Space, confines: Capabilities | None) -> types.SpaceInfo:
        hidden = space.state is SpaceState.REMOVED or not is_owner(caller)
        path = space.place or f"{self._data}/spaces/{space.space_id}/project"
        told = {
            "id": space.space_id,
            "project": shown_project(caller, space),
            "base": space.base_id,
            "confined": None if confines is None else confines.confines,
            "uncovered": () if confines is None else self.concealed(caller, confines.uncovered),
            "path": "" if hidden else path,
            "enforced": self.concealed(caller, space.enforced),
            "env": masked(space.env),
            "created_at": moment(space.created_at),
            "updated_at": moment(space.updated_at),
            "active_at": moment(space.active_at),
            "stopped_at": moment_or_none(space.stopped_at),
            "removed_at": moment_or_none(space.removed_at),
            "problem": self.concealed(caller, space.problem),
            "working": self._turns.working(space.space_id),
            "activity": self._turns.activity(space),
            "doing": self._turns.doing(space),
            "since": moment(self._turns.since(space)),
            "mcp": tuple(self._resident(caller, one) for one in self._spaces.residents(space)),
            "live_runs": self._runs.live_of(space.space_id),
            "tools": () if hidden else tuple(map(_tool, space.tools.tools)),
            "shown": () if hidden else tuple(space.shown),
            "image": _image(space),
            "services": tuple(one.name for one in space.services),
            "packages": () if hidden else _given(space.packages),
            "withheld": () if hidden else space.packages.withheld,
        }
        return types.SpaceInfo(**{**shared(space, types.SpaceInfo), **told})

    def _resident(self, caller: Caller, one: ResidentServer) -> types.Resident:
        return types.Resident(
            name=one.name,
            state=one.state,
            instance=one.instance_id,
            problem=self.concealed(caller, one.problem),
        )


class SpaceOperations:
    def __init__(self, spaces: Spaces, views: SpaceViews) -> None:
        self._spaces = spaces
        self._views = views

    async def create(
        self,
        caller: Caller,
        new: types.NewSpace,
        *,
        on_progress: OnProgress = ignore_progress,
        key: str = "",
    ) -> types.SpaceInfo:
        """See `Spaces.create`."""
        made = await self._spaces.create(caller, space_request(new), on_progress, key)
        return await self._views.one(caller, made)

    async def list(self, caller: Caller, asked: types.SpaceListQuery) -> types.SpaceList:
        query = SpaceQuery(
            states=frozenset(asked.state),
            labels=dict(_label(one) for one in asked.label),
            name=asked.name,
            limit=asked.limit,
            after=asked.after,
        )
        page = await self._spaces.list(caller, query)
        found = await self._views.many(caller, page.spaces)
        return types.SpaceList(spaces=found, next=page.next, total=page.total)

    async def show(self, caller: Caller, space: str) -> types.SpaceInfo:
        return await self._views.one(caller, await self._spaces.get(caller, space))

    async def update(self, caller: Caller, space: str, new: types.SpaceUpdate) -> types.SpaceInfo:
        update = SpaceChanges(
            name=new.name,
            labels=new.labels,
            retention=None if new.retention is None else _retention(new.retention),
            description=new.description,
            ssh_agent=new.ssh_agent,
        )
        return await self._views.one(caller, await self._spaces.update(caller, space, update))

    async def stop(self, caller: Caller, space: str, asked: types.StopBody) -> types.SpaceInfo:
        stopped = await self._spaces.stop(caller, space, asked.grace_s)
        return await self._views.one(caller, stopped)

    async def start(self, caller: Caller, space: str) -> types.SpaceInfo:
        return await self._views.one(caller, await self._spaces.start(caller, space))

    async def restart(self, caller: Caller, space: str, asked: types.StopBody) -> types.SpaceInfo:
        """Stops it and starts it again, also one that is stopped or failed."""
        found = await self._spaces.restart(caller, space, asked.grace_s)
        return await self._views.one(caller, found)

    async def remove(
        self, caller: Caller, space: str, asked: types.RemoveQuery
    ) -> types.RemovalInfo:
        removal = await self._spaces.remove(caller, space, force=asked.force)
        return await self._views.removal(caller, removal)

    async def changes(
        self, caller: Caller, space: str, asked: types.ChangesQuery
    ) -> types.ChangeList:
        if asked.system:
            found = await self._spaces.system_changes(caller, space, asked.limit)
            return types.ChangeList(changes=found.listed, **shared(found, types.ChangeList))
        query = ReviewQuery(most=asked.limit, ignored=asked.ignored, git=asked.git)
        found = await self._spaces.review(caller, space, query)
        return types.ChangeList(changes=found.listed, **shared(found, types.ChangeList))

    async def usage(self, caller: Caller, space: str, asked: types.UsageQuery) -> types.UsageInfo:
        found = await self._spaces.existing(caller, space)
        return await self.used(caller, found, disk=asked.disk)

    async def used(self, caller: Caller, space: Space, *, disk: bool = False) -> types.UsageInfo:
        return _usage(await self._spaces.usage(caller, space, disk=disk))

    async def usage_of_all(self, caller: Caller, asked: types.UsageOfAllQuery) -> types.UsageList:
        """Of every space that is ready or running."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def look(space: Space) -> types.UsageInfo | None:
            async with gate:
                try:
                    return await self.used(caller, space, disk=asked.disk)
                except CarrelError:
                    # It was stopped or removed meanwhile.
                    return None

        found = await asyncio.gather(*(look(space) for space in await self.live(caller)))
        return types.UsageList(usage=tuple(one for one in found if one is not None))

    async def live(self, caller: Caller) -> Iterable[Space]:
        spaces: Iterable[Space] = ()
        after = ""
        while True:
            query = SpaceQuery(states=frozenset(LIVE), limit=PAGE, after=after)
            page = await self._spaces.list(caller, query)
            spaces = (*spaces, *page.spaces)
            after = page.next
            if not after:
                return spaces

    async def verify(self, caller: Caller, space: str) -> types.ProofInfo:
        found = await self._spaces.existing(caller, space)
        proof = await self._spaces.verify(caller, found.space_id)
        return types.ProofInfo(
            space=found.space_id,
            runtime=proof.runtime,
            holds=proof.holds,
            attempts=self._views.concealed(caller, proof.attempts),
        )


class TrashOperations:
    """What was kept of removed spaces."""

    def __init__(self, spaces: Spaces, views: SpaceViews) -> None:
        self._spaces = spaces
        self._views = views

    async def list(self, caller: Caller) -> types.TrashList:
        found = [
            await self._views.trashed(caller, one) for one in await self._spaces.trashed(caller)
        ]
        return types.TrashList(trash=tuple(found))

    async def restore(self, caller: Caller, space: str) -> types.SpaceInfo:
        return await self._views.one(caller, await self._spaces.undelete(caller, space))


def space_request(new: types.NewSpace) -> SpaceRequest:
    if new.base is not None and new.project is not None:
        raise MessageInvalid(
            "A space starts from a project or from a base.", hint="Leave one of them out."
        )
    understood = {
        "project": project_of(new.project),
        "base_id": new.base or "",
        "name": new.name or "",
        "network": new.network or Network.NONE,
        "network_asked": new.network is not None,
        "agent": new.agent or "",
        "limits": Limits(**members(new.limits)),
        "retention": _retention(new.retention),
    }
    return SpaceRequest(**{**shared(new, SpaceRequest), **understood})


def project_of(body: types.ProjectBody | None) -> Project:
    if body is None:
        return Project(ProjectKind.EMPTY)
    return Project(body.kind, body.location, body.ref)


def _tool(tool: HomeTool) -> types.ShownTool:
    return types.ShownTool(name=tool.name, paths=tuple(tool.shown))


def _image(space: Space) -> types.ShownImage | None:
    image, notes = space.image, space.image_notes
    if image is None:
        return types.ShownImage(id="", name="", user="", notes=notes) if notes else None
    ports = tuple(types.NamedPort(number=one.number, label=one.label) for one in image.ports)
    notes = (*notes, *image.notes)
    return types.ShownImage(
        id=image.image_id, name=image.name, user=image.user, notes=notes, ports=ports
    )


def _given(settings: PackageSettings) -> tuple[str, ...]:
    return tuple(f"~/{name}" for name in settings.files) + tuple(settings.env)


def _retention(body: types.RetentionBody) -> Retention:
    return Retention(**members(body))


def _usage(usage: SpaceUsage) -> types.UsageInfo:
    sandbox, tree = usage.sandbox, usage.tree
    return types.UsageInfo(
        space=usage.space_id,
        cpu_seconds=sandbox.cpu_seconds,
        memory_bytes=sandbox.memory_bytes,
        memory_peak_bytes=sandbox.memory_peak_bytes,
        pids=sandbox.pids,
        disk_bytes=None if tree is None else tree.bytes_used,
        disk_files=None if tree is None else tree.files_used,
    )


def _label(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not (key and found):
        raise MessageInvalid("A label is key=value.", hint="Such as team=blue.", field="label")
    return key, value
