"""A person's own set-up of an agent, as it was imported: a snapshot that the daemon keeps.

It has no way to renew a login. Services give a new refresh token with each renewal and refuse the
old one, so a copy that is renewed in one place logs the person out in all others. Only what the
agent shows to the service is taken, with the time until which that is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

LOGINS: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("claude-code", "agent-sdk", "claude-agent-acp"),
    "codex-cli": ("codex-cli",),
}
"""Whose set-up can be imported, and which frontends are given its login."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("CLAUDE.md", "skills", "commands", "agents", "output-styles"),
    "codex-cli": ("AGENTS.md", "prompts", "skills", "agents"),
}
"""Files, and folders of files, that are copied from the agent's own folder."""

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("model", "outputStyle", "language", "alwaysThinkingEnabled", "effortLevel"),
    "codex-cli": (
        *("model", "model_reasoning_effort", "model_reasoning_summary", "model_verbosity"),
        "personality",
    ),
}
"""Settings that run nothing, and lead nowhere."""

MOST_FILES = 500
MOST_BYTES = 2 << 20
"""Of all files together: they are written into the agent's folder before every turn."""
MOST_FILE = 256 << 10
MOST_DEPTH = 8
MOST_SERVERS = 64

SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
OWN_SERVER = "carrel"
"""The space's own."""


def login_key(frontend: str) -> str:
    """How a turn's record names an imported login that it was given; no stored key has such a
    name."""
    return f"login:{frontend}"


def server_keys(frontend: str) -> str:
    """The same for imported keys of MCP servers."""
    return f"servers:{frontend}"


@dataclass(frozen=True)
class Login:
    """`value` is what the service is shown: a key or a token. `auth` is the agent's own file with
    it, for one that takes it in no other way."""

    credential: str
    """The stored key that it stands in for: `anthropic`, `openai`."""
    value: str
    auth: str = ""
    expires_at: float | None = None


@dataclass(frozen=True)
class ImportedServer:
    """An MCP server of the person's: a command, or an address. Values that look like keys are not
    in it: `variables` and `secret_headers` name the variables that hold them."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    url: str = ""
    sse: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict)
    bearer: str = ""
    """The variable of a bearer token."""

    def named(self) -> tuple[str, ...]:
        """All variables that it takes."""
        own = (self.bearer,) if self.bearer else ()
        return (*self.variables, *self.secret_headers.values(), *own)


@dataclass(frozen=True)
class Imported:
    """`files` are by their path in the agent's own folder. `keys` are the values of variables that
    the servers name; only those that the person asked to have copied."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    servers: Mapping[str, ImportedServer] = field(default_factory=dict)
    settings: Mapping[str, str | bool] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    login: Login | None = None
    endpoints: tuple[str, ...] = ()
    """Where the login may go besides its provider's own address."""
    at: float = 0.0


class ImportStore(Protocol):
    """Snapshots by frontend. Blocking, quick."""

    def names(self) -> Sequence[str]: ...

    def given(self, frontend: str) -> Imported | None: ...

    def login_for(self, frontend: str) -> tuple[str, Imported] | None:
        """The import whose login this frontend is given, and the name of it."""
        ...

    def set(self, frontend: str, imported: Imported) -> None: ...

    def remove(self, frontend: str) -> bool:
        """Whether there was one."""
        ...
