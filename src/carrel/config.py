"""Settings: parsed once, at the program's entry, then passed on and never changed."""

from __future__ import annotations

import ast
import difflib
import itertools
import json
import os
import pwd
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from carrel.domain.agents import PREFIX, PREFIX_PATTERN
from carrel.domain.errors import INVALID, CarrelError

_NOT_NEGATIVE = (
    *("idle_s", "keep_s", "trash_bytes", "trash_s", "bases_bytes", "bases_s"),
    "images_bytes",
    *("checkpoints", "checkpoint_bytes"),
    *("output_bytes", "spaces_per_caller"),
    *("hub_messages", "hub_bytes", "hub_seconds", "restart_s"),
    *("instance_memory_bytes", "instances_starting"),
)
_AT_LEAST_ONE = (
    *("hub_clients", "hub_clients_in_space", "hub_questions", "hub_rate"),
    *("instances_max", "instances_per_caller", "tcp_connections"),
)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_DISK = re.compile(r"none|(?P<share>[1-9][0-9]?)%|(?P<size>[1-9][0-9]{0,11})(?P<unit>[KMGT]?)")
_PREFIX = re.compile(PREFIX_PATTERN)
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


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner's spaces see of this machine beside the system: `[sandbox]`."""

    home_tools: bool = True
    """Whether they see the toolchains in the home of the daemon's user: pyenv, nvm, cargo, …"""
    show: tuple[Path, ...] = ()
    """Other absolute paths that they see, read-only."""
    package_settings: bool = True
    """Whether they get the settings of pip, uv, npm, cargo and apt, the proxies and the
    certificates of the daemon's user, without credentials."""
    image: Literal["none", "auto"] = "auto"
    """What new spaces of folders run commands in, where `--image` does not say: with `auto` the
    image that the project's files describe, if it can be had; with `none` the host's toolchain."""
    caches_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 << 30
    """What packages may take on the disk that spaces of one project share with one another; 0: they
    share none."""


class InstanceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients get MCP servers of their own: `[instances]`."""

    legacy_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """A port of 127.0.0.1 with the calls `/request-session` and `/release-session` alone, which
    need no token there, for processes of the daemon's user outside of spaces; 0: none."""


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
    checkpoints: int = 50
    """How many checkpoints of a space are kept, the oldest going first; 0: none are taken by
    themselves."""
    checkpoint_bytes: int = 2 << 30
    """How many bytes the checkpoints of one space take in all, the oldest going first."""
    bases_bytes: int = 0
    """Unused bases are removed, oldest first, when they take more bytes than this; 0: no limit. A
    base is removed anyway if there is a newer one of the same project."""
    images_bytes: int = 0
    """Images that no space uses are removed, those not used for longest first, when all images take
    more bytes than this; 0: no limit."""
    bases_s: float = 7 * 86400.0
    """An unused base is removed so many seconds after a space was last made from it; 0: never."""
    space_disk: str = "50%"
    """How much a space without a disk limit may write: a share of the room that is free when it is
    made, a size such as "10G", or "none"."""
    spaces_per_caller: int = 500
    """How many spaces one token, or all tokens of one label together, may have at the same time; 0:
    no limit. The owner's own are not counted."""
    output_bytes: int = 16 << 20
    """How many bytes of each stream of a command are kept, counted from its end; up to 1 MiB more
    may be."""
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
    own user. One token, or all tokens of one label together, may have a quarter of them."""
    hub_clients_in_space: int = 32
    """How many clients may be connected to the hub from inside one space."""
    hub_questions: int = 100
    """How many questions of one space may wait for a person; and five times as many of all spaces
    of one label, or of one family, together."""
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
    sandbox: SandboxSettings = SandboxSettings()
    """What the owner's spaces see of this machine beside the system."""
    agents: dict[str, AgentSettings] = {}
    """Agents beside the built-in ones, by name."""
    servers: dict[str, ServerSettings] = {}
    """MCP servers beside the built-in ones, or instead of them, by name."""
    instances: InstanceSettings = InstanceSettings()
    """How clients get MCP servers of their own."""
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
    request_agent: str = ""
    """The agent of a request that names none; empty: the first that is installed and has a key."""
    request_tier: str = "default"
    """The tier of limits for a request that names none."""
    request_s: float = 1800.0
    """How many seconds the agent of a request may take if the request does not say."""
    request_given_up_s: float = 600.0
    """How many seconds a request goes on, and its result is kept, while no client is connected for
    it."""
    requests_remembered: int = 1000
    """How many ended requests of each caller are remembered of which only the outcome is left."""
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
    token yet, and a quarter of one token or of one label's. The Unix socket does not count."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names under which TCP clients may call the daemon, beside those of the loopback."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the daemon."""
    attach_prefix: str = PREFIX
    """The key that begins the commands of an agent's terminal when you attach to it, as tmux names
    it: such as C-a, if you sit in a tmux already. Ctrl-b works beside it."""

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
    if not all(path.is_absolute() for path in settings.sandbox.show):
        raise SettingsInvalid(
            "The paths in `show` of the sandbox must be absolute.", hint="Begin each path with /."
        )
    check_prefix(settings.attach_prefix)
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


