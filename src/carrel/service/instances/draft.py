"""What callers may ask for, what is made of it, and what a space needs to run a server."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.errors import (
    Forbidden,
    InstanceNotFound,
    MessageInvalid,
    StateConflict,
    TooManyInstances,
)
from carrel.domain.ids import new_id
from carrel.domain.instances import (
    Found,
    Hold,
    Instance,
    InstanceRequest,
    InstanceState,
    Server,
    Servers,
    Share,
    Transport,
)
from carrel.domain.keys import looks_like_key
from carrel.domain.limits import NO_LIMITS, Limits
from carrel.domain.server_adapter import ServerAdapter
from carrel.domain.spaces import AUTO, Space
from carrel.domain.trees import Owner
from carrel.service.access import check_untouched, may_see, realm_of
from carrel.service.instances.book import InstanceBook, InstanceParts, LiveInstance
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces
from carrel.service.runs import Runs
from carrel.service.shared import Shared


def check(request: InstanceRequest) -> None:
    """Raises `MessageInvalid`."""
    if bool(request.project_path) == bool(request.space_id):
        raise MessageInvalid(
            "An instance is for a project's path or for a space.", hint="Name one of them."
        )
    for name in ("ttl_s", "lease_s", "idle_s", "ready_s"):
        value = getattr(request, name)
        if value is not None and not value > 0:
            raise MessageInvalid(f"{name} must be more than 0.", hint="Leave it out for never.")
    if request.space_id and (request.limits != NO_LIMITS or request.network is not None):
        raise MessageInvalid(
            "An instance in a space has the space's limits and its network.",
            hint="Leave them out, or ask for an instance on a path.",
        )
    if request.space_id and not request.confined:
        raise MessageInvalid(
            "An instance in a space is confined as the space is.", hint="Leave it out."
        )
    if request.streams and request.share is not Share.NONE:
        raise MessageInvalid(
            "An instance on standard streams serves one client.",
            hint="Ask for an instance that is not shared.",
        )


def check_server(
    caller: Caller, server: Server, space: Space | None, env: Mapping[str, str]
) -> None:
    """`env` is the caller's. Raises `Forbidden`."""
    if caller.scope.kind is ScopeKind.ADMIN:
        return
    if server.daemon and space is None:
        raise Forbidden(
            f"{server.name} acts as the daemon's user, so only an administrator may start it.",
            hint="Ask for it in a space.",
        )
    if not _has_key(server):
        return
    if space is not None and (space.guest or server.name not in space.mcp):
        raise Forbidden(
            f"{server.name} has a key of the daemon's user, and what runs in a space can read it.",
            hint="Ask an administrator for a space that has this server.",
        )
    if env:
        raise Forbidden(
            f"{server.name} has a key of the daemon's user, so only an administrator may "
            "set its variables.",
            hint="Leave `env` out.",
        )


def _has_key(server: Server) -> bool:
    said = (*server.command, *server.stdio, *server.files.values())
    return any(looks_like_key(*one) for one in server.env.items()) or any(
        looks_like_key("", text) for text in said
    )


def check_caller(caller: Caller, request: InstanceRequest, space: Space | None) -> None:
    """Raises `Forbidden`."""
    kind = caller.scope.kind
    if kind is ScopeKind.ADMIN:
        return
    if not request.confined:
        raise Forbidden("Only an administrator may run unconfined.", hint="Leave it out.")
    if not isinstance(request.server, str):
        raise Forbidden(
            "Only an administrator may say how a server is started.",
            hint="Name a known server: `carrel instance servers` lists them.",
        )
    if request.owner_pid is not None:
        raise Forbidden(
            "Only a caller on this machine may name an owner process.", hint="Use a lease."
        )
    if space is None:
        # A server writes in the folder itself, as its owner: its hooks and build files too.
        raise Forbidden(
            "Only an administrator may start a server on a folder itself.",
            hint="Make a space of the project, and name that.",
        )


