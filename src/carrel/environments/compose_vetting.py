"""What one service of a compose file asks for, as far as a space gives it.

What reaches outside of the space is dropped, each with its reason, and so is what is not supported.
A service without an image, or with a name that cannot be one, is refused.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from carrel.domain.environments import Build
from carrel.domain.services import (
    LEAST_INTERVAL_S,
    Condition,
    Dependency,
    HealthCheck,
    MountKind,
    RestartPolicy,
    ServiceMount,
    ServiceSpec,
)
from carrel.environments.files import MalformedFile, ProjectReader
from carrel.environments.yaml_files import variables_in

_LIMITS = "limits are those of the space as a whole"
_NETWORK = "a space has one network of its own, which its services share"
_HOST = "it would be the host's"
_PRIVILEGE = "a service has no privileges outside of its space"
_DEVICES = "a space has no devices of the host"
_DROPPED: Mapping[str, str] = {
    **dict.fromkeys(("privileged", "cap_add", "security_opt", "use_api_socket"), _PRIVILEGE),
    **dict.fromkeys(("devices", "device_cgroup_rules", "gpus"), _DEVICES),
    **dict.fromkeys(("pid", "ipc", "userns_mode", "uts", "cgroup", "cgroup_parent"), _HOST),
    **dict.fromkeys(("dns", "dns_search", "dns_opt", "extra_hosts", "mac_address"), _NETWORK),
    **dict.fromkeys(("external_links", "domainname"), _NETWORK),
    **dict.fromkeys(("deploy", "mem_limit", "memswap_limit", "mem_reservation", "cpus"), _LIMITS),
    **dict.fromkeys(("cpu_shares", "cpu_quota", "cpu_period", "cpuset", "cpu_count"), _LIMITS),
    **dict.fromkeys(("pids_limit", "ulimits", "shm_size", "oom_kill_disable"), _LIMITS),
    **dict.fromkeys(("blkio_config", "storage_opt", "oom_score_adj", "mem_swappiness"), _LIMITS),
    "sysctls": "the kernel's settings are the host's",
    "volumes_from": "a service sees no other service's files; name a volume in both",
    "runtime": "the space has one",
    "read_only": "the system of a service is the space's own, and can be written",
}
_OWN = frozenset(
    {"image", "build", "entrypoint", "command", "environment", "env_file", "user", "working_dir"}
    | {"volumes", "tmpfs", "secrets", "configs", "depends_on", "healthcheck", "restart", "expose"}
    | {"ports", "hostname", "networks", "links", "container_name", "network_mode", "profiles"}
    | {"stop_signal", "stop_grace_period", "extends"}
)
_WITHOUT_EFFECT = frozenset(
    {"labels", "annotations", "attach", "logging", "platform", "pull_policy", "init", "tty"}
    | {"stdin_open", "cap_drop", "develop", "label_file", "pull_refresh_after"}
)
"""A space has it by itself, or nothing is there that would hear of it."""
SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
TAKEN = frozenset({"dev", "agent"})
"""The sandboxes that every space may have."""
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<unit>us|ms|s|m|h|d)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_SECONDS = 3600.0
MOST_GRACE_S = 60.0
"""A person waits for it."""
MOST_WORDS = 1000
MOST_TEXT = 32 << 10
MOST_ENVIRONMENT = 128 << 10
"""Names and values of a service together: they are in the record of its space, and the kernel takes
two megabytes with a command."""
_KEPT_OUT = ("/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""Carrel's own in every sandbox."""

Drop = Callable[[str, str], None]


@dataclass(frozen=True)
class ComposeScope:
    """What is around a service."""

    reader: ProjectReader
    folder: str
    """Relative to which its paths are."""
    variables: Mapping[str, str]
    services: frozenset[str]
    drop: Drop
    volumes: Mapping[str, object]
    secrets: Mapping[str, object]
    configs: Mapping[str, object]

    def inside(self, path: str) -> str:
        """A path of the file as one of the project; empty: it leads out."""
        if "\0" in path or path.startswith(("/", "~")):
            return ""
        clean = posixpath.normpath(posixpath.join(self.folder, path))
        return "" if clean.startswith(("/", "../")) or clean == ".." else clean

    def is_there(self, path: str) -> bool:
        """A file or a folder of the project."""
        above, name = posixpath.split(path)
        there = path == "." or name in self.reader.listing(above or ".").folders
        return there or self.reader.exists(path)


