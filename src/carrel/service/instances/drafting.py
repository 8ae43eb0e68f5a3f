"""From a request to the record of an instance, before anything is made."""

from __future__ import annotations

import asyncio
import dataclasses
import os

from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid, TooManyInstances
from carrel.domain.ids import new_id
from carrel.domain.instances import Hold, Instance, InstanceRequest, InstanceState, Server
from carrel.domain.limits import Limits
from carrel.domain.spaces import AUTO, Space
from carrel.domain.trees import Owner
from carrel.service.instances import asking
from carrel.service.instances.live import Live
from carrel.service.instances.parts import InstanceParts

UNCONFINED = "process"


class Drafts:
    def __init__(self, parts: InstanceParts) -> None:
        self._parts = parts

    async def draft(self, caller: Caller, request: InstanceRequest) -> Live:
        """Raises `MessageInvalid`, `Forbidden`, `ServerNotFound`, `ServerNotInstalled`,
        `SpaceNotFound` and `ProjectError`s."""
        asking.check(request)
        space = None
        if request.space_id:
            space = await self._parts.spaces.get(caller, request.space_id)
        asking.check_caller(caller, request, space)
        server = self._server(request)
        asking.check_server(caller, server, space)
        # One that is not installed is told before anything is made.
        found = await asyncio.to_thread(self._parts.servers.locate, server)
        env = dict(request.env)
        if server.daemon and space is None:
            # Not as in a space: there is no hub beside it.
            env |= {"CARREL_DATA": str(self._parts.data), "CARREL_HUB": ""}
        instance = await self._instance(caller, request, server, space)
        return Live(instance, env=env, streams=request.streams, found=found)

    async def _instance(
        self, caller: Caller, request: InstanceRequest, server: Server, space: Space | None
    ) -> Instance:
        path, owner, confined = "", None, request.confined
        if space is None:
            path, owner = await self._parts.places.look(request.project_path)
            asking.check_path(caller, path, self._parts.rules.project_roots, self._parts.data)
            if server.daemon:
                confined, owner = False, Owner(os.geteuid(), os.getegid())
        now = self._parts.book.clock()
        return Instance(
            instance_id=new_id("in"),
            server=server,
            state=InstanceState.STARTING,
            caller=caller.name,
            created_at=now,
            updated_at=now,
            project_path=path,
            space_id="" if space is None else space.space_id,
            project_owner=owner,
            confined=confined,
            runtime=AUTO if confined else UNCONFINED,
            network=request.network or server.network,
            limits=self._limits(request.limits),
            ttl_s=request.ttl_s,
            lease_s=request.lease_s,
            idle_s=request.idle_s,
            holds=(self._hold(request),),
            survive=request.survive,
            restart=request.restart,
            share=request.share,
            heard_at=now,
        )

    def _server(self, request: InstanceRequest) -> Server:
        given, servers = request.server, self._parts.servers
        server = servers.get(given) if isinstance(given, str) else servers.checked(given)
        if request.tool_ready is not None:
            server = dataclasses.replace(server, tool_ready=request.tool_ready)
        if request.ready_s is not None:
            server = dataclasses.replace(server, ready_s=request.ready_s)
        return asking.on_streams(server) if request.streams else server

    def _limits(self, limits: Limits) -> Limits:
        """The machine's bound, unless a smaller one was asked for."""
        most = self._parts.rules.memory_bytes
        if not most or (limits.memory_bytes is not None and limits.memory_bytes <= most):
            return limits
        return dataclasses.replace(limits, memory_bytes=most)

    def _hold(self, request: InstanceRequest) -> Hold:
        """Raises `MessageInvalid` for an owner that is not there."""
        started = 0
        if request.owner_pid is not None:
            found = self._parts.owners.started(request.owner_pid)
            if found is None:
                raise MessageInvalid(
                    f"There is no process {request.owner_pid}.", hint="Name one that lives."
                )
            started = found
        if request.hub_client and not self._parts.hub.is_there(request.hub_client):
            raise MessageInvalid(
                f"There is no connection {request.hub_client[:40]!r} to the hub.",
                hint="Name it by its `client_id`.",
            )
        return Hold(request.owner_pid, started, request.hub_client, new_id("ho"))

    def check_room(self, caller: str) -> None:
        """Raises `TooManyInstances`."""
        rules, living = self._parts.rules, self._parts.book.all()
        mine = sum(1 for live in living if live.instance.caller == caller and not live.spare)
        if rules.most and len(living) >= rules.most:
            raise TooManyInstances(
                f"{len(living)} instances live already, as many as may.",
                hint="Release some, or raise `instances_max`.",
            )
        if rules.per_caller and mine >= rules.per_caller:
            raise TooManyInstances(
                f"You have {mine} instances already, as many as one caller may.",
                hint="Release some, or raise `instances_per_caller`.",
            )
