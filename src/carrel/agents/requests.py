"""What a turn's request and setup mean for a program: checks, prompt, images, environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from carrel.agents import models
from carrel.domain.errors import ContinuationNotFound, ProviderMismatch, ResolveFailed
from carrel.domain.keys import VARIABLES
from carrel.domain.turns import AgentServer, AgentSetup, Provider, TurnRequest


def check(request: TurnRequest, frontend: str, provider: Provider) -> None:
    """Raises `ResolveFailed`, `ModelNotSupported`, `ProviderMismatch`."""
    if request.kits:
        raise ResolveFailed("Kits are not supported yet.", kits=list(request.kits))
    models.check(request.model, frontend, request.env)
    asked = request.continuation
    if asked is not None and asked.provider != provider:
        raise ProviderMismatch(
            f"This conversation belongs to {asked.provider}; {frontend} can resume only those of "
            f"{provider}."
        )


def asked_key(request: TurnRequest) -> str:
    return request.continuation.key if request.continuation else ""


def asked_uuid(request: TurnRequest) -> str:
    """The conversation to go on with; empty for a new one. Raises `ContinuationNotFound` for
    what is no UUID: programs take that for a title, or begin a new conversation."""
    from uuid import UUID  # Drivers that never ask for one start without it.

    key = asked_key(request)
    if request.continuation is None:
        return ""
    try:
        same = str(UUID(key)) == key.lower()
    except ValueError:
        same = False
    if not same:
        raise ContinuationNotFound(f"There is no conversation {key!r}.", asked=key)
    return key


def has_context(setup: AgentSetup) -> bool:
    """Whether there are documents to read. A folder that only the sandbox shows is believed
    to have some."""
    if not setup.context:
        return False
    try:
        with os.scandir(setup.context) as found:
            return any(True for _ in found)
    except FileNotFoundError:
        return setup.confined
    except OSError:
        return False


def readable(setup: AgentSetup) -> list[str]:
    """Folders beside its workspace that an agent may read."""
    return [*([setup.context] if has_context(setup) else []), *setup.also_read]


def images(request: TurnRequest) -> list[str]:
    """Of what goes with the prompt, where the pictures are."""
    return [one.path for one in request.attachments if one.media_type.startswith("image/")]


def prompt(request: TurnRequest, setup: AgentSetup) -> str:
    """What the user says, and where to find what goes with it."""
    parts = [request.prompt]
    if request.attachments:
        named = "\n".join(f"- {attachment.path}" for attachment in request.attachments)
        parts.append(f"Files that go with this:\n{named}")
    if setup.untrusted:
        # An agent that does not read a project's settings does not read these by itself either.
        parts.append("The project's own instructions are in CLAUDE.md or AGENTS.md, if at all.")
    if has_context(setup):
        parts.append(f"Instructions and documents for this work are in {setup.context}")
    return "\n\n".join(parts)


# The agent's environment: a dictionary for its process, never this process's own

OAUTH = "CLAUDE_CODE_OAUTH_TOKEN"
OAUTH_PREFIX = "sk-ant-oat"
"""Begins a subscription's token, as `claude setup-token` gives it, which Claude's programs take by
another variable than a key."""


def credentials_of(setup: AgentSetup) -> dict[str, str]:
    """By variable. A name that is not known is itself the variable's."""
    return {_variable(name, value): value for name, value in setup.credentials.items()}


def with_values(setup: AgentSetup) -> AgentSetup:
    """A setup that came in a file or a line has names of variables only; this process has what
    they are."""
    return replace(setup, mcp_env=_values(setup.mcp_env), server_env=_values(setup.server_env))


def _values(named: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in named}


def headers_for(server: AgentServer, setup: AgentSetup) -> dict[str, str]:
    """What is sent to it with every request."""
    token = setup.server_env.get(server.token, "") if server.token else ""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _variable(name: str, value: str) -> str:
    if name == "anthropic" and value.startswith(OAUTH_PREFIX):
        return OAUTH
    return VARIABLES.get(name, (name,))[0]


def environment(
    request: TurnRequest, setup: AgentSetup, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What the turn says wins over credentials, and both over what is inherited."""
    return {**os.environ, **(more or {}), **credentials_of(setup), **request.env}
