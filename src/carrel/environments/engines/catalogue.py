"""All engines of the machine: which can be used, and what one of them makes as an archive."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from carrel.domain.availability import Availability
from carrel.domain.engines import (
    UNWATCHED,
    EngineFound,
    EngineWatch,
    ImageBuild,
    ImageEngine,
)
from carrel.domain.errors import EngineUnavailable, EnvironmentRefused, ImageNotInEngine
from carrel.environments.engines.docker import DockerEngine
from carrel.environments.engines.features import feature_support, find_feature_tool
from carrel.environments.engines.own import BUILDAH, PODMAN, OwnEngine
from carrel.environments.engines.personal import PersonalPodman
from carrel.environments.engines.place import EnginePlace
from carrel.environments.engines.processes import KEEP_FREE

_NAME = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_TRANSPORTS = frozenset(
    {"containers-storage", "dir", "docker", "docker-archive", "docker-daemon", "oci"}
    | {"oci-archive", "ostree", "sif", "tarball", "http", "https", "atomic"}
)
"""What podman would take a name for, if it begins with one of these and a colon."""
MOST_NAME = 500


def check_image_name(name: str) -> str:
    """Raises `EnvironmentRefused` for what is no name of an image, but of a file say."""
    if (
        len(name) > MOST_NAME
        or not _NAME.fullmatch(name)
        or name.partition(":")[0].lower() in _TRANSPORTS
    ):
        raise EnvironmentRefused(
            f"{name[:80]!r} is not the name of an image.", hint="For example debian:12."
        )
    return name


class Engines:
    """`folder` is below the data folder, `packages` one of npm with the reference tool of
    development containers. Blocking; raises what `ImageEngine` raises."""

    def __init__(
        self,
        folder: Path,
        *,
        docker: Path | None = None,
        keep_free: int = KEEP_FREE,
        packages: Path | None = None,
    ) -> None:
        self._place = EnginePlace(folder)
        self._tool = find_feature_tool(packages)
        self._own = tuple(
            OwnEngine(one, self._place, keep_free=keep_free, tool=self._tool)
            for one in (PODMAN, BUILDAH)
        )
        self._docker = DockerEngine(self._place, docker, keep_free=keep_free)
        self._personal = PersonalPodman(self._place, keep_free=keep_free)

    @property
    def all(self) -> Sequence[ImageEngine]:
        """In the order in which they are taken: without a daemon first."""
        return (*self._own, self._docker)

    def found(self) -> tuple[EngineFound, ...]:
        return tuple(EngineFound(one.name, one.probe()) for one in self.all)

    def best(self, name: str = "auto") -> ImageEngine:
        """By name, or the first that works. Raises `EngineUnavailable`."""
        reasons = []
        for engine in self.all:
            if name not in ("auto", engine.name):
                continue
            answer = engine.probe()
            if answer.available:
                return engine
            reasons.append(answer.reason)
        raise EngineUnavailable(
            " ".join(reasons) or f"There is no engine {name}.",
            hint="Install one: sudo apt-get install podman runc. "
            "Or import an archive of the image, or a folder, which need none.",
        )

    def features(self) -> Availability:
        """Whether features of development containers can be added."""
        answer = feature_support(self._tool)
        return answer if not answer.available else self._own[0].probe()

    @contextlib.contextmanager
    def build(
        self, build: ImageBuild, watch: EngineWatch = UNWATCHED, *, engine: str = "auto"
    ) -> Iterator[BinaryIO]:
        """The image as an OCI or docker archive, which is gone afterwards."""
        best = self.best(PODMAN.name if build.features and engine == "auto" else engine)
        if build.features and best.name != PODMAN.name:
            raise EngineUnavailable(
                f"Features are added with podman, not with {best.name}.",
                hint="Choose podman, or leave them out with --dockerfile.",
            )
        self.tidy()
        with self._archive(best, lambda archive: best.build(build, archive, watch)) as stream:
            yield stream

    @contextlib.contextmanager
    def save(self, name: str, watch: EngineWatch = UNWATCHED) -> Iterator[BinaryIO]:
        """The first engine's that has it; none is pulled. Raises `ImageNotInEngine`."""
        engine = self.holder(name)
        if engine is None:
            raise ImageNotInEngine(
                f"No engine of this machine has an image {name}.",
                hint=f"Fetch it with `carrel image pull {name}`.",
            )
        with self._archive(engine, lambda archive: engine.save(name, archive, watch)) as stream:
            yield stream

    @contextlib.contextmanager
    def pull(
        self, name: str, watch: EngineWatch = UNWATCHED, *, engine: str = "auto"
    ) -> Iterator[BinaryIO]:
        """From its registry: only for a person who named it."""
        check_image_name(name)
        best = self.best(engine)
        best.pull(name, watch)
        with self._archive(best, lambda archive: best.save(name, archive, watch)) as stream:
            yield stream

    def holder(self, name: str) -> ImageEngine | None:
        """Who has an image of that name: Carrel's own store, or the person's engines."""
        check_image_name(name)
        holders: tuple[ImageEngine, ...] = (*self._own, self._personal, self._docker)
        for engine in holders:
            if engine.probe().available and engine.has(name):
                return engine
        return None

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A folder that is gone afterwards."""
        with self._place.working() as work:
            yield work

    def tidy(self) -> None:
        """What killed builds have left. Quick when there is nothing."""
        if self._place.leftovers:
            for engine in self._own:
                if engine.probe().available:
                    engine.tidy()

    def empty(self) -> None:
        """Removes layers that were kept for the next build."""
        for engine in self._own:
            engine.empty()

    @contextlib.contextmanager
    def _archive(self, engine: ImageEngine, write: Callable[[Path], None]) -> Iterator[BinaryIO]:
        with contextlib.ExitStack() as working:
            archive = working.enter_context(self._place.working()) / "archive.tar"
            try:
                write(archive)
            except BaseException:
                # Nobody is alone while we work.
                working.close()
                engine.tidy()
                raise
            with open(os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
                yield stream