def check_prefix(key: str) -> None:
    """Raises `SettingsInvalid` for what is not a key with Ctrl or Alt, as tmux names it."""
    if not _PREFIX.fullmatch(key):
        raise SettingsInvalid(
            f"{key[:80]!r} cannot be the prefix of a terminal.",
            hint="Use a letter with Ctrl or Alt, such as C-a or M-x, or C-Space.",
        )


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
    return found_settings(os.environ if env is None else env)[0]


Source = Literal["default", "file", "environment"]


def found_settings(env: Mapping[str, str]) -> tuple[Settings, dict[str, Source]]:
    """The settings, and where each that is no default comes from."""
    values = file_values(env)
    sources: dict[str, Source] = dict.fromkeys(values, "file")
    if env.get("CARREL_DATA"):
        values["data"] = env["CARREL_DATA"]
        sources["data"] = "environment"
    if not values.get("data"):
        values["data"] = default_data(env)
        sources.pop("data", None)
    return parse_settings(values), sources


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


def file_values(env: Mapping[str, str]) -> dict[str, object]:
    """What the settings file says; nothing where it is not there. `SettingsInvalid`."""
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


# What each setting is, from the class above


class SettingField(NamedTuple):
    name: str
    type: str
    """As TOML and people have it."""
    default: str
    """As it is written in the file; empty for one that has none."""
    sentence: str


def fields_of(kind: type[msgspec.Struct] = Settings) -> list[SettingField]:
    """In the order of the class. The sentences are the texts below the fields."""
    source = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    found = next(one for one in source.body if getattr(one, "name", "") == kind.__name__)
    body = getattr(found, "body", [])
    sentences = {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }
    return [
        SettingField(one.name, type_text(one.type), _default_text(one), sentences[one.name])
        for one in msgspec.structs.fields(kind)
    ]


def type_text(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'"{one}"' for one in get_args(kind))
    plain = [one for one in get_args(kind) if one is not UnsetType]
    if get_origin(kind) is tuple:
        return f"list of {type_text(plain[0])}s"
    if get_origin(kind) is dict:
        return "table"
    if plain:
        return type_text(plain[0])
    names = {str: "text", Path: "path", bool: "true or false", int: "whole number"}
    if kind in (ToolSettings, SandboxSettings, InstanceSettings):
        return "table"
    return {**names, float: "number"}.get(kind, "text")


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    return "" if value in (msgspec.NODEFAULT, UNSET) else toml_text(value)


def toml_text(value: object) -> str:
    """A value of a setting as the file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict):
        return "{}" if not value else "{...}"
    if isinstance(value, msgspec.Struct):
        return toml_text(msgspec.structs.asdict(value) if value != type(value)() else {})
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int):
        return str(value)
    # A text of JSON is one of TOML, but for one character.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def setting_named(key: str) -> SettingField:
    """Raises `SettingsInvalid`."""
    known = {one.name: one for one in fields_of()}
    if key not in known:
        close = difflib.get_close_matches(key, known, 1)
        hint = f"Did you mean {close[0]}?" if close else "`carrel config` lists them all."
        raise SettingsInvalid(f"There is no setting {key[:80]!r}.", hint=hint)
    return known[key]
