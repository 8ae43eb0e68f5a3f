"""The first rule: a Dockerfile says what the image is built of, its variables and ports."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from carrel.domain.environments import Build, Image, Match, Port, Rule, SetupCommand, Variable
from carrel.environments.dockerfile_syntax import (
    Budget,
    Expanded,
    Instruction,
    Script,
    VariableScope,
    expand,
    parse_script,
    split_words,
)
from carrel.environments.files import BoundReached, MalformedFile, ProjectReader

MAX_RANGE = 100
"""A range is listed port by port; a wider one is a mistake, or says nothing."""
_PORT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:/([A-Za-z]+))?", re.ASCII)
_PROTOCOLS = ("tcp", "udp", "sctp")


def parse_ports(text: str) -> list[tuple[int, str]]:
    """`80`, `53/udp`, `8000-8010/tcp`. Raises `Malformed`."""
    match = _PORT.fullmatch(text)
    if not match:
        raise MalformedFile(f"{text[:80]!r} is not a port.")
    first = int(match.group(1))
    last = int(match.group(2) or first)
    protocol = (match.group(3) or "tcp").lower()
    if not 0 < first <= last < 1 << 16 or protocol not in _PROTOCOLS:
        raise MalformedFile(f"{text[:80]!r} is not a port.")
    if last - first >= MAX_RANGE:
        raise MalformedFile(f"{text!r} is a range of more than {MAX_RANGE} ports.")
    return [(number, protocol) for number in range(first, last + 1)]


@dataclass(frozen=True)
class ContainerFound:
    """`image` is None when the file names none."""

    match: Match
    image: Image | None = None
    setup: tuple[SetupCommand, ...] = ()
    ports: tuple[Port, ...] = ()
    variables: tuple[Variable, ...] = ()


NAMES = ("Dockerfile", "Containerfile")
MAX_STAGES = 100
MAX_VARIABLES = 1000
MAX_PORTS = 1000
_OTHERS = frozenset(
    {"ADD", "CMD", "COPY", "ENTRYPOINT", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "RUN"}
    | {"SHELL", "STOPSIGNAL", "VOLUME"}
)


@dataclass(frozen=True)
class DockerfileReading:
    """What a Dockerfile says of one of its stages."""

    base: str
    """The image that it stands on at last; empty when only a build knows."""
    variables: tuple[Variable, ...]
    ports: tuple[Port, ...]
    user: str
    folder: str


def find_dockerfiles(reader: ProjectReader) -> list[ContainerFound]:
    """Those at the root that can be used, in order."""
    found = (dockerfile_found(reader, name) for name in NAMES if reader.exists(name))
    return [one for one in found if one is not None]


def dockerfile_found(reader: ProjectReader, path: str) -> ContainerFound | None:
    """None when it cannot be used; a note says why."""
    reading = read_dockerfile(reader, path)
    if reading is None:
        return None
    why = f"{path} says how the image is built"
    why += f", on {reading.base}." if reading.base else "."
    image = Image(reading.base, Build(path), user=reading.user, folder=reading.folder, why=why)
    match = Match(Rule.DOCKERFILE, path, why)
    return ContainerFound(match, image, ports=reading.ports, variables=reading.variables)


def read_dockerfile(
    reader: ProjectReader, path: str, *, target: str = "", args: Mapping[str, str] | None = None
) -> DockerfileReading | None:
    """None when it cannot be used; a note says why. `args` are the build's arguments."""
    text = reader.text(path)
    if text is None:
        return None
    try:
        evaluation = _Evaluation(reader, path, parse_script(text), args or {})
        return evaluation.run(target)
    except MalformedFile as error:
        reader.note(path, f"It cannot be used. {error.message}", error.line)
        return None


@dataclass
class _BuildStage:
    name: str
    base: str
    known: dict[str, Expanded] = field(default_factory=dict)
    """Arguments and variables; of one name, the variable."""
    variables: dict[str, Variable] = field(default_factory=dict)
    ports: dict[tuple[int, str], Port] = field(default_factory=dict)
    user: str = ""
    folder: str = ""

    def inherit(self, parent: _BuildStage) -> None:
        self.base, self.user, self.folder = parent.base, parent.user, parent.folder
        self.variables, self.ports = dict(parent.variables), dict(parent.ports)
        self.known = {name: parent.known[name] for name in self.variables}

    def give_argument(self, name: str, value: Expanded) -> None:
        if name not in self.variables:
            self.known[name] = value

    def give_variable(self, variable: Variable) -> None:
        self.variables[variable.name] = variable
        self.known[variable.name] = Expanded(variable.value, variable.resolved)

    def reading(self) -> DockerfileReading:
        variables, ports = tuple(self.variables.values()), tuple(self.ports.values())
        return DockerfileReading(self.base, variables, ports, self.user, self.folder)


