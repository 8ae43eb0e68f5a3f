"""The second rule: a devcontainer.json names the image, its additions and what to run.

Many of its values may be written in several ways. Each function `as_…` takes the value as it was
parsed, or None when the key is missing, and drops what is malformed with a complaint.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import TypeVar

from carrel.domain.environments import (
    Build,
    Compose,
    Feature,
    Image,
    Match,
    Port,
    Rule,
    SetupCommand,
    SetupStage,
    Variable,
)
from carrel.environments.dockerfile import (
    ContainerFound,
    DockerfileReading,
    parse_ports,
    read_dockerfile,
)
from carrel.environments.files import MalformedFile, ProjectReader, dig, join

Complain = Callable[[str], None]

OWN_HOSTS = ("", "localhost", "127.0.0.1", "0.0.0.0")
_ENGINES_OWN = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"})
"""Arguments that engines know without being told, and leave out when they look whether a step has
been done before. What a step has fetched by one project's proxy would be in others' images."""


def is_engines_own(argument: str) -> bool:
    """An argument that a build takes from its owner alone."""
    name = argument.partition("=")[0]
    return name.lower() in _ENGINES_OWN or name.upper().startswith("BUILDKIT_")


def as_strings(value: object, complain: Complain) -> list[str]:
    """A string or a list of strings."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in values if isinstance(text, str) and text]
    if len(texts) < len(values):
        complain("what is not a string was left out.")
    return texts


def as_commands(value: object, complain: Complain) -> list[tuple[str, tuple[str, ...]]]:
    """A line for the shell, an argument list, or an object of several, which have names."""
    several = value if isinstance(value, dict) else {"": value}
    commands = []
    for name, written in several.items():
        try:
            argv = _argv(written)
        except MalformedFile as error:
            complain(f"{name}: {error.message}" if name else error.message)
            continue
        if argv:
            commands.append((str(name), argv))
    return commands


