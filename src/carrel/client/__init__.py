"""The client: what programs and the `carrel` command use to talk to the daemon.

Importing this costs nothing; the names below are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.client.aio import AsyncClient as AsyncClient
    from carrel.client.aio_generating import AsyncRequestStream as AsyncRequestStream
    from carrel.client.aio_instances import AsyncInstance as AsyncInstance
    from carrel.client.aio_spaces import AsyncRunHandle as AsyncRunHandle
    from carrel.client.aio_spaces import AsyncSpace as AsyncSpace
    from carrel.client.generating import RequestStream as RequestStream
    from carrel.client.hub_aio import AsyncHub as AsyncHub
    from carrel.client.hub_messages import HubMessage as HubMessage
    from carrel.client.hub_sync import Hub as Hub
    from carrel.client.instances import Instance as Instance
    from carrel.client.results import CommandFailed as CommandFailed
    from carrel.client.results import RunResult as RunResult
    from carrel.client.spaces import RunHandle as RunHandle
    from carrel.client.spaces import Space as Space
    from carrel.client.sync import Client as Client

_PLACES = {
    "AsyncClient": "carrel.client.aio",
    "AsyncHub": "carrel.client.hub_aio",
    "AsyncInstance": "carrel.client.aio_instances",
    "AsyncRequestStream": "carrel.client.aio_generating",
    "AsyncRunHandle": "carrel.client.aio_spaces",
    "AsyncSpace": "carrel.client.aio_spaces",
    "Client": "carrel.client.sync",
    "CommandFailed": "carrel.client.results",
    "Hub": "carrel.client.hub_sync",
    "HubMessage": "carrel.client.hub_messages",
    "Instance": "carrel.client.instances",
    "RequestStream": "carrel.client.generating",
    "RunHandle": "carrel.client.spaces",
    "RunResult": "carrel.client.results",
    "Space": "carrel.client.spaces",
}


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