class _Evaluation:
    """One pass over the instructions."""

    def __init__(
        self, reader: ProjectReader, path: str, script: Script, args: Mapping[str, str]
    ) -> None:
        self._reader = reader
        self._path = path
        self._script = script
        self._given = args
        self._budget = Budget()
        self._globals: dict[str, Expanded] = {}
        self._stages: list[_BuildStage] = []
        self._set = 0
        self._handlers: dict[str, Callable[[Instruction], None]] = {
            "ARG": self._arg,
            "FROM": self._from,
            "ENV": self._env,
            "EXPOSE": self._expose,
            "USER": self._user,
            "WORKDIR": self._workdir,
        }

    def run(self, target: str) -> DockerfileReading:
        for instruction in self._script.instructions:
            try:
                self._take(instruction)
            except BoundReached:
                raise
            except MalformedFile as error:
                self._note(error.message, instruction)
        if not self._stages:
            raise MalformedFile("It has no FROM.")
        return self._chosen(target).reading()

    def _chosen(self, target: str) -> _BuildStage:
        wanted = target.lower()
        for stage in reversed(self._stages):
            if not wanted or stage.name == wanted:
                return stage
        self._reader.note(self._path, f"It has no stage {target!r}; the last one is taken.")
        return self._stages[-1]

    def _take(self, instruction: Instruction) -> None:
        keyword = instruction.keyword
        if not self._stages and keyword not in ("ARG", "FROM"):
            raise MalformedFile(f"{keyword[:40]} comes before the first FROM.")
        if keyword in self._handlers:
            self._handlers[keyword](instruction)
        elif keyword not in _OTHERS:
            raise MalformedFile(f"{keyword[:40]!r} is not an instruction.")

    def _from(self, instruction: Instruction) -> None:
        if len(self._stages) >= MAX_STAGES:
            raise BoundReached(f"It has more than {MAX_STAGES} stages.")
        words = [word for word in instruction.rest.split() if not word.startswith("--")]
        named = len(words) == 3 and words[1].upper() == "AS"
        stage = _BuildStage(words[2].lower() if named else "", "")
        parent = self._parent(words[0]) if words else None
        if parent:
            stage.inherit(parent)
        self._stages.append(stage)
        if len(words) != 1 and not named:
            raise MalformedFile("FROM takes an image, and a name after AS.")
        if not parent:
            stage.base = self._image(words[0], instruction)

    def _parent(self, name: str) -> _BuildStage | None:
        stages = (stage for stage in reversed(self._stages) if stage.name == name.lower())
        return next(stages, None)

    def _image(self, written: str, instruction: Instruction) -> str:
        result = self._expand(written, VariableScope(self._globals, closed=True))
        if result.resolved and result.text and result.text.isprintable():
            return result.text
        self._note("Only a build knows what FROM is here.", instruction)
        return ""

    def _arg(self, instruction: Instruction) -> None:
        stage = self._stages[-1] if self._stages else None
        for word in split_words(instruction.rest, self._script.escape):
            name, equals, default = word.partition("=")
            value = self._globals.get(name) if stage else None
            if name in self._given:
                value = Expanded(self._given[name])
            elif equals:
                value = self._expand(
                    default, VariableScope(stage.known if stage else self._globals)
                )
            if value is None:
                continue
            self._count()
            if stage:
                stage.give_argument(name, value)
            else:
                self._globals[name] = value

    def _env(self, instruction: Instruction) -> None:
        stage = self._stages[-1]
        variables = []
        for name, written in self._pairs(instruction.rest):
            value = self._expand(written, VariableScope(stage.known))
            if not name or "\0" in name + value.text:
                raise MalformedFile(f"{name[:80]!r} cannot be a variable.")
            self._count()
            variables.append(
                Variable(name, value.text, self._path, instruction.line, value.resolved)
            )
        # Only now: all on one line see the values from before it.
        for variable in variables:
            stage.give_variable(variable)

    def _pairs(self, rest: str) -> list[tuple[str, str]]:
        words = split_words(rest, self._script.escape)
        if words and "=" not in words[0]:
            name, *value = re.split(r"[ \t]+", rest, maxsplit=1)
            if not value:
                raise MalformedFile(f"ENV {name[:80]} has no value.")
            return [(name, value[0])]
        pairs = [word.partition("=") for word in words]
        if not all(equals for _, equals, _ in pairs):
            raise MalformedFile("ENV takes NAME=VALUE.")
        return [(name, value) for name, _, value in pairs]

    def _expose(self, instruction: Instruction) -> None:
        stage = self._stages[-1]
        for written in instruction.rest.split():
            for word in self._known(written, instruction).split():
                for number, protocol in parse_ports(word):
                    if (number, protocol) not in stage.ports:
                        stage.ports[number, protocol] = Port(number, self._path, protocol)
        if len(stage.ports) > MAX_PORTS:
            raise BoundReached(f"It exposes more than {MAX_PORTS} ports.")

    def _user(self, instruction: Instruction) -> None:
        self._stages[-1].user = self._known(instruction.rest, instruction)

    def _workdir(self, instruction: Instruction) -> None:
        stage = self._stages[-1]
        written = self._known(instruction.rest, instruction)
        # A relative one goes on from the last, so many of them grow as variables do.
        path = self._budget.spend(posixpath.join("/", stage.folder, written))
        stage.folder = posixpath.normpath(path) if written else ""

    def _known(self, written: str, instruction: Instruction) -> str:
        """The value; empty, with a note, when it cannot be told from the file alone."""
        result = self._expand(written, VariableScope(self._stages[-1].known))
        if result.resolved and result.text and result.text.isprintable():
            return result.text
        self._note(f"Only a build knows what {instruction.keyword} is here.", instruction)
        return ""

    def _count(self) -> None:
        self._set += 1
        if self._set > MAX_VARIABLES:
            raise BoundReached(f"It sets more than {MAX_VARIABLES} variables.")

    def _expand(self, text: str, scope: VariableScope) -> Expanded:
        return expand(text, self._script.escape, scope, self._budget)

    def _note(self, message: str, instruction: Instruction) -> None:
        self._reader.note(self._path, message, instruction.line)