class ServiceVetting:
    def __init__(self, stack: ComposeScope, name: str, fields: Mapping[str, object]) -> None:
        if not SERVICE.fullmatch(name):
            raise MalformedFile(f"{name[:80]!r} cannot be the name of a service.")
        self._stack = stack
        self._name = name
        self._fields = fields

    def spec(self) -> ServiceSpec:
        self._keys()
        build = self._build()
        command, entrypoint = self._words("command"), self._words("entrypoint")
        restart, restarts = self._restart()
        return ServiceSpec(
            name=self._name,
            image="" if build is not None else self._text("image"),
            build=build,
            entrypoint=entrypoint,
            command=command,
            environment=self._environment(),
            user=self._text("user"),
            folder=self._folder(),
            mounts=tuple(self._mounts()),
            depends_on=tuple(self._depends_on()),
            health=self._health(),
            own_health="healthcheck" in self._fields,
            restart=restart,
            restarts=restarts,
            ports=tuple(self._ports()),
            names=tuple(self._names()),
            stop_signal=self._signal(),
            stop_grace_s=min(self._seconds("stop_grace_period", 10.0), MOST_GRACE_S),
        )

    def _drop(self, what: str, why: str) -> None:
        self._stack.drop(f"{self._name}: {what}", why)

    def _keys(self) -> None:
        for key, value in self._fields.items():
            if key in _DROPPED and value not in (None, False, [], {}):
                self._drop(key, _DROPPED[key])
            elif key not in {*_OWN, *_WITHOUT_EFFECT, *_DROPPED} and not key.startswith("x-"):
                self._drop(key, "it is not supported")
        mode = self._fields.get("network_mode")
        if mode is not None and not str(mode).startswith(("bridge", "default", "service:")):
            self._drop(f"network_mode: {mode}", _NETWORK)
        if self._fields.get("scale") not in (None, 1):
            self._drop("scale", "each service runs once")

    # Texts and lists

    def _text(self, key: str) -> str:
        value = self._fields.get(key)
        if value is None:
            return ""
        text = _plain(value)
        if text is None or "\0" in text or len(text) > MOST_TEXT:
            self._drop(key, "it is no text")
            return ""
        return text

    def _words(self, key: str) -> tuple[str, ...] | None:
        value = self._fields.get(key)
        return None if value is None else self._argv(key, value)

    def _argv(self, key: str, value: object) -> tuple[str, ...] | None:
        if isinstance(value, str):
            try:
                words: list[str] = shlex.split(value)
            except ValueError:
                raise MalformedFile(f"{self._name}: {key} has a quote without an end.") from None
        elif isinstance(value, list):
            words = [text for one in value if (text := _plain(one)) is not None]
        else:
            words = [] if (text := _plain(value)) is None else [text]
        if len(words) > MOST_WORDS or any("\0" in one or len(one) > MOST_TEXT for one in words):
            raise MalformedFile(f"{self._name}: {key} is longer than a command can be.")
        return tuple(words)

    def _items(self, key: str) -> list[object]:
        value = self._fields.get(key)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def _seconds(self, key: str, otherwise: float) -> float:
        return self._duration(key, self._fields.get(key), otherwise)

    def _duration(self, key: str, value: object, otherwise: float) -> float:
        if value is None:
            return otherwise
        if isinstance(value, int | float) and not isinstance(value, bool):
            return min(max(float(value), 0.0), MOST_SECONDS)
        seconds = duration(value) if isinstance(value, str) else None
        if seconds is None:
            self._drop(f"{key}: {str(value)[:40]}", "it is no time such as 1m30s")
            return otherwise
        return min(seconds, MOST_SECONDS)

    # What it is made of

    def _build(self) -> Build | None:
        value = self._fields.get("build")
        if value is None:
            return None
        asked = {"context": value} if isinstance(value, str) else value
        if not isinstance(asked, dict):
            raise MalformedFile(f"{self._name}: build is no folder and no mapping.")
        known = {"context", "dockerfile", "target", "args"}
        for key in asked:
            if key not in known:
                self._drop(f"build.{key}", "it is not supported")
        context = self._stack.inside(str(asked.get("context") or "."))
        name = str(asked.get("dockerfile") or "Dockerfile")
        beside = posixpath.normpath(posixpath.join(context, name))
        if not context or beside.startswith(("/", "../")) or "\0" in beside:
            raise MalformedFile(f"{self._name}: build leads out of the project.")
        args = dict(_pairs(asked.get("args"), self._stack.variables))
        target = _plain(asked.get("target")) or ""
        return Build(beside, context, target, {key: one for key, one in args.items() if one})

    def _environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in self._items("env_file"):
            asked = one if isinstance(one, dict) else {"path": one}
            path = self._stack.inside(str(asked.get("path") or ""))
            text = self._stack.reader.text(path) if path else None
            if text is not None:
                found |= variables_in(text)
            elif asked.get("required", True):
                why = "it is not there" if path else "it leads out of the project"
                self._drop(f"env_file: {str(asked.get('path'))[:80]}", why)
        for name, value in _pairs(self._fields.get("environment"), self._stack.variables):
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
        kept = {}
        for name, text in found.items():
            if _NAME.fullmatch(name) and "\0" not in text and len(text) <= MOST_TEXT:
                kept[name] = text
            else:
                self._drop(f"environment: {name[:80]}", "it cannot be set")
        if sum(len(name) + len(text) for name, text in kept.items()) > MOST_ENVIRONMENT:
            raise MalformedFile(f"{self._name}: its environment is longer than a command can have.")
        return kept

    def _folder(self) -> str:
        folder = self._text("working_dir")
        if folder and not folder.startswith("/"):
            self._drop("working_dir", "it is no absolute path")
            return ""
        return posixpath.normpath(folder) if folder else ""

    # What it sees

    def _mounts(self) -> Iterator[ServiceMount]:
        found: dict[str, ServiceMount] = {}
        for one in (*self._volumes(), *self._memory(), *self._files("secrets", "/run/secrets")):
            self._put(found, one)
        for one in self._files("configs", ""):
            self._put(found, one)
        targets = sorted(found, key=len)
        for index, target in enumerate(targets):
            around = next((one for one in targets[:index] if _is_below(target, one)), "")
            if around:
                self._drop(f"volumes: {target}", f"{around} around it is shown as a whole")
            else:
                yield found[target]

    def _put(self, found: dict[str, ServiceMount], mount: ServiceMount) -> None:
        # A path that begins with two slashes is left so by `normpath`.
        target = f"/{mount.target.lstrip('/')}" if mount.target.startswith("/") else mount.target
        mount = replace(mount, target=target)
        if not target.startswith("/") or target == "/" or len(target) > 1024 or "\0" in target:
            self._drop(f"volumes: {target[:80]}", "it is no place in the service")
        elif any(_is_below(target, one) or _is_below(one, target) for one in _KEPT_OUT):
            self._drop(f"volumes: {target}", "that is Carrel's own in every sandbox")
        elif mount.kind is MountKind.TREE and _is_below("/workspace", target):
            self._drop(f"volumes: {target}", "the space's files are at /workspace")
        else:
            found[target] = mount

    def _volumes(self) -> Iterator[ServiceMount]:
        for one in self._items("volumes"):
            asked = _long_volume(one)
            if asked is None:
                self._drop(f"volumes: {str(one)[:80]}", "it is no volume")
                continue
            target = posixpath.normpath(_plain(asked.get("target")) or "")
            source = _plain(asked.get("source")) or ""
            read_only = asked.get("read_only") is True
            if asked.get("type") == "tmpfs":
                yield ServiceMount(MountKind.MEMORY, target)
            elif asked.get("type") == "bind":
                path = self._stack.inside(source)
                if not path:
                    self._drop(f"volumes: {source[:80]}", "a space sees nothing of the host")
                elif self._stack.is_there(path):
                    yield ServiceMount(MountKind.TREE, target, path, read_only)
                else:
                    # Engines make the folder; it is for what the service itself writes.
                    yield from self._volume("", target, read_only)
            elif asked.get("type") in (None, "volume"):
                yield from self._volume(source, target, read_only)
            else:
                self._drop(f"volumes: {str(asked.get('type'))[:40]}", "it is not supported")

    def _volume(self, source: str, target: str, read_only: bool) -> Iterator[ServiceMount]:
        if not source:
            mark = hashlib.blake2b(target.encode("utf-8", "replace"), digest_size=4).hexdigest()
            yield ServiceMount(MountKind.VOLUME, target, f"{self._name}-{mark}", read_only)
            return
        if not _VOLUME.fullmatch(source):
            self._drop(f"volumes: {source[:80]}", "it cannot be the name of a volume")
            return
        options = self._stack.volumes.get(source)
        for key in options if isinstance(options, dict) else ():
            if key not in ("name", "labels") and not str(key).startswith("x-"):
                self._drop(
                    f"the volume {source}: {key}", "it is a folder of the space, at first empty"
                )
        yield ServiceMount(MountKind.VOLUME, target, source, read_only)

    def _memory(self) -> Iterator[ServiceMount]:
        for one in self._items("tmpfs"):
            target = (_plain(one) or "").partition(":")[0]
            yield ServiceMount(MountKind.MEMORY, posixpath.normpath(target) if target else "")

    def _files(self, key: str, above: str) -> Iterator[ServiceMount]:
        """Secrets and configurations that are files of the project."""
        known = self._stack.secrets if key == "secrets" else self._stack.configs
        for one in self._items(key):
            asked = one if isinstance(one, dict) else {"source": one}
            name = _plain(asked.get("source")) or ""
            described = known.get(name)
            path = described.get("file") if isinstance(described, dict) else None
            source = self._stack.inside(path) if isinstance(path, str) and path else ""
            if not source:
                self._drop(f"{key}: {name[:80]}", "it is no file of the project")
                continue
            target = _plain(asked.get("target")) or name
            whole = posixpath.normpath(posixpath.join("/", above, target))
            yield ServiceMount(MountKind.TREE, whole, source, read_only=True)

    # How it runs

    def _depends_on(self) -> Iterator[Dependency]:
        value = self._fields.get("depends_on")
        asked = (
            value if isinstance(value, dict) else dict.fromkeys(map(str, self._items("depends_on")))
        )
        for name, how in asked.items():
            if name not in self._stack.services or name == self._name:
                self._drop(f"depends_on: {name[:80]}", "there is no such service")
                continue
            word = how.get("condition") if isinstance(how, dict) else None
            try:
                yield Dependency(name, Condition(word or Condition.STARTED))
            except ValueError:
                self._drop(f"depends_on: {str(word)[:80]}", "it is no condition")
                yield Dependency(name)

    def _health(self) -> HealthCheck | None:
        value = self._fields.get("healthcheck")
        if not isinstance(value, dict):
            if value is not None:
                self._drop("healthcheck", "it is no mapping")
            return None
        test = value.get("test")
        if value.get("disable") is True or test in (None, [], ["NONE"], "NONE"):
            return None
        argv = self._test(test)
        if not argv:
            self._drop("healthcheck.test", "it begins neither with CMD nor with CMD-SHELL")
            return None
        retries = value.get("retries")
        usable = isinstance(retries, int) and not isinstance(retries, bool)

        def seconds(key: str, otherwise: float) -> float:
            return self._duration(f"healthcheck.{key}", value.get(key), otherwise)

        return HealthCheck(
            argv,
            max(seconds("interval", 30.0), LEAST_INTERVAL_S) if seconds("interval", 30.0) else 30.0,
            max(seconds("timeout", 30.0), 0.1) if seconds("timeout", 30.0) else 30.0,
            min(max(retries, 1), 1000) if isinstance(retries, int) and usable else 3,
            seconds("start_period", 0.0),
        )

    def _test(self, test: object) -> tuple[str, ...]:
        if isinstance(test, str):
            return ("/bin/sh", "-c", test)
        words = self._argv("healthcheck.test", test) or ()
        if words[:1] == ("CMD",):
            return words[1:]
        if words[:1] == ("CMD-SHELL",) and len(words) > 1:
            return ("/bin/sh", "-c", words[1])
        return ()

    def _restart(self) -> tuple[RestartPolicy, int]:
        value = self._fields.get("restart")
        if value is None or isinstance(value, bool):
            return RestartPolicy.NO, 0
        word, _, count = str(value).partition(":")
        try:
            most = int(count) if count.isascii() and count.isdigit() and len(count) < 9 else 0
            return RestartPolicy(word), most
        except ValueError:
            self._drop(f"restart: {str(value)[:40]}", "it is not supported")
            return RestartPolicy.NO, 0

    def _ports(self) -> Iterator[int]:
        seen = set()
        for one in (*self._items("expose"), *self._items("ports")):
            port = _port(one)
            if port is None:
                self._drop(f"ports: {str(one)[:40]}", "it is no port")
            elif port not in seen:
                seen.add(port)
                yield port

    def _names(self) -> Iterator[str]:
        wanted = [self._text("hostname"), self._text("container_name")]
        networks = self._fields.get("networks")
        for one in networks.values() if isinstance(networks, dict) else ():
            if isinstance(one, dict) and isinstance(one.get("aliases"), list):
                wanted += [str(alias) for alias in one["aliases"]]
        wanted += [str(one).partition(":")[2] for one in self._items("links")]
        for name in dict.fromkeys(filter(None, wanted)):
            if _HOSTNAME.fullmatch(name) and name != "localhost":
                yield name
            else:
                self._drop(f"hostname: {name[:80]}", "it cannot be a name in a network")

    def _signal(self) -> str:
        word = self._text("stop_signal")
        found = signal_number(word)
        if word and found is None:
            self._drop(f"stop_signal: {word[:40]}", "there is no such signal")
            return ""
        return "" if found is None else signal.Signals(found).name


