"""The client: what programs and the `carrel` command use to talk to the daemon.

Importing this costs nothing; the names below are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.client.aio import AsyncClient as AsyncClient
    from carrel.client.aio_hub import AsyncHub as AsyncHub
    from carrel.client.aio_instances import AsyncInstance as AsyncInstance
    from carrel.client.aio_requests import AsyncRequestStream as AsyncRequestStream
    from carrel.client.aio_spaces import AsyncRunHandle as AsyncRunHandle
    from carrel.client.aio_spaces import AsyncSpace as AsyncSpace
    from carrel.client.hub import Hub as Hub
    from carrel.client.hub_protocol import HubMessage as HubMessage
    from carrel.client.instances import Instance as Instance
    from carrel.client.models import CommandFailed as CommandFailed
    from carrel.client.models import OutputLost as OutputLost
    from carrel.client.models import RunResult as RunResult
    from carrel.client.requests import RequestStream as RequestStream
    from carrel.client.spaces import RunHandle as RunHandle
    from carrel.client.spaces import Space as Space
    from carrel.client.sync import Client as Client

_PLACES = {
    "AsyncClient": "carrel.client.aio",
    "AsyncHub": "carrel.client.aio_hub",
    "AsyncInstance": "carrel.client.aio_instances",
    "AsyncRequestStream": "carrel.client.aio_requests",
    "AsyncRunHandle": "carrel.client.aio_spaces",
    "AsyncSpace": "carrel.client.aio_spaces",
    "Client": "carrel.client.sync",
    "CommandFailed": "carrel.client.models",
    "Hub": "carrel.client.hub",
    "HubMessage": "carrel.client.hub_protocol",
    "Instance": "carrel.client.instances",
    "OutputLost": "carrel.client.models",
    "RequestStream": "carrel.client.requests",
    "RunHandle": "carrel.client.spaces",
    "RunResult": "carrel.client.models",
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
