"""Carrel: a private, sandboxed workspace for every coding-agent session."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.client import AsyncClient as AsyncClient
    from carrel.client import AsyncHub as AsyncHub
    from carrel.client import Client as Client
    from carrel.client import CommandFailed as CommandFailed
    from carrel.client import Hub as Hub
    from carrel.client import HubMessage as HubMessage
    from carrel.domain import errors as errors
    from carrel.domain.limits import Limits as Limits
    from carrel.domain.spaces import Retention as Retention
    from carrel.domain.turns import Attachment as Attachment

_PLACES = {
    "AsyncClient": "carrel.client.aio",
    "AsyncHub": "carrel.client.aio_hub",
    "Attachment": "carrel.domain.agents",
    "Client": "carrel.client.sync",
    "CommandFailed": "carrel.client.models",
    "Hub": "carrel.client.hub",
    "HubMessage": "carrel.client.hub_protocol",
    "Limits": "carrel.domain.limits",
    "Retention": "carrel.domain.spaces",
    "errors": "",
}
"""What programs use, loaded when it is first asked for: the package itself costs nothing."""


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if not place:
        return import_module(f"carrel.domain.{name}")
    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
