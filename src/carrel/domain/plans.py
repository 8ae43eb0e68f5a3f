"""Plans: what a space's system is made of, decided from a project's files and what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from carrel.domain.availability import Availability
from carrel.domain.environments import Build, Feature, Port, SetupCommand, Variable

HOST = "The host's toolchain is used: "
"""How a sentence begins that says why a space has no image."""


class PlanKind(StrEnum):
    """What it stands on."""

    HOST = "host"
    """The host's toolchain, without an image."""
    IMAGE = "image"
    """An image by its name."""
    ARCHIVE = "archive"
    """A file with an image."""
    FOLDER = "folder"
    """A folder with a root file system."""
    BUILD = "build"
    """A Dockerfile, also one that a devcontainer.json names, or an image with features."""


@dataclass(frozen=True)
class PlanRequest:
    """What a person said. `image`: auto, none, or a name, the path of an archive or of a folder.
    A `dockerfile` or a `devcontainer` overrides the order in which files are looked for; an empty
    `devcontainer` with `by_devcontainer` is the first that there is."""

    image: str = "auto"
    dockerfile: str = ""
    devcontainer: str = ""
    by_devcontainer: bool = False
    unasked: bool = False
    """Nobody said anything: what fails leaves the host's toolchain too."""
    only_ready: bool = False
    """And nobody would see a build: only an image that is there counts."""
    services: str = ""
    """auto: those of the project's compose file; none; or the path of a compose file. Empty: those
    that go with the image, where that is chosen by the project's files."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of the space, which compose files may refer to."""

    @property
    def automatic(self) -> bool:
        """Nothing was asked for: what cannot be had leaves the host's toolchain."""
        named = self.dockerfile or self.devcontainer or self.by_devcontainer
        return self.image == "auto" and not named


@dataclass(frozen=True)
class PlannedMount:
    """A place in the image's system that is the space's own: what is kept (`volume`) or not
    (`tmpfs`). `name` is the volume's."""

    target: str
    kind: str = "volume"
    name: str = ""


@dataclass(frozen=True)
class DroppedRequest:
    """Something that a file asks for and that a space does not get, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class EnvironmentPlan:
    """Nothing of it was done yet. Text in it is the project's own: escape it for a terminal."""

    kind: PlanKind
    why: str
    path: str = ""
    """The file of the project that decided; or of the archive or folder."""
    image: str = ""
    """What must be there (`IMAGE`); of a build, what it stands on."""
    build: Build | None = None
    features: tuple[Feature, ...] = ()
    """What is added to it by a further build."""
    may_pull: bool = False
    """A person asked for this image, so that it may be fetched."""
    user: str = ""
    """Empty: the image's."""
    folder: str = ""
    """Where commands begin; empty: where the space's tree is."""
    variables: tuple[Variable, ...] = ()
    hooks: tuple[SetupCommand, ...] = ()
    ports: tuple[Port, ...] = ()
    mounts: tuple[PlannedMount, ...] = ()
    dropped: tuple[DroppedRequest, ...] = ()


class ImageMeans(Protocol):
    """What of images can be had here. Blocking."""

    def engine(self) -> Availability:
        """Whether something can be built or fetched."""
        ...

    def features(self) -> Availability:
        """Whether features of development containers can be added."""
        ...

    def has(self, image: str) -> bool:
        """Whether an image of that name is kept already, by Carrel or by an engine."""
        ...

    def keeps(self, image: str) -> bool:
        """Whether Carrel keeps it, which is quickly found out."""
        ...


class NoImages:
    """Of a machine without an engine and without images."""

    def engine(self) -> Availability:
        return Availability(False, "No engine was looked for.")

    def features(self) -> Availability:
        return Availability(False, "nothing that adds features was looked for")

    def has(self, image: str) -> bool:
        return False

    def keeps(self, image: str) -> bool:
        return False
