"""Settings: parsed once, at the program's entry, then passed on and never changed."""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from carrel.domain.errors import CarrelError

_NOT_NEGATIVE = (
    *("idle_s", "keep_s", "trash_bytes", "trash_s", "bases_bytes", "output_bytes"),
    *("hub_messages", "hub_bytes", "hub_seconds", "restart_s"),
    *("instance_memory_bytes", "instances_starting"),
)
_AT_LEAST_ONE = ("hub_clients", "hub_rate", "instances_max", "instances_per_caller")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
SYSTEM_DATA = Path("/var/lib/carrel")
SYSTEM_CONFIG = Path("/etc/carrel/config.toml")


class SettingsInvalid(CarrelError):
    code = "settings_invalid"


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent of one's own that speaks ACP: `[agents.NAME]`."""

    command: tuple[str, ...]
    """How it is started: a program, by its path or on the daemon's PATH, and its words."""
    provider: Literal["anthropic", "openai", "any"] = "any"
    """Whose conversations it goes on with."""
    credentials: dict[str, str] = {}
    """Keys of `carrel auth` that it is given: the name of each, and the variable for it."""
    binds: tuple[Path, ...] = ()
    """What its sandbox must show beside the program: absolute paths, read-only."""
    network: bool = True
    """It must reach a model's API."""
    env: dict[str, str] = {}
    """Variables that it always has; no keys, for this file is not theirs."""


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a server answers only when it is ready for work."""

    name: str
    """Of the tool."""
    arguments: dict[str, Any] = {}
    """What it is given."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of MCP server: `[servers.NAME]`. Of one that is built in, what is not said stays as
    it is. Commands, values and texts have places: `{project}`, `{state}`, `{host}`, `{port}`,
    `{port_file}`, `{fd}`."""

    command: tuple[str, ...] | UnsetType = UNSET
    """How it is started: a program, by its path or on the daemon's PATH, and its words."""
    transport: Literal["streamable-http", "sse", "stdio"] | UnsetType = UNSET
    """What it speaks; `stdio`: on its standard streams only."""
    port_by: Literal["socket", "file", "process", "log", "reserved"] | UnsetType = UNSET
    """How its port is learned: it is given a socket (`{fd}`), it writes it (`{port_file}`), by
    what its processes listen on, by a line of its output, or it is told one (`{port}`)."""
    port_line: str | UnsetType = UNSET
    """For `log`: a regular expression whose first group is the port."""
    path: str | UnsetType = UNSET
    """Of its address."""
    wrap: Literal["", "uvicorn", "stdio"] | UnsetType = UNSET
    """A small program of ours before it, so that its clients need a token: `uvicorn` for a
    Python program that serves with that, `stdio` for one on its standard streams."""
    stdio: tuple[str, ...] | UnsetType = UNSET
    """The command with which it speaks on its standard streams; empty: it cannot."""
    env: dict[str, str] | UnsetType = UNSET
    """Variables that it always has, beside those that are built in."""
    ready_s: float | UnsetType = UNSET
    """So long it may take to answer."""
    tool_ready: ToolSettings | UnsetType = UNSET
    """It counts as ready when it has answered this."""
    takes_token: str | UnsetType = UNSET
    """The variable by which it takes a token that its clients must show; empty: it cannot."""
    network: Literal["none", "open"] | UnsetType = UNSET
    """What it may reach: nothing but itself, or what the host does."""
    binds: tuple[Path, ...] | UnsetType = UNSET
    """What its sandbox must show beside the program: absolute paths, read-only."""
    files: dict[str, str] | UnsetType = UNSET
    """Texts that are below `{state}` before it starts, beside those that are built in."""
    copies: dict[str, str] | UnsetType = UNSET
    """What of the project it works on a copy of: where it is, and where below `{state}` that
    is put."""
    preload: tuple[str, ...] | UnsetType = UNSET
    """Modules that a warm process has imported when an instance is asked for."""
    warm: int | UnsetType = UNSET
    """How many ready ones are kept."""
    install: str | UnsetType = UNSET
    """The command that installs it, for who is told that it is missing."""

    def said(self) -> dict[str, object]:
        """What is written there, and nothing else."""
        return dict(msgspec.to_builtins(self, enc_hook=str))


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: Path
    """Where bases, trees, homes and records are kept. Absolute. Wants to be on a local
    disk: copies are instant only within one file system."""
    idle_s: float = 0.0
    """Spaces that say nothing themselves are stopped after so long without a command; 0:
    never."""
    keep_s: float = 0.0
    """… and removed so long after they were stopped; 0: never. One with changes that nobody
    took out stays."""
    trash_bytes: int = 1 << 30
    """How much is kept of the changes of removed spaces, in all."""
    trash_s: float = 7 * 86400.0
    """… and for how long."""
    bases_bytes: int = 0
    """Unused bases are removed beyond so much, oldest first; 0: only those of which there is
    a newer one of the same project."""
    output_bytes: int = 16 << 20
    """How much of each stream of a command is kept; the last of it."""
    durable: bool = False
    """Every record is on the disk before it is acknowledged, so that it also outlives a loss
    of power; slower. Without, it outlives every end of the daemon."""
    hub_sync: Literal["disk", "process"] = "disk"
    """When a message on the hub counts as kept: when it is on the disk, so that it outlives a
    loss of power, or when it outlives every end of the daemon; faster."""
    hub_messages: int = 10_000
    """So many messages are kept of each space; 0: no bound."""
    hub_bytes: int = 100 << 20
    """… and so many bytes."""
    hub_seconds: float = 86_400.0
    """… and for so long."""
    hub_clients: int = 1000
    """Who may be connected to the hub at the same time."""
    hub_rate: float = 5000.0
    """Messages a second that one client may send for long, and twice as many at once."""
    restart_s: float = 1.0
    """An agent in a terminal that failed is started again after so many seconds times 2, 4, 8
    and 16."""
    webhook: str = ""
    """An address (http or https) to which questions of agents, and what they want to tell a
    person, are sent as JSON; empty: none."""
    desktop: bool = True
    """They are shown on the desktop of the daemon's user too, where there is one."""
    agents: dict[str, AgentSettings] = {}
    """Agents beside those that are built in, by name."""
    servers: dict[str, ServerSettings] = {}
    """MCP servers beside those that are built in, or instead of them, by name."""
    instances_max: int = 128
    """So many MCP servers may run at the same time."""
    instances_per_caller: int = 64
    """… and so many of one caller."""
    instance_memory_bytes: int = 0
    """One that says nothing itself is stopped when it takes more memory; 0: no bound."""
    instances_starting: int = 0
    """So many are started at the same time, and others wait; 0: as many as there are cores."""
    requests_at_once: int = 0
    """So many requests are worked on at the same time; 0: twice as many as there are cores."""
    requests_waiting: int = 1000
    """… and so many may wait; others are refused."""
    request_agent: str = "scripted"
    """The agent of a request that names none."""
    request_tier: str = "default"
    """The limits of a request's workspace that says nothing itself."""
    request_s: float = 1800.0
    """So long the agent of a request may take that says nothing itself."""
    request_given_up_s: float = 600.0
    """So long a request goes on, and its result waits, when nobody is connected for it."""
    requests_remembered: int = 1000
    """So many requests are remembered of which nothing but the outcome is left."""
    request_webhook_hosts: tuple[str, ...] = ()
    """Hosts to which callers without full rights may have results sent."""
    project_roots: tuple[Path, ...] = ()
    """Folders below which callers with a token for a label may take projects."""
    listen: str = ""
    """HOST:PORT to answer on beside the Unix socket; empty: none."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which TCP clients may call the daemon, beside those of the loopback."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the daemon."""