def check_path(path: str, data: Path) -> None:
    """`path` is real. Raises `Forbidden`."""
    kept = os.path.realpath(data)
    if _within(path, kept) or _within(kept, path):
        raise Forbidden(
            "This folder contains Carrel's own data, or is inside it.",
            hint="Name the project's own folder, or a space.",
        )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def may_have(caller: Caller, instance: Instance, space: Space | None) -> None:
    """What a caller may not see does not exist for it: `InstanceNotFound`."""
    if caller.scope.kind is ScopeKind.ADMIN:
        return
    if space is not None and may_see(caller, space):
        return
    if not instance.space_id and instance.caller == caller.name:
        return
    raise InstanceNotFound(
        f"There is no instance {instance.instance_id!r}.", hint="`carrel instance ls` lists them."
    )


def account(caller: Caller, space: Space | None) -> str:
    """Whose share it takes, if that is not its caller alone: a token has one with all spaces that
    it makes, and a space with all that come of it. More spaces are no larger share."""
    if caller.scope.kind is ScopeKind.ADMIN:
        return ""
    if caller.scope.kind is ScopeKind.SPACE and space is not None:
        return space.counts_for
    return realm_of(caller)


def on_streams(server: Server) -> Server:
    """The server as it is started for a client that speaks on streams."""
    command = server.command if server.transport is Transport.STDIO else server.stdio
    if not command:
        raise MessageInvalid(
            f"{server.name} is not known to speak on its standard streams.",
            hint="Say how (`stdio` in its definition), or connect by its address.",
        )
    return dataclasses.replace(server, command=command)


# From a request to the record of an instance, before anything is made.

UNCONFINED = "process"


class Drafts:
    def __init__(self, parts: InstanceParts) -> None:
        self._parts = parts

    async def draft(self, caller: Caller, request: InstanceRequest) -> LiveInstance:
        """Raises `MessageInvalid`, `Forbidden`, `ServerNotFound`, `ServerNotInstalled`,
        `SpaceNotFound` and `ProjectError`s."""
        check(request)
        space = None
        if request.space_id:
            space = await self._parts.spaces.get(caller, request.space_id)
            check_untouched(space)
        check_caller(caller, request, space)
        server = self._server(request)
        check_server(caller, server, space, request.env)
        # One that is not installed is told before anything is made.
        found = await asyncio.to_thread(self._parts.servers.locate, server)
        env = dict(request.env)
        if server.daemon and space is None:
            # Not as in a space: there is no hub beside it.
            env |= {"CARREL_DATA": str(self._parts.data), "CARREL_HUB": ""}
        instance = await self._instance(caller, request, server, space)
        return LiveInstance(instance, env=env, streams=request.streams, found=found)

    async def _instance(
        self, caller: Caller, request: InstanceRequest, server: Server, space: Space | None
    ) -> Instance:
        path, owner, confined = "", None, request.confined
        if space is None:
            path, owner = await self._parts.places.look(request.project_path)
            check_path(path, self._parts.data)
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
            account=account(caller, space),
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
            holds=(self._hold(caller, request),),
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
        return on_streams(server) if request.streams else server

    def _limits(self, limits: Limits) -> Limits:
        """The machine's bound, unless a smaller one was asked for."""
        most = self._parts.rules.memory_bytes
        if not most or (limits.memory_bytes is not None and limits.memory_bytes <= most):
            return limits
        return dataclasses.replace(limits, memory_bytes=most)

    def _hold(self, caller: Caller, request: InstanceRequest) -> Hold:
        """Raises `MessageInvalid` for an owner that is not there. A connection to the hub is told
        of the instance, so it is not another's."""
        started = 0
        if request.owner_pid is not None:
            found = self._parts.owners.started(request.owner_pid)
            if found is None:
                raise MessageInvalid(
                    f"There is no process {request.owner_pid}.", hint="Name a running process."
                )
            started = found
        if request.hub_client and not self._parts.hub.is_for(caller, request.hub_client):
            raise MessageInvalid(
                f"There is no connection {request.hub_client[:40]!r} to the hub.",
                hint="Name it by its `client_id`.",
            )
        return Hold(request.owner_pid, started, request.hub_client, new_id("ho"))

    def check_room(self, wanted: Instance) -> None:
        """Those of others do not keep the owner out: they may be as many as there are spaces.
        Raises `TooManyInstances`."""
        rules, living = self._parts.rules, self._parts.book.all()
        held = [live.instance.counts_for for live in living if not live.spare]
        mine = held.count(wanted.counts_for)
        count = mine if wanted.caller == LOCAL.name else len(living)
        if rules.most and count >= rules.most:
            raise TooManyInstances(
                f"{count} instances run already, the most that are allowed.",
                hint="Stop some (`carrel instance stop`), or raise `instances_max`.",
            )
        if rules.per_caller and mine >= rules.per_caller:
            raise TooManyInstances(
                f"You have {mine} instances already, the most that one caller may have.",
                hint="Stop some (`carrel instance stop`), or raise `instances_per_caller`.",
            )


