"""The environment of an agent: a dictionary for its process, never this process's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from carrel.domain.agents import Seat, SeatServer, TurnRequest

KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
"""Where programs look for a credential, by its name in `carrel auth`."""


OAUTH = "CLAUDE_CODE_OAUTH_TOKEN"
OAUTH_PREFIX = "sk-ant-oat"
"""Of a subscription's token, which Claude's programs take by another variable than a key."""


def credentials_of(seat: Seat) -> dict[str, str]:
    """By variable. A name without an entry above is itself the variable's."""
    return {_variable(name, value): value for name, value in seat.credentials.items()}


def with_values(seat: Seat) -> Seat:
    """A seat that came in a file or a line has names of variables only; this process has what
    they are."""
    return replace(seat, mcp_env=_values(seat.mcp_env), server_env=_values(seat.server_env))


def _values(named: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in named}


def headers_for(server: SeatServer, seat: Seat) -> dict[str, str]:
    """What is sent to it with every request."""
    token = seat.server_env.get(server.token, "") if server.token else ""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _variable(name: str, value: str) -> str:
    if name == "anthropic" and value.startswith(OAUTH_PREFIX):
        return OAUTH
    return KEYS.get(name, name)


def environment(
    request: TurnRequest, seat: Seat, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What the turn says wins over credentials, and both over what is inherited."""
    return {**os.environ, **(more or {}), **credentials_of(seat), **request.env}
