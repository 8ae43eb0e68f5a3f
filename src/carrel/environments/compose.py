"""Compose files: found, put together, and read into services. The files are a stranger's.

Several files are merged as compose does it, and `extends` is followed inside the project.
References to variables are replaced by those of the project's own `.env` and by those that the
space is given, never by the daemon's. What a service may have is in `compose_vetting.py`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.domain.plans import DroppedRequest
from carrel.domain.services import MOST_SERVICES, ServiceSpec
from carrel.environments.compose_vetting import ComposeScope, ServiceVetting
from carrel.environments.files import MalformedFile, ProjectReader
from carrel.environments.yaml_files import ReplacedTexts, parse_yaml, variables_in

OWN_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
_OVERRIDES = tuple(
    f"{first}compose.override.{last}" for first in ("", "docker-") for last in ("yaml", "yml")
)
MOST_FILES = 8
MOST_EXTENDS = 8
_REPLACED = frozenset({"command", "entrypoint", "test"})
"""Lists that a later file replaces, where it adds to others."""
_AS_MAPPINGS = frozenset({"environment", "labels", "depends_on", "args", "networks"})

Fields = dict[str, object]


def own_compose_files(reader: ProjectReader) -> tuple[str, ...]:
    """The project's, with the one that overrides it; empty: it has none."""
    names = reader.names(".")
    first = next((name for name in OWN_FILES if name in names), "")
    if not first:
        return ()
    return (first, *[name for name in _OVERRIDES if name in names][:1])


@dataclass(frozen=True)
class ComposeStack:
    """What the files say."""

    services: Mapping[str, ServiceSpec]
    """Those that can be asked for, in the files' order."""
    optional: frozenset[str] = frozenset()
    """That run only when somebody names them: they have profiles."""
    dropped: tuple[DroppedRequest, ...] = ()

    def chosen(self, named: tuple[str, ...] = (), without: str = "") -> tuple[ServiceSpec, ...]:
        """Those named, or all, with what they depend on, each after what it waits for; `without`
        is not among them. Raises `MalformedFile`."""
        order: dict[str, ServiceSpec] = {}
        firsts = named or tuple(name for name in self.services if name not in self.optional)
        if without:
            firsts += tuple(one.service for one in self._get(without).depends_on)
        for name in firsts:
            self._add(name, order, (), without)
        if len(order) > MOST_SERVICES:
            raise MalformedFile(f"It has more than {MOST_SERVICES} services.")
        return tuple(order.values())

    def _add(
        self, name: str, order: dict[str, ServiceSpec], above: tuple[str, ...], without: str
    ) -> None:
        if name == without or name in order:
            return
        if name in above:
            raise MalformedFile(
                f"Services wait for each other: {' → '.join((*above, name))[:200]}."
            )
        spec = self._get(name)
        for one in spec.depends_on:
            self._add(one.service, order, (*above, name), without)
        order[name] = spec

    def _get(self, name: str) -> ServiceSpec:
        if name not in self.services:
            raise MalformedFile(f"It has no service {name[:80]!r}.")
        return self.services[name]


def read_stack(
    reader: ProjectReader, paths: tuple[str, ...], given: Mapping[str, str]
) -> ComposeStack:
    """Raises `MalformedFile` for what cannot be used as a whole."""
    return _Reading(reader, paths, given).stack()