def signal_number(word: str) -> int | None:
    """Of `SIGINT`, `int` or `2`; None: there is none."""
    word = word.upper()
    try:
        if word.isascii() and word.isdigit() and len(word) < 4:
            return int(signal.Signals(int(word)))
        return int(signal.Signals[word if word.startswith("SIG") else f"SIG{word}"])
    except (KeyError, ValueError):
        return None


def duration(text: str) -> float | None:
    """Of `1m30s` in seconds; None: it is none."""
    total, at = 0.0, 0
    for match in _DURATION.finditer(text):
        if match.start() != at:
            return None
        total += float(match["number"]) * _SECONDS[match["unit"]]
        at = match.end()
    return total if at == len(text) and at else None


def _plain(value: object) -> str | None:
    """A scalar as it is written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _pairs(value: object, variables: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Names and values, of a mapping or of a list; without a value, it is that of a variable."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield name, variables.get(name) if one is None else _plain(one)
    for one in value if isinstance(value, list) else ():
        name, equals, text = (_plain(one) or "").partition("=")
        yield name, text if equals else variables.get(name)


def _long_volume(value: object) -> dict[str, object] | None:
    """The short form as the long one."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or not value:
        return None
    parts = value.split(":")
    if len(parts) == 1:
        return {"type": "volume", "target": value}
    source, target = parts[0], parts[1]
    options = ",".join(parts[2:]).split(",")
    kind = "bind" if source.startswith(("/", ".", "~")) or "/" in source else "volume"
    return {"type": kind, "source": source, "target": target, "read_only": "ro" in options}


def _is_below(path: str, folder: str) -> bool:
    """Also the folder itself."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _port(value: object) -> int | None:
    """The service's own, of `8080:80/tcp` as of `{target: 80}`."""
    if isinstance(value, dict):
        value = value.get("target")
    text = (_plain(value) or "").rpartition(":")[2].partition("/")[0].partition("-")[0]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return number if 0 < number < 65_536 else None
