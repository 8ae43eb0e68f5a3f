"""Images: taken in for the owner, and told to everybody as far as it is theirs to know."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from carrel.domain.access import LOCAL, Caller
from carrel.domain.engines import BuildOptions, EngineWatch, ImageMaker, MadeImage
from carrel.domain.errors import (
    CarrelError,
    EngineTimeout,
    EngineUnavailable,
    EnvironmentRefused,
    ImageBuildFailed,
    ImageInvalid,
    ImageNotFound,
    ImageNotInEngine,
    StateConflict,
    TreeDamaged,
)
from carrel.domain.images import ImageImport, Images, RootImage
from carrel.domain.plans import HOST, EnvironmentPlan, PlanKind, PlanRequest
from carrel.domain.projects import OnProgress, Progress, ignore_progress
from carrel.domain.services import PlannedService, StackPlan
from carrel.service.access import require_admin
from carrel.service.shared import CallerSlots, Locks

T = TypeVar("T")
IMPORTS = 2
"""At the same time: each keeps a disk busy."""


LINE = 500
"""So many characters of a line that an engine says, which is one step of progress."""


LOCAL_ONLY = BuildOptions(local=True)
AGAIN_S = 3600.0
"""A build that nobody asked for and that failed is not tried again sooner, unless what it is built
of has changed: every new space would wait for it."""
MOST_FAILED = 100
BUILD = "`carrel image build {}` builds it."
SLOW_S = 5.0
"""An engine that takes longer to say that it does not work hangs; that counts as a failed build."""


@dataclass(frozen=True)
class ImageForProject:
    """What is to be built; `name` is one more that it is given."""

    project: Path
    request: PlanRequest
    name: str = ""
    options: BuildOptions = field(default_factory=BuildOptions)


@dataclass(frozen=True)
class FailedBuild:
    error: CarrelError
    at: float


@dataclass(frozen=True)
class ImageLibrary:
    images: Images
    maker: ImageMaker
    slots: CallerSlots = field(default_factory=lambda: CallerSlots(IMPORTS))
    locks: Locks = field(default_factory=Locks)
    failed: dict[str, FailedBuild] = field(default_factory=dict)
    """By the content of a build."""

    async def take(
        self, caller: Caller, asked: ImageImport, on_progress: OnProgress = ignore_progress
    ) -> RootImage:
        """Until it is there, or the caller goes: then nothing is left of it. Raises `ImageInvalid`,
        `TooLarge`, `InsufficientDisk`."""
        require_admin(caller)
        return await self._work(
            caller, lambda tell, _watch: self.images.take(asked, tell), on_progress
        )

    async def plan(self, caller: Caller, project: Path, request: PlanRequest) -> EnvironmentPlan:
        """Raises `EnvironmentRefused`, and what reading a project raises."""
        require_admin(caller)
        return await asyncio.to_thread(self.maker.plan, project, request, self._kept)

    async def build(
        self,
        caller: Caller,
        asked: ImageForProject,
        on_progress: OnProgress = ignore_progress,
    ) -> RootImage:
        """What a project's files describe; at once when that content was built before. Raises what
        `take` and `ImageMaker` raise."""
        require_admin(caller)

        def work(tell: OnProgress, watch: EngineWatch) -> RootImage:
            plan = self.maker.plan(asked.project, asked.request, self._kept)
            made = self.maker.make(asked.project, plan, asked.options, self._kept, watch)
            with made as image:
                return self._keep(image, asked.name, f"built from {plan.path}", tell)

        return await self._work(caller, work, on_progress)

    async def of_project(
        self, folder: Path, name: str, asked: PlanRequest, on_progress: OnProgress
    ) -> tuple[EnvironmentPlan, RootImage | None]:
        """For a space of the owner's: what its project's files describe, and its image, if it is to
        have one. No registry is asked for an image that a file names. Raises what `build` does;
        where nobody asked for it, at once for what has failed lately."""

        def look(_tell: OnProgress, watch: EngineWatch) -> tuple[EnvironmentPlan, str]:
            plan = self.maker.plan(folder, asked, self._kept, name=name, try_engine=False)
            if plan.kind is PlanKind.HOST:
                return plan, ""
            return plan, self.maker.key(folder, plan, LOCAL_ONLY, watch) or plan.image

        plan, key = await self._watched(look, on_progress)
        if plan.kind is PlanKind.HOST:
            return plan, None
        # Nobody waits for others' builds who has an image, and nobody builds it twice.
        image = await asyncio.to_thread(self._found, key)
        if image is not None:
            return plan, image
        if asked.only_ready:
            why = f"{HOST}the image of {plan.path} is not there yet. {BUILD.format(folder)}"
            return EnvironmentPlan(PlanKind.HOST, why, plan.path), None

        work = partial(self._make, folder, plan)

        def tell_build(step: Progress) -> None:
            on_progress(replace(step, building=plan.path))

        def engine() -> EnvironmentPlan:
            """With an engine that was tried: until now it was taken for granted."""
            return self.maker.plan(folder, asked, self._kept, name=name)

        async with self.locks.alone(key):
            if asked.unasked:
                self._check_failed(key)
            image = await asyncio.to_thread(self._found, key)
            if image is not None:
                return plan, image
            begun = time.monotonic()
            if (tried := await asyncio.to_thread(engine)).kind is PlanKind.HOST:
                if time.monotonic() - begun > SLOW_S:
                    self._remember(key, EngineUnavailable(tried.why.removeprefix(HOST)))
                return tried, None
            try:
                tell_build(Progress("image", 0, 0))
                return plan, await self._work(LOCAL, work, tell_build)
            except (EngineUnavailable, ImageNotInEngine):
                # It has gone meanwhile: whoever asked for it is told why.
                if (tried := await asyncio.to_thread(engine)).kind is not PlanKind.HOST:
                    raise
                return tried, None
            except (ImageBuildFailed, EngineTimeout) as error:
                self._remember(key, error)
                raise

    def _remember(self, key: str, error: CarrelError) -> None:
        self.failed[key] = FailedBuild(error, time.monotonic())
        while len(self.failed) > MOST_FAILED:
            del self.failed[next(iter(self.failed))]

    def _check_failed(self, key: str) -> None:
        """Raises what was raised then."""
        failed = self.failed.get(key)
        if failed is not None and time.monotonic() - failed.at < AGAIN_S:
            raise failed.error.with_traceback(None)
        self.failed.pop(key, None)

    async def services_of(
        self, folder: Path, asked: PlanRequest, plan: EnvironmentPlan, on_progress: OnProgress
    ) -> tuple[StackPlan, tuple[PlannedService, ...]]:
        """For a space of the owner's with this plan: the services of its project, and their images.
        Raises what `build` does."""
        stack = await asyncio.to_thread(self.maker.stack, folder, asked, plan, self._kept)
        planned = []
        for spec in stack.services:
            kind = PlanKind.IMAGE if spec.build is None else PlanKind.BUILD
            path = "" if spec.build is None else spec.build.dockerfile
            of_one = EnvironmentPlan(kind, "", path, spec.image, spec.build)

            def look(
                _tell: OnProgress, watch: EngineWatch, of_one: EnvironmentPlan = of_one
            ) -> str:
                return self.maker.key(folder, of_one, LOCAL_ONLY, watch) or of_one.image

            key = await self._watched(look, on_progress)
            image = await self._of_service(folder, of_one, key, on_progress)
            planned.append(PlannedService(spec, image.image_id))
        return stack, tuple(planned)

    def _make(
        self, folder: Path, plan: EnvironmentPlan, tell: OnProgress, watch: EngineWatch
    ) -> RootImage:
        with self.maker.make(folder, plan, LOCAL_ONLY, self._kept, watch) as made:
            return self._keep(made, "", f"built from {plan.path}", tell)

    async def _of_service(
        self, folder: Path, plan: EnvironmentPlan, key: str, on_progress: OnProgress
    ) -> RootImage:
        async with self.locks.alone(key):
            image = await asyncio.to_thread(self._found, key)
            if image is not None:
                return image
            return await self._work(LOCAL, partial(self._make, folder, plan), on_progress)

    async def nearby(self, name: str, on_progress: OnProgress) -> RootImage:
        """For a space of the owner's: kept already, or taken from one of the owner's engines; no
        registry is asked. Raises `ImageNotFound`, and what `pull` raises."""
        try:
            return await self.get(name)
        except ImageNotFound as error:
            missing = error

        def work(tell: OnProgress, watch: EngineWatch) -> RootImage:
            with self.maker.fetch(name, LOCAL_ONLY, watch) as made:
                return self._keep(made, "", f"the image {name}", tell)

        try:
            return await self._work(LOCAL, work, on_progress)
        except (EngineUnavailable, EnvironmentRefused, ImageNotInEngine):
            hint = f"`carrel image ls` lists images; `carrel image pull {name}` fetches one."
            raise ImageNotFound(missing.message, hint=hint) from None

    async def pull(
        self,
        caller: Caller,
        image: str,
        name: str,
        options: BuildOptions,
        on_progress: OnProgress = ignore_progress,
    ) -> RootImage:
        """Raises what `take` and `ImageMaker` raise."""
        require_admin(caller)

        def work(tell: OnProgress, watch: EngineWatch) -> RootImage:
            with self.maker.fetch(image, options, watch) as made:
                return self._keep(made, name, f"the image {image}", tell)

        return await self._work(caller, work, on_progress)

    def _keep(self, made: MadeImage, name: str, shown: str, tell: OnProgress) -> RootImage:
        if made.archive is None:
            image = self.images.get(made.name)
        else:
            image = self.images.take(ImageImport(made.name, made.archive, shown), tell)
        return self.images.tag(image.image_id, name) if name else image

    def _kept(self, name: str) -> bool:
        return self._found(name) is not None

    def _found(self, name: str) -> RootImage | None:
        try:
            return self.images.get(name)
        except (ImageNotFound, TreeDamaged):
            return None

    async def _work(
        self,
        caller: Caller,
        work: Callable[[OnProgress, EngineWatch], T],
        on_progress: OnProgress,
    ) -> T:
        async with self.slots.of(caller.account):
            return await self._watched(work, on_progress)

    async def _watched(
        self, work: Callable[[OnProgress, EngineWatch], T], on_progress: OnProgress
    ) -> T:
        """In a thread, until the caller goes."""
        given_up = threading.Event()

        def check() -> None:
            if given_up.is_set():
                raise StateConflict("The image was given up.", hint="Begin it again.")

        def tell(step: Progress) -> None:
            check()
            on_progress(step)

        def hear(line: str) -> None:
            tell(Progress(line[:LINE], 0, 0))

        try:
            return await asyncio.to_thread(work, tell, EngineWatch(hear, check))
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def list(self) -> list[RootImage]:
        return await asyncio.to_thread(self.images.list)

    async def get(self, image: str) -> RootImage:
        """Raises `ImageNotFound`, `TreeDamaged`."""
        return await asyncio.to_thread(self.images.get, image)

    async def remove(self, caller: Caller, image: str) -> RootImage:
        """Raises `ImageNotFound`, `ImageInUse`."""
        require_admin(caller)
        return await asyncio.to_thread(self.images.remove, image)

    async def prune(
        self, caller: Caller, budget: int | None, *, dry_run: bool
    ) -> tuple[RootImage, ...]:
        require_admin(caller)
        return await asyncio.to_thread(self.images.prune, budget, pretend=dry_run)


def check_source(path: str) -> str:
    """The daemon's working folder is nobody's. Raises `ImageInvalid`."""
    try:
        whole = os.path.isabs(os.fsencode(path)) and "\0" not in path
    except UnicodeEncodeError:
        whole = False
    if not whole:
        raise ImageInvalid(
            f"{path!r} is no absolute path.", hint="Give the whole path of the archive or folder."
        )
    return path
