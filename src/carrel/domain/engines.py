"""Engines: podman, buildah or docker, which build and pull images. No space needs one to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Protocol

from carrel.domain.availability import Availability
from carrel.domain.environments import Feature
from carrel.domain.plans import EnvironmentPlan, PlanRequest
from carrel.domain.services import StackPlan


class BuildNetwork(StrEnum):
    """What the steps of a build reach."""

    ENGINE = "engine"
    """What the engine gives containers by default: usually other machines."""
    NONE = "none"
    HOST = "host"


BUILD_SECONDS = 3600.0
"""A toolchain that is compiled takes most of an hour; what takes longer hangs."""


@dataclass(frozen=True)
class ImageBuild:
    """What is built. Paths are relative to `project`, and stay inside it for the engine, which
    sees nothing else of the host: a link that leads out leads nowhere."""

    project: Path
    """A folder that nobody changes meanwhile: a base, or another copy."""
    dockerfile: str = "Dockerfile"
    context: str = "."
    target: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    network: BuildNetwork = BuildNetwork.ENGINE
    most_s: float = BUILD_SECONDS
    features: tuple[Feature, ...] = ()
    """Added by the reference tool of development containers, with podman."""
    configuration: str = ""
    """The devcontainer.json that names them."""
    image: str = ""
    """What they are added to, when that is not built."""


def _ignore_line(_line: str) -> None:
    pass


def _never() -> None:
    pass


@dataclass(frozen=True)
class EngineWatch:
    """Who waits for an engine: hears its lines, and is asked several times a second whether it
    should go on. `check` raises what the caller then gets; nothing of the work is left."""

    line: Callable[[str], None] = _ignore_line
    check: Callable[[], None] = _never


UNWATCHED = EngineWatch()


@dataclass(frozen=True)
class EngineFound:
    """An engine, and whether it can be used here."""

    name: str
    answer: Availability


class ImageEngine(Protocol):
    """Blocking. Every method but `probe` raises `EngineUnavailable` when the engine does not
    answer, `EngineFailed` when it ends badly, `EngineTimeout`, `InsufficientDisk`, and what the
    watch raises. What it was doing then is undone."""

    @property
    def name(self) -> str: ...

    def probe(self) -> Availability:
        """Tries it, within seconds. Raises nothing."""
        ...

    def build(self, build: ImageBuild, archive: Path, watch: EngineWatch) -> None:
        """Writes the image as an OCI or docker archive."""
        ...

    def has(self, name: str) -> bool:
        """Whether it has an image of that name already. Raises nothing."""
        ...

    def save(self, name: str, archive: Path, watch: EngineWatch) -> None:
        """Writes an image that it has, as `build` does."""
        ...

    def pull(self, name: str, watch: EngineWatch) -> None:
        """Fetches an image from its registry. Only for a person who named it."""
        ...

    def tidy(self) -> None:
        """Removes what killed builds have left, unless somebody works with it. Raises nothing."""
        ...


@dataclass(frozen=True)
class BuildOptions:
    """What a person says beside the files: `anew`: an image is fetched again, `local`: never."""

    target: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    network: BuildNetwork = BuildNetwork.ENGINE
    engine: str = "auto"
    anew: bool = False
    local: bool = False


@dataclass(frozen=True)
class MadeImage:
    """`name` is of its content. `archive` is None when an image of that name is kept already."""

    name: str
    archive: BinaryIO | None


class ImageMaker(Protocol):
    """Images for projects. Blocking; raises what `ImageEngine` raises, and `EnvironmentRefused`.
    `kept` says whether Carrel has an image of a name."""

    def found(self) -> tuple[EngineFound, ...]: ...

    def plan(
        self,
        project: Path,
        request: PlanRequest,
        kept: Callable[[str], bool],
        *,
        name: str = "",
        try_engine: bool = True,
    ) -> EnvironmentPlan:
        """`name` is the project's, where the folder has another. Without `try_engine` it is as if
        one were there: `make` needs none for what was built before."""
        ...

    def stack(
        self,
        project: Path,
        request: PlanRequest,
        plan: EnvironmentPlan,
        kept: Callable[[str], bool],
    ) -> StackPlan:
        """The services of a space with this plan. Raises `EnvironmentRefused`."""
        ...

    def make(
        self,
        project: Path,
        plan: EnvironmentPlan,
        options: BuildOptions,
        kept: Callable[[str], bool],
        watch: EngineWatch,
    ) -> AbstractContextManager[MadeImage]:
        """Builds what the plan says, or fetches it."""
        ...

    def key(
        self, project: Path, plan: EnvironmentPlan, options: BuildOptions, watch: EngineWatch
    ) -> str:
        """The name by which `make` keeps what it builds; no engine is asked. Empty: the plan has
        nothing to build."""
        ...

    def definition(self, project: Path, plan: EnvironmentPlan) -> str:
        """The text of the Dockerfile that it builds; empty: it builds none, or that is gone."""
        ...

    def fetch(
        self, name: str, options: BuildOptions, watch: EngineWatch
    ) -> AbstractContextManager[MadeImage]:
        """From an engine that has it, or else from its registry."""
        ...
