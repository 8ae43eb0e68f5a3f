"""Images: immutable root file systems that spaces can have below their own system."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from carrel.domain.errors import ImageInvalid
from carrel.domain.projects import OnProgress
from carrel.domain.services import HealthCheck
from carrel.domain.tar import Readable

IDS = 65_536
"""Users and groups of an image are below this, as are those that a space can be given."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,254}")
_ID = re.compile(r"im_[a-z2-7]{26}")


@dataclass(frozen=True)
class Platform:
    """In the words of OCI: `linux`, `amd64`, and a variant such as `v8` or nothing."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True)
class ImageConfig:
    """What an image asks for, as it says it itself; nobody has checked it. `user` may be a name or
    a number, with a group behind a colon. `env` has each name once."""

    user: str = ""
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    """Such as `5432/tcp`."""
    labels: tuple[tuple[str, str], ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""
    platform: Platform | None = None
    """None: it does not say."""
    health: HealthCheck | None = None


@dataclass(frozen=True)
class ImageNote:
    """What of an image is not as it says, how often, and some of the names, fit to be shown."""

    what: str
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class RootImage:
    """One that is kept. `folder` is its root: nobody writes there, and whoever is no owner of the
    data folder cannot get to it, since its files have the modes and, for root, the users that the
    image gives them."""

    image_id: str
    folder: Path
    config: ImageConfig
    entries: int
    size_bytes: int
    created_at: float
    """When it was taken in."""
    source: str
    """In words: the archive or folder."""
    made: str = ""
    """When it was built, as it says itself."""
    notes: tuple[ImageNote, ...] = ()
    names: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    """The spaces that use it."""
    used_at: float = 0.0


@dataclass(frozen=True)
class ImageLimits:
    """How much of an image is taken at most."""

    max_bytes: int = 64 << 30
    max_entries: int = 2_000_000
    max_layers: int = 512


@dataclass(frozen=True)
class ImageImport:
    """`source` is the path of an archive or of a folder, or the bytes of an archive as they come.
    `reference` picks one of several images in an archive."""

    name: str
    source: Path | Readable
    shown: str = ""
    """What the image's source is called then; empty: the path."""
    reference: str = ""
    limits: ImageLimits = field(default_factory=ImageLimits)


class Images(Protocol):
    """The images of one data folder: `carrel.trees.images.store`. Everything blocks."""

    def take(self, asked: ImageImport, progress: OnProgress) -> RootImage:
        """Takes an image in, or finds that it is here already, and gives it the name. Raises
        `ImageInvalid`, `TooLarge`, `InsufficientDisk`, and what `progress` raises; nothing is left
        of it then."""
        ...

    def folder_for(self, image: RootImage, own: tuple[int, int]) -> Path | None:
        """Its files as a system with a range of ids has them, whose user and group are `own` in the
        image. None where they have lost their
        owners: an ordinary user had no range of ids when it was taken in."""
        ...

    def get(self, name: str) -> RootImage:
        """By a name or an id. Raises `ImageNotFound`, `TreeDamaged`."""
        ...

    def list(self) -> list[RootImage]:
        """The newest first."""
        ...

    def tag(self, image: str, name: str) -> RootImage:
        """Gives it one more name, which another image may have had."""
        ...

    def remove(self, name: str) -> RootImage:
        """The image with all of its names; by one of several names, that name only. Raises
        `ImageNotFound`, and `ImageInUse` while a space uses it."""
        ...

    def prune(self, budget: int | None, *, pretend: bool = False) -> tuple[RootImage, ...]:
        """Removes those that no space uses: without a budget the ones without a name, else those
        that were not used for longest, until all together take no more bytes than that."""
        ...

    def hold(self, image: str, holder: str) -> RootImage:
        """A space uses it from now on; idempotent. Raises `ImageNotFound`, `TreeDamaged`."""
        ...

    def release(self, holder: str, image: str = "") -> None:
        """A space uses it no more, or no image at all; idempotent."""
        ...

    def keep_holders(self, known: Callable[[], Iterable[str]]) -> None:
        """Forgets all other holders: spaces that are gone without having released. `known` is
        asked while nobody can become one."""
        ...


def check_image_name(name: str) -> str:
    """Raises `ImageInvalid`."""
    if not _NAME.fullmatch(name) or is_image_id(name):
        raise ImageInvalid(
            f"{name[:80]!r} cannot be the name of an image.",
            hint="Use letters, digits and . _ / : @ + -, such as tools:1; an id is no name.",
        )
    return name


def is_image_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None