def parse_settings(values: Mapping[str, object]) -> Settings:
    """Raises `SettingsInvalid` for an unknown key, a missing one or a wrong value."""
    try:
        settings = msgspec.convert(dict(values), Settings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsInvalid(
            f"The settings cannot be used: {error}.",
            hint="The known keys are: " + ", ".join(Settings.__struct_fields__) + ".",
        ) from error
    if not settings.data.is_absolute():
        raise SettingsInvalid(
            f"The data folder must be an absolute path, not {str(settings.data)!r}.",
            hint="Write it from the root, such as /srv/carrel.",
        )
    for name in _NOT_NEGATIVE:
        if getattr(settings, name) < 0:
            raise SettingsInvalid(f"{name} cannot be less than 0.", hint="0 means: never.")
    if settings.webhook and not settings.webhook.startswith(("http://", "https://")):
        raise SettingsInvalid(
            "The webhook is no address of a web server.", hint="It begins with https://."
        )
    for name, agent in settings.agents.items():
        _check_agent(name, agent)
    for name, server in settings.servers.items():
        _check_server(name, server)
    for name in _AT_LEAST_ONE:
        if getattr(settings, name) < 1:
            raise SettingsInvalid(f"{name} cannot be less than 1.", hint="Leave it out.")
    return settings


def _check_agent(name: str, agent: AgentSettings) -> None:
    if not _NAME.fullmatch(name):
        raise SettingsInvalid(
            f"{name[:80]!r} cannot be an agent's name.", hint="Lower-case letters, digits, dashes."
        )
    if not agent.command or not agent.command[0]:
        raise SettingsInvalid(f"The agent {name} has no command.", hint="Say how it is started.")
    if not all(path.is_absolute() for path in agent.binds):
        raise SettingsInvalid(
            f"What the agent {name} must see is said by absolute paths.", hint="Write / first."
        )


def _check_server(name: str, server: ServerSettings) -> None:
    """The rest is known to who knows those that are built in."""
    if not _NAME.fullmatch(name):
        raise SettingsInvalid(
            f"{name[:80]!r} cannot be a server's name.", hint="Lower-case letters, digits, dashes."
        )
    if server.binds is not UNSET and not all(path.is_absolute() for path in server.binds):
        raise SettingsInvalid(
            f"What the server {name} must see is said by absolute paths.", hint="Write / first."
        )


def load_settings(env: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process: from its environment, a file, else the usual places."""
    env = os.environ if env is None else env
    values = _from_file(env)
    if env.get("CARREL_DATA"):
        values["data"] = env["CARREL_DATA"]
    if not values.get("data"):
        values["data"] = default_data(env)
    return parse_settings(values)


def config_file(env: Mapping[str, str]) -> Path | None:
    """The one file that is read, if it is there; None for a user without a home."""
    if named := env.get("CARREL_CONFIG"):
        return Path(named)
    if os.geteuid() == 0:
        return SYSTEM_CONFIG
    shared = Path(env.get("XDG_CONFIG_HOME", ""))
    if shared.is_absolute():
        return shared / "carrel" / "config.toml"
    home = _home(env)
    return None if home is None else home / ".config" / "carrel" / "config.toml"


def _from_file(env: Mapping[str, str]) -> dict[str, object]:
    path = config_file(env)
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        if env.get("CARREL_CONFIG"):
            raise SettingsInvalid(f"{path} is not there.", hint="CARREL_CONFIG names it.") from None
        return {}
    except (OSError, ValueError) as error:
        raise SettingsInvalid(f"{path} cannot be read: {error}.", hint="Mend the file.") from error


def default_data(env: Mapping[str, str]) -> Path:
    """The machine's folder for root, the person's own for everybody else."""
    if os.geteuid() == 0:
        return SYSTEM_DATA
    shared = Path(env.get("XDG_DATA_HOME", ""))
    # The XDG specification has relative paths ignored.
    if shared.is_absolute():
        return shared / "carrel"
    home = _home(env)
    if home is None:
        raise SettingsInvalid(
            "There is no data folder: this user has no home.",
            hint="Set CARREL_DATA to a folder that it may write.",
        )
    return home / ".local" / "share" / "carrel"


def _home(env: Mapping[str, str]) -> Path | None:
    if home := env.get("HOME"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None


def _decode(kind: type, value: object) -> object:
    if kind is not Path or not isinstance(value, str | Path) or "\0" in str(value):
        raise ValueError(f"{value!r} is not a path")
    return Path(value)
