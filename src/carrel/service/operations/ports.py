"""What is at work in spaces, their ports and services, and SSH, as the contract has them."""

from __future__ import annotations

import asyncio

from carrel.api.types import ports as types
from carrel.api.types.common import moment, shared
from carrel.domain.access import Caller, Scope, ScopeKind
from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.domain.ports import MAX_PORT, Forward
from carrel.domain.runtimes import Listening
from carrel.domain.services import ServiceStatus
from carrel.domain.spaces import Space
from carrel.domain.ssh import SshKeyRecord, SshListening, SshSession
from carrel.lifecycle.table import LIVE
from carrel.service.operations.runs import RunOperations
from carrel.service.operations.spaces import AT_ONCE, SpaceOperations, SpaceViews
from carrel.service.ports import Ports
from carrel.service.runs import Runs
from carrel.service.services import SpaceServices
from carrel.service.spaces import Spaces
from carrel.service.ssh import SshSessions
from carrel.service.ssh_listener import SshListener


class PortOperations:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def list(self, caller: Caller, space: str) -> types.PortList:
        found, listening = await self._ports.listening(caller, space)
        return types.PortList(
            space=found.space_id,
            listening=_ports(listening),
            caution=listening.caution,
            forwards=forwards_of(self._ports, found),
        )

    async def forward(self, caller: Caller, space: str, new: types.NewForward) -> types.ForwardInfo:
        return _forward(await self._ports.forward(caller, space, new.port, new.local))

    async def stop(self, caller: Caller, space: str, port: str) -> types.ForwardInfo:
        if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= MAX_PORT):
            raise MessageInvalid(
                f"{port[:20]!r} is no port.", hint=f"Use 1 to {MAX_PORT}.", field="path.port"
            )
        return _forward(await self._ports.stop(caller, space, int(port)))


class ServiceOperations:
    def __init__(self, spaces: Spaces, services: SpaceServices) -> None:
        self._spaces = spaces
        self._services = services

    async def list(self, caller: Caller, space: str) -> types.ServiceList:
        found = await self._spaces.existing(caller, space)
        return types.ServiceList(space=found.space_id, services=services_of(self._services, found))

    async def restart(self, caller: Caller, space: str, service: str) -> types.ServiceInfo:
        found = await self._spaces.existing(caller, space)
        return _service(await self._services.restart(found, service))


class SshOperations:
    def __init__(self, sessions: SshSessions, listener: SshListener) -> None:
        self._sessions = sessions
        self._listener = listener

    async def listener(self, caller: Caller) -> types.SshListenerInfo:
        return _listener(await self._listener.show(caller))

    async def listen(self, caller: Caller, asked: types.SshListenBody) -> types.SshListenerInfo:
        return _listener(await self._listener.listen(caller, asked.port))

    async def stop_listening(self, caller: Caller) -> types.SshListenerInfo:
        return _listener(await self._listener.stop(caller))

    async def access(self, caller: Caller) -> types.SshAccessInfo:
        found = await self._sessions.access(caller)
        return types.SshAccessInfo(
            block=found.block,
            config=str(found.config),
            identity=str(found.identity),
            known_hosts=str(found.known_hosts),
        )


class SshKeyOperations:
    def __init__(self, listener: SshListener) -> None:
        self._listener = listener

    async def add(self, caller: Caller, new: types.NewSshKey) -> types.SshKeyInfo:
        scopes = [_scope(one) for one in new.scopes]
        return _key(await self._listener.add(caller, new.key, new.name, scopes))

    async def list(self, caller: Caller) -> types.SshKeyList:
        return types.SshKeyList(keys=tuple(map(_key, await self._listener.list(caller))))

    async def remove(self, caller: Caller, key: str) -> types.SshKeyInfo:
        return _key(await self._listener.remove(caller, key))


class PsOperations:
    def __init__(
        self,
        spaces: Spaces,
        views: SpaceViews,
        runs: Runs,
        ports: Ports,
        sessions: SshSessions,
        of_spaces: SpaceOperations,
        of_runs: RunOperations,
        services: SpaceServices,
    ) -> None:
        self._services = services
        self._spaces = spaces
        self._views = views
        self._runs = runs
        self._ports = ports
        self._sessions = sessions
        self._of_spaces = of_spaces
        self._of_runs = of_runs

    async def show(self, caller: Caller, space: str) -> types.PsInfo:
        return await self._info(caller, await self._spaces.existing(caller, space))

    async def list(self, caller: Caller) -> types.PsList:
        """Of every space that is ready or running."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def look(space: Space) -> types.PsInfo | None:
            async with gate:
                try:
                    return await self._info(caller, space)
                except CarrelError:
                    # It was stopped or removed meanwhile.
                    return None

        live = await self._of_spaces.live(caller)
        found = await asyncio.gather(*(look(space) for space in live))
        return types.PsList(spaces=tuple(one for one in found if one is not None))

    async def _info(self, caller: Caller, space: Space) -> types.PsInfo:
        alive = [one for one in self._runs.alive() if one.space_id == space.space_id]
        runs = [one for one in alive if not one.entry]
        live = space.state in LIVE
        usage = await self._of_spaces.used(caller, space) if live else None
        listening = await self._ports.look(space)
        return types.PsInfo(
            space=await self._views.one(caller, space),
            runs=tuple(self._of_runs.info(caller, one) for one in runs),
            listening=_ports(listening),
            caution=listening.caution,
            forwards=forwards_of(self._ports, space),
            ssh=tuple(map(_session, self._sessions.of(space.space_id))),
            services=services_of(self._services, space),
            usage=usage,
        )


def forwards_of(ports: Ports, space: Space) -> tuple[types.ForwardInfo, ...]:
    return tuple(_forward(*one) for one in ports.forwards(space.space_id))


def services_of(services: SpaceServices, space: Space) -> tuple[types.ServiceInfo, ...]:
    return tuple(map(_service, services.of(space)))


def _service(one: ServiceStatus) -> types.ServiceInfo:
    return types.ServiceInfo(**{**shared(one, types.ServiceInfo), "run": one.run_id})


def _ports(found: Listening) -> tuple[types.SpacePort, ...]:
    return tuple(types.SpacePort(**shared(one, types.SpacePort)) for one in found.ports)


def _session(one: SshSession) -> types.SshSessionInfo:
    return types.SshSessionInfo(
        session=one.run_id,
        place=str(one.place),
        conversation=one.conversation,
        client=one.client,
        begun_at=moment(one.begun_at),
        key=one.key,
        origin=one.origin,
    )


def _listener(one: SshListening) -> types.SshListenerInfo:
    return types.SshListenerInfo(**shared(one, types.SshListenerInfo))


def _scope(text: str) -> Scope:
    kind, _, value = text.partition(":")
    return Scope(ScopeKind(kind), value)


def _key(one: SshKeyRecord) -> types.SshKeyInfo:
    return types.SshKeyInfo(
        id=one.key_id,
        name=one.name,
        kind=one.kind,
        fingerprint=one.fingerprint,
        scopes=tuple(map(str, one.scopes)),
        created_at=moment(one.created_at),
    )


def _forward(one: Forward, connections: int = 0, problem: str = "") -> types.ForwardInfo:
    return types.ForwardInfo(
        space=one.space_id,
        port=one.port,
        local=one.local,
        created_at=moment(one.created_at),
        connections=connections,
        problem=problem,
    )
