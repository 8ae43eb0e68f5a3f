"""The system of a space: the files of an image as the root of one of its sandboxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from carrel.domain.environments import Port, SetupCommand
from carrel.domain.plans import EnvironmentPlan
from carrel.domain.services import PlannedService, ServiceSpec
from carrel.domain.trees import Change, Owner, Tree, TreeLayer, TreeUsage

MOST_IDS = 65_536
"""That a system of an image counts with."""
MOUNTED = (
    *("proc", "sys", "dev", "tmp", "workspace", "run/carrel"),
    *("etc/hosts", "etc/hostname", "etc/resolv.conf"),
)
"""Where every sandbox with a system mounts something, relative to that."""


@dataclass(frozen=True)
class IdMap:
    """Who somebody of an image is on the host, and the other way round. `own` is its user, who is
    `host` there; the others are from `first` on, or nobody else."""

    own: tuple[int, int]
    host: tuple[int, int]
    first: int | None

    def shown(self, uid: int, gid: int) -> tuple[int, int]:
        """Ids of the image as the host has them."""
        return _shown(uid, self.own[0], self.host[0], self.first), _shown(
            gid, self.own[1], self.host[1], self.first
        )

    def inside(self, uid: int, gid: int) -> tuple[int, int]:
        """Ids of the host, or of the files of an image that root keeps, as the image has them.
        Those of nobody in there are its root's."""
        return _inside(uid, self.own[0], self.host[0], self.first), _inside(
            gid, self.own[1], self.host[1], self.first
        )


@dataclass(frozen=True)
class System:
    """All that says how an image is shown to one space. `folder` is the system's own, below the
    space's folder."""

    key: str
    """The id of the sandbox that has it."""
    beside: str
    """The id of the space, whose tree is mounted with it."""
    image_id: str
    image: Path
    """The folder with the files of the image, which nobody changes."""
    folder: Path
    owner: Owner
    """Whom the tree belongs to on the host."""
    first_id: int | None
    """Where the ids of the space begin on the host; None: it has its owner's only."""
    uid: int = 0
    """The user of the image that commands run as, who is `owner` on the host."""
    gid: int = 0
    user: str = "root"
    home: str = "/root"
    shell: str = "/bin/sh"
    env: Mapping[str, str] = field(default_factory=dict)
    mounted: tuple[str, ...] = ()
    """Where its sandbox mounts things beside `MOUNTED`, relative to its root. What is there is no
    part of the system: removing it would take the mounts away from a sandbox that runs."""

    @property
    def root(self) -> Path:
        """Where it is mounted."""
        return self.folder / "root"

    @property
    def has_root(self) -> bool:
        """Somebody in it is its root: the user, or somebody else of its own ids."""
        return self.uid == 0 or self.first_id is not None

    @property
    def ids(self) -> tuple[tuple[int, int], tuple[int, int], int]:
        """Its user in the image, who that is on the host, and where the others begin there."""
        assert self.first_id is not None
        return (self.uid, self.gid), (self.owner.uid, self.owner.gid), self.first_id

    def shown(self, uid: int, gid: int) -> tuple[int, int]:
        """Ids of the image as the host has them."""
        return self._map.shown(uid, gid)

    def inside(self, uid: int, gid: int) -> tuple[int, int]:
        """Ids of the host, or of the files of the image, as the image has them. Those of nobody in
        there are its root's."""
        return self._map.inside(uid, gid)

    @property
    def _map(self) -> IdMap:
        return IdMap((self.uid, self.gid), (self.owner.uid, self.owner.gid), self.first_id)


def _shown(number: int, own: int, host: int, first: int | None) -> int:
    if number == own or first is None:
        return host
    return first + number


def _inside(number: int, own: int, host: int, first: int | None) -> int:
    if first is None or number == host:
        return own
    if number < MOST_IDS:
        return number
    return number - first if first <= number < first + MOST_IDS else 0