def _argv(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        argv: tuple[str, ...] = ("/bin/sh", "-c", value) if value.strip() else ()
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        argv = tuple(value)
    else:
        raise MalformedFile("it is neither a string nor a list of strings.")
    if any("\0" in word for word in argv):
        raise MalformedFile("it has a zero byte in it.")
    return argv


def as_ports(value: object, complain: Complain) -> list[tuple[int, str]]:
    """Numbers, `"host:port"`, and of `appPort` also `"outer:inner"`; with the service that
    another port belongs to."""
    ports = []
    for written in value if isinstance(value, list) else [] if value is None else [value]:
        try:
            ports += _port(written)
        except MalformedFile as error:
            complain(error.message)
    return ports


def _port(value: object) -> list[tuple[int, str]]:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise MalformedFile("a port is a number or a string.")
    host, _, port = str(value).rpartition(":")
    service = "" if host in OWN_HOSTS or host.rpartition(":")[2].isdigit() else host
    return [(number, service) for number, _ in parse_ports(port)]


def as_variables(value: object, complain: Complain) -> list[tuple[str, str | None]]:
    """Names with strings, or None for one that is to be unset."""
    if value is None:
        return []
    if not isinstance(value, dict):
        complain("it is not an object.")
        return []
    variables: list[tuple[str, str | None]] = []
    for name, text in value.items():
        if not name or "=" in name or "\0" in name:
            complain(f"{name!r} cannot be the name of a variable.")
        elif text is not None and (not isinstance(text, str) or "\0" in text):
            complain(f"{name} is not a string that can be set.")
        else:
            variables.append((name, text))
    return variables


FOLDER = ".devcontainer"
FILE = "devcontainer.json"
MAX_FOLDERS = 32
_STAGES = {
    "onCreateCommand": SetupStage.CREATE,
    "updateContentCommand": SetupStage.CREATE,
    "postCreateCommand": SetupStage.CREATE,
    "postStartCommand": SetupStage.START,
    "postAttachCommand": SetupStage.ATTACH,
}

T = TypeVar("T")


def find_devcontainers(reader: ProjectReader) -> list[ContainerFound]:
    """Those that can be used, in order."""
    found = (read_devcontainer(reader, path) for path in devcontainer_places(reader))
    return [one for one in found if one is not None]


def read_devcontainer(reader: ProjectReader, path: str) -> ContainerFound | None:
    """None when it is not there or malformed; then a note says why."""
    config = devcontainer_config(reader, path)
    return None if config is None else _Devcontainer(reader, path, config).found()


def devcontainer_config(reader: ProjectReader, path: str) -> dict[str, object] | None:
    return reader.json(path, comments=True) if reader.exists(path) else None


def devcontainer_places(reader: ProjectReader) -> Iterator[str]:
    yield join(FOLDER, FILE)
    yield f".{FILE}"
    folders = reader.listing(FOLDER).folders
    if len(folders) > MAX_FOLDERS:
        reader.note(FOLDER, f"It has more than {MAX_FOLDERS} folders; some were not looked at.")
    for name in folders[:MAX_FOLDERS]:
        yield f"{FOLDER}/{name}/{FILE}"


class _Devcontainer:
    """One file, read key by key; what is wrong with one does not spoil the others."""

    def __init__(self, reader: ProjectReader, path: str, config: dict[str, object]) -> None:
        self._reader = reader
        self._path = path
        self._config = config
        self._docker: DockerfileReading | None = None

    def found(self) -> ContainerFound:
        image = self._image()
        why = f"{self._path} describes a development container"
        why += f": {image.why}" if image else "."
        return ContainerFound(
            Match(Rule.DEVCONTAINER, self._path, why),
            image,
            self._setup(),
            self._ports(),
            self._variables(),
        )

    def _image(self) -> Image | None:
        source = self._compose() or self._build() or self._pull()
        if source is None:
            self._note("It names no image, no Dockerfile and no compose file.")
            return None
        docker = self._docker
        return Image(
            source.reference,
            source.build,
            source.compose,
            self._features(),
            self._string("remoteUser") or self._string("containerUser") or source.user,
            self._string("workspaceFolder") or (docker.folder if docker else ""),
            source.why,
        )

    def _compose(self) -> Image | None:
        files = self._taken("dockerComposeFile", as_strings)
        service = self._string("service")
        if not files:
            return None
        paths = tuple(filter(None, (self._beside(name) for name in files)))
        if not service:
            self._note("It has a dockerComposeFile, but names no service.")
        why = f"the service {service} of {', '.join(paths)}."
        started = self._taken("runServices", as_strings)
        return Image(compose=Compose(paths, service, tuple(started)), why=why)

    def _build(self) -> Image | None:
        name = self._string("build", "dockerfile") or self._string("dockerFile")
        path = self._beside(name) if name else ""
        if not path:
            return None
        context = self._string("build", "context") or self._string("context") or "."
        args = self._arguments()
        build = Build(path, self._beside(context) or ".", self._string("build", "target"), args)
        if not self._reader.exists(path):
            self._note(f"Its Dockerfile {path} is not there.")
        self._docker = read_dockerfile(self._reader, path, target=build.target, args=args)
        docker = self._docker
        why = f"it is built by {path}"
        why += f", on {docker.base}." if docker and docker.base else "."
        return Image(
            docker.base if docker else "", build, user=docker.user if docker else "", why=why
        )

    def _pull(self) -> Image | None:
        reference = self._string("image")
        return Image(reference, why=f"its image is {reference}.") if reference else None

    def _features(self) -> tuple[Feature, ...]:
        features = []
        asked = self._config.get("features")
        if asked is not None and not isinstance(asked, dict):
            self._note("features is not an object.")
        for reference, options in asked.items() if isinstance(asked, dict) else ():
            if isinstance(options, str):
                options = {"version": options}
            if not isinstance(options, dict):
                self._note(f"The options of the feature {reference} are not an object.")
                options = {}
            kept = {k: v for k, v in options.items() if isinstance(v, str | bool)}
            if len(kept) < len(options):
                self._note(f"Options of the feature {reference} are no strings or booleans.")
            features.append(Feature(reference, kept))
        return tuple(features)

    def _setup(self) -> tuple[SetupCommand, ...]:
        if self._config.get("initializeCommand"):
            self._note("Its initializeCommand would run on the host, and is left out.")
        setup = []
        for key, stage in _STAGES.items():
            for name, argv in self._taken(key, as_commands):
                setup.append(SetupCommand(argv, self._path, stage, name, step=key))
        return tuple(setup)

    def _ports(self) -> tuple[Port, ...]:
        exposed = self._docker.ports if self._docker else ()
        ports = {("", port.number, port.protocol): port for port in exposed}
        for key in ("appPort", "forwardPorts"):
            for number, service in self._taken(key, as_ports):
                label = self._string("portsAttributes", str(number), "label")
                port = Port(number, self._path, label=label, service=service)
                ports[service, number, port.protocol] = port
        return tuple(ports.values())

    def _variables(self) -> tuple[Variable, ...]:
        variables = {one.name: one for one in (self._docker.variables if self._docker else ())}
        for key in ("containerEnv", "remoteEnv"):
            for name, value in self._taken(key, as_variables):
                if value is None:
                    variables.pop(name, None)
                    continue
                # What `${localEnv:…}` asks for is the person's own, and not given away.
                resolved = "${" not in value
                variables[name] = Variable(name, value, self._path, resolved=resolved)
        return tuple(variables.values())

    def _taken(self, key: str, take: Callable[[object, Complain], list[T]]) -> list[T]:
        return take(self._config.get(key), lambda message: self._note(f"{key}: {message}"))

    def _string(self, *keys: str) -> str:
        value = dig(self._config, *keys)
        if value is None or isinstance(value, str):
            return value or ""
        self._note(f"{'.'.join(keys)} is not a string.")
        return ""

    def _arguments(self) -> dict[str, str]:
        value = dig(self._config, "build", "args")
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._note("build.args is not an object.")
            return {}
        given = {name: text for name, text in value.items() if isinstance(text, str)}
        if len(given) < len(value):
            self._note("Some of build.args are not strings.")
        return {name: text for name, text in given.items() if not is_engines_own(name)}

    def _beside(self, name: str) -> str:
        """A path in the file is relative to its folder; empty when it leads out."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self._path), name))
        if path.startswith(("/", "../")) or path == "..":
            self._note(f"{name!r} leads out of the project.")
            return ""
        return path

    def _note(self, message: str) -> None:
        self._reader.note(self._path, message)