@dataclass
class _Reading:
    reader: ProjectReader
    paths: tuple[str, ...]
    given: Mapping[str, str]
    dropped: dict[DroppedRequest, None] = field(default_factory=dict)
    _loaded: dict[str, Fields] = field(default_factory=dict)
    _variables: dict[str, str] = field(default_factory=dict)
    _replaced: ReplacedTexts = field(default_factory=ReplacedTexts)

    @property
    def folder(self) -> str:
        return posixpath.dirname(self.paths[0])

    def stack(self) -> ComposeStack:
        if len(self.paths) > MOST_FILES:
            raise MalformedFile(f"There are more than {MOST_FILES} compose files.")
        text = self.reader.text(posixpath.join(self.folder, ".env"))
        self._variables = {**variables_in(text or ""), **self.given}
        whole: Fields = {}
        for path in self.paths:
            whole = _merged(whole, self._file(path))
        self._top(whole)
        services = whole.get("services")
        if not isinstance(services, dict) or not services:
            raise MalformedFile("It has no services.")
        if len(services) > 5 * MOST_SERVICES:
            raise MalformedFile(f"It has more than {5 * MOST_SERVICES} services.")
        return self._vetted(whole, services)

    def _vetted(self, whole: Fields, services: Mapping[str, object]) -> ComposeStack:
        stack = ComposeScope(
            self.reader, self.folder, self._variables, frozenset(services), self.drop,
            *(_mapping(whole.get(name)) for name in ("volumes", "secrets", "configs")),
        )  # fmt: skip
        found: dict[str, ServiceSpec] = {}
        optional = set()
        for name in services:
            fields = self._extended(self.paths[0], name, services[name], ())
            found[name] = ServiceVetting(stack, name, fields).spec()
            if fields.get("profiles"):
                optional.add(name)
        return ComposeStack(found, frozenset(optional), tuple(self.dropped))

    def drop(self, what: str, why: str) -> None:
        self.dropped.setdefault(DroppedRequest(what[:200], why))

    def _file(self, path: str) -> Fields:
        if path in self._loaded:
            return self._loaded[path]
        text = self.reader.text(path)
        if text is None:
            notes = [note.message for note in self.reader.notes if note.path == path]
            raise MalformedFile(f"{path} is not there. {' '.join(notes)}".strip())
        value = self._interpolated(parse_yaml(text), path)
        if not isinstance(value, dict):
            raise MalformedFile(f"{path} is no mapping.")
        self._loaded[path] = value
        return value

    def _interpolated(self, value: object, path: str) -> object:
        if isinstance(value, str):
            return self._replaced.of(value, self._variables, lambda name: self._unset(name, path))
        if isinstance(value, list):
            return [self._interpolated(one, path) for one in value]
        if isinstance(value, dict):
            return {key: self._interpolated(one, path) for key, one in value.items()}
        return value

    def _unset(self, name: str, path: str) -> None:
        self.drop(f"${{{name}}} of {path}", "neither .env nor the space has a value for it")

    def _top(self, whole: Fields) -> None:
        for key in whole:
            if key == "include":
                self.drop("include", "other compose files are not read; name their services here")
            elif key not in _TOP and not key.startswith("x-"):
                self.drop(key, "it is not supported")

    def _extended(self, path: str, name: str, value: object, above: tuple[str, ...]) -> Fields:
        """With what it extends."""
        fields = _mapping(value)
        asked = fields.get("extends")
        if asked is None:
            return fields
        own = {key: one for key, one in fields.items() if key != "extends"}
        wanted = {"service": asked} if isinstance(asked, str) else _mapping(asked)
        other, service = wanted.get("file", path), wanted.get("service")
        if not isinstance(other, str) or not isinstance(service, str):
            self.drop(f"{name}: extends", "it names no service")
            return own
        if "file" in wanted:
            other = posixpath.normpath(posixpath.join(posixpath.dirname(path), other))
        if other.startswith(("/", "../")) or posixpath.dirname(other) != self.folder:
            self.drop(f"{name}: extends", "it leads out of the folder with the compose file")
            return own
        key = f"{other}\0{service}"
        if key in above or len(above) >= MOST_EXTENDS:
            raise MalformedFile(f"The service {name} extends itself, or too many others.")
        services = _mapping(self._file(other).get("services"))
        if service not in services:
            raise MalformedFile(f"{other} has no service {service[:80]!r} to extend.")
        below = self._extended(other, service, services[service], (*above, key))
        # What others wait for, and when they run, is theirs.
        kept = {key: one for key, one in below.items() if key not in ("depends_on", "profiles")}
        return _merged(kept, own)


_TOP = frozenset({"services", "volumes", "secrets", "configs", "networks", "version", "name"})


def _mapping(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def _merged(first: Fields, second: Fields) -> Fields:
    """As compose merges files: mappings and lists are added to, all else is replaced."""
    found = dict(first)
    for key, value in second.items():
        before = found.get(key)
        if key in _AS_MAPPINGS:
            before, value = _as_mapping(before), _as_mapping(value)
        if isinstance(before, dict) and isinstance(value, dict):
            found[key] = _merged(before, value)
        elif isinstance(before, list) and isinstance(value, list) and key not in _REPLACED:
            found[key] = [*before, *(one for one in value if one not in before)]
        elif value is not None or before is None:
            found[key] = value
    return found


def _as_mapping(value: object) -> object:
    """Lists of names, or of names with values, as a mapping."""
    if not isinstance(value, list):
        return value
    found: Fields = {}
    for one in value:
        name, equals, text = str(one).partition("=")
        found[name] = text if equals else None
    return found