@dataclass(frozen=True)
class Volume:
    """A plain folder of a space, which its sandboxes show."""

    folder: Path
    """Below the space's folder."""
    system: System
    """Whose ids it has."""
    target: str = ""
    """Where its service has it: it begins with what the image has there."""


Part = System | Volume
"""What belongs to a space beside its tree: checkpoints, forks and the trash have it."""


class CommandPlace(StrEnum):
    """Where in a space a command runs."""

    AGENT = "agent"
    """With the host's toolchain, as the agent does."""
    DEV = "dev"
    """With the space's image."""


@dataclass(frozen=True)
class SpaceImage:
    """What the record of a space has of its image: as it was resolved when the space was made."""

    image_id: str
    name: str
    """As it was asked for."""
    folder: str
    first_id: int | None
    uid: int = 0
    gid: int = 0
    user: str = "root"
    home: str = "/root"
    shell: str = "/bin/sh"
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What it cannot do here, in sentences."""
    asked_user: str = ""
    """By a project's file, instead of the image's own."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """A project's file gives them to what runs in the image."""
    ports: tuple[Port, ...] = ()
    """That a project's file names."""
    at_start: tuple[SetupCommand, ...] = ()
    """Commands of the project that run at every start."""


@dataclass(frozen=True)
class SpaceService:
    """One of a space, as it was resolved when the space was made."""

    spec: ServiceSpec
    image: SpaceImage
    argv: tuple[str, ...]
    folder: str = "/"
    stop_number: int = 15
    """The signal that asks it to end."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.spec.name, *self.spec.names)


@dataclass(frozen=True)
class SpaceEnvironment:
    """What was found for a new space before it is made. `image_id` is empty where it has the host's
    toolchain."""

    image_id: str = ""
    name: str = ""
    """As the image was asked for, or the file that it comes from."""
    user: str = ""
    """Empty: the image's."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """They may refer to the image's own, as `${containerEnv:PATH}`."""
    hooks: tuple[SetupCommand, ...] = ()
    """Commands of the project that run in a new space before others have it."""
    ports: tuple[Port, ...] = ()
    notes: tuple[str, ...] = ()
    """What was decided and why, and what of the project's wishes was left out, in sentences."""
    unasked: bool = False
    """Nobody asked for it: commands that fail leave the space all the same."""
    plan: EnvironmentPlan | None = None
    definition: str = ""
    """The text of the Dockerfile that its image was built from."""
    services: tuple[PlannedService, ...] = ()
    """In the order in which they start."""


@dataclass(frozen=True)
class ImageAccount:
    """A user as the files of an image have it."""

    uid: int = 0
    gid: int = 0
    name: str = "root"
    home: str = "/root"
    shell: str = "/bin/sh"


class SystemMounts(Protocol):
    """Blocking."""

    def account(self, image: Path, wanted: str) -> ImageAccount:
        """The user of that name or number, with a group behind a colon; empty: root. Raises
        `ImageInvalid` for one that is not there."""
        ...

    def ensure(self, system: System, layer: TreeLayer | None = None) -> None:
        """Makes and mounts it; idempotent. A new one begins with the `layer` above its image.
        Raises `TreeDamaged`, `TreeUnavailable`."""
        ...

    def changes(self, system: System) -> Iterator[Change]:
        """From its image, sorted by path. Raises `TreeUnavailable`."""
        ...

    def usage(self, system: System) -> TreeUsage:
        """What it costs beside its image. Raises `TreeUnavailable`."""
        ...

    def make_volume(self, system: System, volume: Path, target: str) -> None:
        """A folder that begins with what the image has there; idempotent. Raises
        `TreeUnavailable`."""
        ...

    def give_back(self, tree: Tree) -> None:
        """What the root of a system has given to others in the tree becomes its owner's again, as
        far as it could not be read else. Raises `TreeUnavailable`."""
        ...

    def drop(self, system: System) -> None:
        """Removes what the space wrote in it, and its mount; idempotent."""
        ...
