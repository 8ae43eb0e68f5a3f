"""Services of spaces, as the contract has them."""

from __future__ import annotations

from carrel.api.types import ports as types
from carrel.api.types.common import shared
from carrel.domain.access import Caller
from carrel.domain.services import ServiceStatus
from carrel.domain.spaces import Space
from carrel.service.services import SpaceServices
from carrel.service.spaces import Spaces


class ServiceOperations:
    def __init__(self, spaces: Spaces, services: SpaceServices) -> None:
        self._spaces = spaces
        self._services = services

    async def list(self, caller: Caller, space: str) -> types.ServiceList:
        found = await self._spaces.existing(caller, space)
        return types.ServiceList(space=found.space_id, services=services_of(self._services, found))

    async def restart(self, caller: Caller, space: str, service: str) -> types.ServiceInfo:
        found = await self._spaces.existing(caller, space)
        return _info(await self._services.restart(found, service))


def services_of(services: SpaceServices, space: Space) -> tuple[types.ServiceInfo, ...]:
    return tuple(map(_info, services.of(space)))


def _info(one: ServiceStatus) -> types.ServiceInfo:
    return types.ServiceInfo(**{**shared(one, types.ServiceInfo), "run": one.run_id})
