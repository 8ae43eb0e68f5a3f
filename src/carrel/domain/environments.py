"""Environments: the toolchain that a project asks for, as one explained record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True)
class Listing:
    """The names in a folder, sorted. `files` is everything that is not a folder itself,
    symlinks included."""

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    complete: bool = True
    """False: there were too many names, and some are left out."""


class ReadFiles(Protocol):
    """How discovery sees a project: reading only, blocking. Paths are relative to its root;
    symlinks are followed as long as they stay inside."""

    def read(self, path: str, limit: int) -> bytes | None:
        """The first `limit` bytes of a regular file; None when there is none. Raises
        `PathError` for what is there and may not be read, or leads out."""
        ...

    def list(self, path: str) -> Listing:
        """Empty when there is no such folder. Raises `PathError` as `read` does."""
        ...


class Rule(StrEnum):
    """In the order in which they are tried; the first that holds decides."""

    DOCKERFILE = "dockerfile"
    DEVCONTAINER = "devcontainer"
    LANGUAGE = "language"
    DEFAULT = "default"


@dataclass(frozen=True)
class Match:
    """A rule that holds, the file that it holds on (none for the default), and why."""

    rule: Rule
    path: str
    why: str


@dataclass(frozen=True)
class Note:
    """Something in a file that was not understood, or not followed."""

    path: str
    message: str
    line: int | None = None


@dataclass(frozen=True)
class Build:
    """How an image is built. Paths are relative to the project's root."""

    dockerfile: str
    context: str = "."
    target: str = ""
    """The stage; empty: the last one."""
    args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Compose:
    """A service of compose files, and the others that are to run; empty: all."""

    files: tuple[str, ...]
    service: str
    started: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """Something that a dev container adds to its image."""

    reference: str
    options: Mapping[str, str | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """What a container would be made of."""

    reference: str = ""
    """What to pull; of a `build`, what it stands on; empty when only the build knows."""
    build: Build | None = None
    compose: Compose | None = None
    features: tuple[Feature, ...] = ()
    user: str = ""
    folder: str = ""
    """Where the project is, or commands begin, in the container."""
    why: str = ""


@dataclass(frozen=True)
class Variable:
    """A variable of the environment. When it is not `resolved`, its value refers to what
    only the image, the build or the person's machine knows, and stands as it is written."""

    name: str
    value: str
    path: str
    line: int | None = None
    resolved: bool = True


@dataclass(frozen=True)
class Port:
    number: int
    path: str
    protocol: str = "tcp"
    label: str = ""
    service: str = ""
    """Of another container beside the project's own."""


class SetupStage(StrEnum):
    CREATE = "create"
    """Once, when the space is new."""
    START = "start"
    """At every start."""
    ATTACH = "attach"
    """Whenever somebody comes in."""


@dataclass(frozen=True)
class SetupCommand:
    """A command that makes a fresh copy of the project usable. Nobody has run it."""

    argv: tuple[str, ...]
    path: str
    """The file that asks for it."""
    stage: SetupStage = SetupStage.CREATE
    name: str = ""
    """Commands of one stage that have names may run side by side."""
    folder: str = "."
    step: str = field(default="", compare=False)
    """The key of the file that has it, such as `postCreateCommand`."""

    @property
    def text(self) -> str:
        """As one would type it."""
        if self.argv[:2] == ("/bin/sh", "-c") and len(self.argv) == 3:
            return self.argv[2]
        return shlex.join(self.argv)


@dataclass(frozen=True)
class VersionAsked:
    """A version, or a range, as it is written. Of several for one tool the first counts."""

    tool: str
    version: str
    path: str
    line: int | None = None


@dataclass(frozen=True)
class LanguageFound:
    name: str
    title: str
    path: str
    """The file that gives it away."""
    folder: str = "."
    manager: str = ""
    """What installs its packages."""
    setup: tuple[SetupCommand, ...] = ()


@dataclass(frozen=True)
class ProgramNeeded:
    """A program of the host that the project needs. Nothing was executed, so whether it is
    of the version asked for is not known."""

    name: str
    needed_by: tuple[str, ...]
    found: str = ""
    """Its path; empty when it is missing."""
    asked: str = ""
    """The version that the project asks for."""
    package: str = ""
    """The Debian package that has it; empty when Debian has none."""
    hint: str = ""
    """What to do when it is missing."""


@dataclass(frozen=True)
class Toolchain:
    """What the host has of what the project needs, for runtimes without images."""

    search_path: str
    programs: tuple[ProgramNeeded, ...] = ()

    @property
    def missing(self) -> tuple[ProgramNeeded, ...]:
        return tuple(program for program in self.programs if not program.found)

    @property
    def packages(self) -> tuple[str, ...]:
        """The Debian packages of what is missing."""
        return tuple(sorted({program.package for program in self.missing if program.package}))


@dataclass(frozen=True)
class EnvironmentReport:
    """What a project asks for, and why we think so. All text in it is the project's own: it
    may hold control characters, so escape it before it goes to a terminal."""

    decided: Match
    also: tuple[Match, ...]
    """What would have decided otherwise, in order."""
    image: Image
    toolchain: Toolchain
    languages: tuple[LanguageFound, ...] = ()
    versions: tuple[VersionAsked, ...] = ()
    setup: tuple[SetupCommand, ...] = ()
    ports: tuple[Port, ...] = ()
    variables: tuple[Variable, ...] = ()
    notes: tuple[Note, ...] = ()


# Toolchains in the home of the daemon's user


@dataclass(frozen=True)
class HomeTool:
    """A toolchain in a home, as spaces see it."""

    name: str
    shown: Mapping[str, str]
    """What sandboxes show of it, read-only: the path inside, and the real path on the host."""
    env: Mapping[str, str] = field(default_factory=dict)
    partly: bool = False
    """There is too much in it to be looked through, and what is deeper is not shown."""


@dataclass(frozen=True)
class HomeTools:
    """All of them, with the entries that they have on PATH."""

    tools: tuple[HomeTool, ...] = ()
    path_first: tuple[str, ...] = ()
    """Before the system's own programs, as the login shell has them."""
    path_last: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Real paths in what a space is shown that sandboxes do not see: settings with passwords in
    them, sockets and named pipes."""


NO_TOOLS = HomeTools()


@dataclass(frozen=True)
class PackageSettings:
    """What a space has of its owner's settings for package managers."""

    files: Mapping[str, str] = field(default_factory=dict)
    """By path in the home that the space begins with."""
    env: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    """Certificates: the path inside, and the real path on the host."""
    withheld: tuple[str, ...] = ()
    """Credentials that it was not given, and what could not be read, in words."""
    credentials: bool = False
    """It was asked for with credentials, so some may be among it."""


NO_SETTINGS = PackageSettings()
