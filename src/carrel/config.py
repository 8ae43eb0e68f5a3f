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

from carrel.domain.errors import INVALID, CarrelError

_NOT_NEGATIVE = (
    *("idle_s", "keep_s", "trash_bytes", "trash_s", "bases_bytes", "bases_s"),
    "output_bytes",
    *("hub_messages", "hub_bytes", "hub_seconds", "restart_s"),
    *("instance_memory_bytes", "instances_starting"),
)
_AT_LEAST_ONE = (
    *("hub_clients", "hub_clients_in_space", "hub_questions", "hub_rate"),
    *("instances_max", "instances_per_caller", "tcp_connections"),
)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_DISK = re.compile(r"none|(?P<share>[1-9][0-9]?)%|(?P<size>[1-9][0-9]{0,11})(?P<unit>[KMGT]?)")
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
LEAST_DISK = 64 << 20
"""On a disk that is almost full, a share would be too little for any command."""
SYSTEM_DATA = Path("/var/lib/carrel")
SYSTEM_CONFIG = Path("/etc/carrel/config.toml")


class SettingsInvalid(CarrelError):
    code = "settings_invalid"
    kind = INVALID


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent of your own that speaks ACP: `[agents.NAME]`."""

    command: tuple[str, ...]
    """The command that starts it: a program, by its path or on the daemon's PATH, and its
    arguments."""
    provider: Literal["anthropic", "openai", "any"] = "any"
    """Whose conversations it can resume."""
    credentials: dict[str, str] = {}
    """The keys of `carrel auth` that it gets: the name of each key, and the variable for it."""
    binds: tuple[Path, ...] = ()
    """Absolute paths that its sandbox shows read-only, beside the program itself."""
    network: bool = True
    """Whether it needs the network, for a model's API."""
    env: dict[str, str] = {}
    """Variables that it always gets. Do not put keys here: use `credentials`."""


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call that a server answers only when it is ready for work."""

    name: str
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """The tool's arguments."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of MCP server: `[servers.NAME]`. For a built-in server, fields that are left out keep
    their built-in values. Commands, values and texts may have these placeholders: `{project}`,
    `{state}`, `{host}`, `{port}`, `{port_file}`, `{fd}`."""

    command: tuple[str, ...] | UnsetType = UNSET
    """The command that starts it: a program, by its path or on the daemon's PATH, and its
    arguments."""
    transport: Literal["streamable-http", "sse", "stdio"] | UnsetType = UNSET
    """The transport that it speaks; `stdio`: only on its standard streams."""
    port_by: Literal["socket", "file", "process", "log", "reserved"] | UnsetType = UNSET
    """How Carrel learns its port. `socket`: Carrel gives it a socket (`{fd}`). `file`: it writes
    the port to a file (`{port_file}`). `process`: from the sockets of its processes. `log`: from a
    line of its output. `reserved`: Carrel chooses the port (`{port}`)."""
    port_line: str | UnsetType = UNSET
    """For `log`: a regular expression whose first group is the port."""
    path: str | UnsetType = UNSET
    """The path of its address."""
    wrap: Literal["", "uvicorn", "stdio"] | UnsetType = UNSET
    """A small program of Carrel in front of it, which requires a token from its clients: `uvicorn`
    for a Python program that serves with uvicorn, `stdio` for one on its standard streams."""
    stdio: tuple[str, ...] | UnsetType = UNSET
    """The command with which it speaks on its standard streams; empty: it cannot."""
    env: dict[str, str] | UnsetType = UNSET
    """Variables that it always gets, beside the built-in ones."""
    ready_s: float | UnsetType = UNSET
    """How many seconds it may take to answer after its start."""
    tool_ready: ToolSettings | UnsetType = UNSET
    """A tool call; the server counts as ready when it has answered it."""
    takes_token: str | UnsetType = UNSET
    """The variable in which it takes a token that its clients must show; empty: it cannot."""
    network: Literal["none", "open"] | UnsetType = UNSET
    """What it can reach: only itself (`none`), or everything that the host reaches (`open`)."""
    binds: tuple[Path, ...] | UnsetType = UNSET
    """Absolute paths that its sandbox shows read-only, beside the program itself."""
    files: dict[str, str] | UnsetType = UNSET
    """Texts that Carrel writes below `{state}` before it starts, beside the built-in ones."""
    copies: dict[str, str] | UnsetType = UNSET
    """Parts of the project that it gets as a copy: the path in the project, and the path of the
    copy below `{state}`."""
    preload: tuple[str, ...] | UnsetType = UNSET
    """Modules that a warm process imports before an instance is asked for."""
    warm: int | UnsetType = UNSET
    """How many instances are started in advance."""
    install: str | UnsetType = UNSET
    """The command that installs it, shown when it is missing."""

    def said(self) -> dict[str, object]:
        """The fields that were set, and no others."""
        return dict(msgspec.to_builtins(self, enc_hook=str))


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: Path
    """The folder for bases, trees, homes and records. An absolute path, best on a local disk:
    copies are instant only within one file system."""
    idle_s: float = 0.0
    """A space without a setting of its own is stopped after so many seconds without a command; 0:
    never."""
    keep_s: float = 0.0
    """A stopped space without a setting of its own is removed after so many seconds; 0: never. A
    space with changes that were not copied out stays."""
    trash_bytes: int = 1 << 30
    """How many bytes of the changes of removed spaces are kept in all."""
    trash_s: float = 7 * 86400.0
    """How many seconds the changes of removed spaces are kept."""
    bases_bytes: int = 0
    """Unused bases are removed, oldest first, when they take more bytes than this; 0: no limit. A
    base is removed anyway if there is a newer one of the same project."""
    bases_s: float = 7 * 86400.0
    """An unused base is removed so many seconds after a space was last made from it; 0: never."""
    space_disk: str = "50%"
    """How much a space without a disk limit may write: a share of the room that is free when it is
    made, a size such as "10G", or "none"."""
    output_bytes: int = 16 << 20
    """How many bytes of each stream of a command are kept, counted from its end."""
    durable: bool = False
    """Whether every record is on the disk before it is acknowledged. It then survives a loss of
    power too, but writing is slower. Otherwise it survives every end of the daemon."""
    hub_sync: Literal["disk", "process"] = "disk"
    """When a message on the hub counts as kept. `disk`: when it is on the disk, and survives a loss
    of power. `process`: when it survives every end of the daemon, which is faster."""
    hub_messages: int = 10_000
    """How many messages are kept for each space; 0: no limit."""
    hub_bytes: int = 100 << 20
    """How many bytes of messages are kept for each space; 0: no limit."""
    hub_seconds: float = 86_400.0
    """How many seconds messages are kept; 0: no limit."""
    hub_clients: int = 1000
    """How many clients may be connected to the hub at the same time, beside as many of the daemon's
    own user. One token may have a quarter of them."""
    hub_clients_in_space: int = 32
    """How many clients may be connected to the hub from inside one space."""
    hub_questions: int = 100
    """How many questions of one space may wait for a person."""
    hub_rate: float = 5000.0
    """How many messages a second one client may send for long; it may send twice as many at
    once."""
    restart_s: float = 1.0
    """An agent that failed in a terminal is started again after 2, 4, 8 and 16 times so many
    seconds."""
    webhook: str = ""
    """An address (http or https) that gets agents' questions and notifications as JSON; empty:
    none."""
    desktop: bool = True
    """Whether they are also shown on the desktop of the daemon's user, if there is one."""
    agents: dict[str, AgentSettings] = {}
    """Agents beside the built-in ones, by name."""
    servers: dict[str, ServerSettings] = {}
    """MCP servers beside the built-in ones, or instead of them, by name."""
    instances_max: int = 128
    """How many MCP servers may run at the same time."""
    instances_per_caller: int = 64
    """How many MCP servers one caller may run at the same time."""
    instance_memory_bytes: int = 0
    """An instance without a setting of its own is stopped when it takes more memory; 0: no
    limit."""
    instances_starting: int = 0
    """How many instances are started at the same time, while others wait; 0: one for each core."""
    requests_at_once: int = 0
    """How many requests run at the same time; 0: two for each core."""
    requests_waiting: int = 1000
    """How many requests may wait; further ones are refused."""
    request_agent: str = "scripted"
    """The agent of a request that names none."""
    request_tier: str = "default"
    """The tier of limits for a request that names none."""
    request_s: float = 1800.0
    """How many seconds the agent of a request may take if the request does not say."""
    request_given_up_s: float = 600.0
    """How many seconds a request goes on, and its result is kept, while no client is connected for
    it."""
    requests_remembered: int = 1000
    """How many ended requests are remembered of which only the outcome is left."""
    request_webhook_hosts: tuple[str, ...] = ()
    """Hosts to which callers without full rights may have results sent."""
    project_roots: tuple[Path, ...] = ()
    """Folders below which callers with a token for a label may take projects."""
    clone_hosts: tuple[str, ...] = ()
    """Hosts on this machine or in a private network from which callers with a token for a label may
    clone. They may always clone from public hosts."""
    listen: str = ""
    """HOST:PORT to listen on beside the Unix socket; empty: none."""
    tcp_connections: int = 2048
    """How many TCP connections may be open at the same time: at most an eighth of them without a
    token yet, and a quarter of one caller. The Unix socket does not count."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names under which TCP clients may call the daemon, beside those of the loopback."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the daemon."""

    def disk_for(self, free: int) -> int:
        """How much a space without a disk limit may write if `free` bytes are free; 0: no limit."""
        found = _DISK.fullmatch(self.space_disk)
        if found is not None and found["share"]:
            return max(LEAST_DISK, free * int(found["share"]) // 100)
        if found is not None and found["size"]:
            return int(found["size"]) << _SHIFTS[found["unit"]]
        return 0


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
            raise SettingsInvalid(f"{name} cannot be less than 0.", hint="Use 0 or more.")
    if not _DISK.fullmatch(settings.space_disk):
        raise SettingsInvalid(
            f"space_disk cannot be {settings.space_disk[:80]!r}.",
            hint='Use a share such as "50%", a size such as "10G", or "none".',
        )
    if settings.webhook and not settings.webhook.startswith(("http://", "https://")):
        raise SettingsInvalid(
            "The webhook is not a web address.", hint="Begin it with https:// or http://."
        )
    for name, agent in settings.agents.items():
        _check_agent(name, agent)
    for name, server in settings.servers.items():
        _check_server(name, server)
    for name in _AT_LEAST_ONE:
        if getattr(settings, name) < 1:
            raise SettingsInvalid(
                f"{name} cannot be less than 1.", hint="Use 1 or more, or leave it out."
            )
    return settings


def _check_agent(name: str, agent: AgentSettings) -> None:
    if not _NAME.fullmatch(name):
        raise SettingsInvalid(
            f"{name[:80]!r} cannot be an agent's name.",
            hint="Use lower-case letters, digits and dashes.",
        )
    if not agent.command or not agent.command[0]:
        raise SettingsInvalid(
            f"The agent {name} has no command.", hint="Set `command` to its program and arguments."
        )
    if not all(path.is_absolute() for path in agent.binds):
        raise SettingsInvalid(
            f"The paths in `binds` of the agent {name} must be absolute.",
            hint="Begin each path with /.",
        )


def _check_server(name: str, server: ServerSettings) -> None:
    """Checks the name and the paths; the rest needs the built-in servers."""
    if not _NAME.fullmatch(name):
        raise SettingsInvalid(
            f"{name[:80]!r} cannot be a server's name.",
            hint="Use lower-case letters, digits and dashes.",
        )
    if server.binds is not UNSET and not all(path.is_absolute() for path in server.binds):
        raise SettingsInvalid(
            f"The paths in `binds` of the server {name} must be absolute.",
            hint="Begin each path with /.",
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
            raise SettingsInvalid(
                f"The settings file {path} does not exist.",
                hint="Create it, or unset CARREL_CONFIG.",
            ) from None
        return {}
    except (OSError, ValueError) as error:
        raise SettingsInvalid(
            f"The settings file {path} cannot be read: {error}.",
            hint="Correct the file: it must be valid TOML that this user may read.",
        ) from error


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
            hint="Set CARREL_DATA to a folder that this user may write.",
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