# What a sandbox must show for servers to run in it.


class Needs:
    """Blocking, quick."""

    def __init__(self, servers: Servers, adapter: ServerAdapter) -> None:
        self._servers = servers
        self._adapter = adapter

    def of(self, server: Server) -> tuple[str, ...]:
        """Raises `ServerNotInstalled`."""
        return self.by(server, self._servers.locate(server))

    def by(self, server: Server, found: Found) -> tuple[str, ...]:
        """Of one whose program was located."""
        paths = (*found.binds, *server.binds, *self._adapter.shown())
        return tuple(dict.fromkeys(paths))

    def named(self, names: Sequence[str]) -> tuple[str, ...]:
        """Of all of them. Raises `ServerNotFound`, `ServerNotInstalled`."""
        paths = [path for name in names for path in self.of(self._servers.get(name))]
        return tuple(dict.fromkeys(paths))


# Spaces whose sandboxes show what servers need.

ALWAYS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store")
"""What every sandbox shows."""


class Equipping:
    def __init__(
        self,
        book: InstanceBook,
        journal: Journal,
        open_spaces: OpenSpaces,
        runs: Runs,
        shared: Shared,
    ) -> None:
        self._book = book
        self._journal = journal
        self._open_spaces = open_spaces
        self._runs = runs
        self._locks = shared.locks

    async def equip(self, space_id: str, paths: tuple[str, ...]) -> None:
        """Its sandbox shows these from now on. One that does not has to be set up anew, for
        which nothing may run in it: `StateConflict`."""
        if not self._missing(self._journal.current(space_id), paths):
            return
        # What is refused anyway keeps nobody waiting behind it.
        self._check(self._journal.current(space_id))
        async with self._locks.alone(space_id):
            space = self._journal.current(space_id)
            missing = self._missing(space, paths)
            self._check(space)
            opened = await self._open_spaces.of(space)
            await opened.stop(services=False)
            shows = (*space.shows, *missing)
            await self._journal.write(self._journal.amend(space_id, shows=shows))

    def _missing(self, space: Space, paths: tuple[str, ...]) -> tuple[str, ...]:
        seen = [bind.target for bind in self._open_spaces.binds(space)]
        return tuple(path for path in dict.fromkeys(paths) if not _below(path, (*ALWAYS, *seen)))

    def _check(self, space: Space) -> None:
        served = any(
            live.instance.space_id == space.space_id and live.instance.run_id
            for live in self._book.all()
        )
        if served or self._runs.live_of(space.space_id):
            raise StateConflict(
                f"{space.name} was made without this server, and something runs in it.",
                hint="Let it end first, or make a space with --mcp.",
            )


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
