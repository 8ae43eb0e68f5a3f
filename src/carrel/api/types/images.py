"""Images: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from carrel.api.types.common import Answer, Body, Moment, PathInside, PathText, Query, spelled
from carrel.domain.images import ImageNote

ImageName = Annotated[
    str,
    spelled(
        "[A-Za-z0-9][A-Za-z0-9._/:@+-]*",
        "The name of an image has letters, digits and . _ / : @ + -, and begins with a letter or"
        " digit",
        max_length=255,
    ),
]
Reference = Annotated[str, Meta(max_length=1000)]
"""Which of several images in an archive, by the name that it has there."""


class NewImage(Body, frozen=True, kw_only=True):
    """From a file or folder of the daemon's machine."""

    name: ImageName
    path: PathText
    """An archive of `docker save`, `podman save` or in OCI's layout, a tar with a root file system,
    or a folder with one of these. Absolute."""
    reference: Reference = ""


EngineWord = Annotated[str, spelled("(?:auto|podman|buildah|docker)", "An engine is one of these")]
OwnName = Annotated[
    str,
    spelled(
        "(?:|[A-Za-z0-9][A-Za-z0-9._/:@+-]*)", "A name as of images, or nothing", max_length=255
    ),
]


class ImageToBuild(Body, frozen=True, kw_only=True):
    """From the Dockerfile or devcontainer.json of a project on the daemon's machine."""

    project: PathText
    """Absolute."""
    dockerfile: PathInside = ""
    devcontainer: PathInside = ""
    by_devcontainer: bool = False
    """The first devcontainer.json that there is, also where there is a Dockerfile."""
    name: OwnName = ""
    target: Annotated[str, Meta(max_length=255)] = ""
    args: Annotated[dict[str, str], Meta(max_length=1000)] = field(default_factory=dict)
    network: Annotated[str, spelled("(?:engine|none|host)", "It is one of these")] = "engine"
    """What the build's steps reach."""
    engine: EngineWord = "auto"


class ImageToPull(Body, frozen=True, kw_only=True):
    """From an engine that has it, or from its registry."""

    image: Annotated[str, Meta(min_length=1, max_length=500)]
    name: OwnName = ""
    engine: EngineWord = "auto"
    anew: bool = False
    """From its registry, although an engine has one of that name."""
    local: bool = False
    """Never from a registry."""


class ImageUploadQuery(Query, frozen=True, kw_only=True):
    """The body is an archive, as for `NewImage`."""

    name: ImageName
    reference: Reference = ""


class PruneBody(Body, frozen=True, kw_only=True):
    budget_bytes: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None
    """Null: those without a name go. Else those not used for longest, until no more is taken."""
    dry_run: bool = False


class ImageConfigInfo(Answer, frozen=True, kw_only=True):
    """As the image says it itself."""

    user: str = ""
    env: tuple[tuple[str, str], ...] = ()
    """Empty for who is no administrator, as labels are."""
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""
    platform: str = ""


class ImageInfo(Answer, frozen=True, kw_only=True):
    id: str
    names: tuple[str, ...]
    size_bytes: int
    """Of all files together."""
    entries: int
    created_at: Moment
    """When it was imported."""
    used_at: Moment
    made: str = ""
    """When it was built, as it says itself."""
    config: ImageConfigInfo
    source: str = ""
    """Where it came from. For administrators, as what follows."""
    folder: str = ""
    spaces: tuple[str, ...] = ()
    """Those that use it."""
    notes: tuple[ImageNote, ...] = ()
    """What of it is not as it says."""


class ImageList(Answer, frozen=True, kw_only=True):
    images: tuple[ImageInfo, ...]
