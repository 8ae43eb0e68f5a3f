"""Carrel: a private, sandboxed workspace for every coding-agent session."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.agents.library import Library as Library
    from carrel.agents.library import TurnOutcome as TurnOutcome
    from carrel.client import AsyncClient as AsyncClient
    from carrel.client import AsyncHub as AsyncHub
    from carrel.client import Client as Client
    from carrel.client import CommandFailed as CommandFailed
    from carrel.client import Hub as Hub
    from carrel.client import HubMessage as HubMessage
    from carrel.client import OutputLost as OutputLost
    from carrel.client.library import open_library as open_library
    from carrel.domain import errors as errors
    from carrel.domain.invocations import Invocation as Invocation
    from carrel.domain.invocations import InvocationSpec as InvocationSpec
    from carrel.domain.invocations import IoMode as IoMode
    from carrel.domain.limits import Limits as Limits
    from carrel.domain.spaces import Retention as Retention
    from carrel.domain.turns import AgentEvent as AgentEvent
    from carrel.domain.turns import AgentSetup as AgentSetup
    from carrel.domain.turns import Attachment as Attachment
    from carrel.domain.turns import Continuation as Continuation
    from carrel.domain.turns import InteractionMode as InteractionMode
    from carrel.domain.turns import Permission as Permission
    from carrel.domain.turns import TurnRequest as TurnRequest

_PLACES = {
    "AgentEvent": "carrel.domain.turns",
    "AgentSetup": "carrel.domain.turns",
    "AsyncClient": "carrel.client.aio",
    "AsyncHub": "carrel.client.aio_hub",
    "Attachment": "carrel.domain.agents",
    "Client": "carrel.client.sync",
    "CommandFailed": "carrel.client.models",
    "Continuation": "carrel.domain.turns",
    "Hub": "carrel.client.hub",
    "HubMessage": "carrel.client.hub_protocol",
    "InteractionMode": "carrel.domain.turns",
    "Invocation": "carrel.domain.invocations",
    "InvocationSpec": "carrel.domain.invocations",
    "IoMode": "carrel.domain.invocations",
    "Library": "carrel.agents.library",
    "Limits": "carrel.domain.limits",
    "OutputLost": "carrel.client.models",
    "Permission": "carrel.domain.turns",
    "Retention": "carrel.domain.spaces",
    "TurnOutcome": "carrel.agents.library",
    "TurnRequest": "carrel.domain.turns",
    "errors": "",
    "open_library": "carrel.client.library",
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
