"""Images for projects: planned, and built once for each content."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.engines import (
    BuildOptions,
    EngineFound,
    EngineWatch,
    ImageBuild,
    MadeImage,
)
from carrel.domain.environments import Build
from carrel.domain.errors import EngineUnavailable, EnvironmentRefused, ImageNotInEngine
from carrel.domain.plans import EnvironmentPlan, PlanKind, PlanRequest
from carrel.domain.services import StackPlan
from carrel.environments.engines.catalogue import Engines, check_image_name
from carrel.environments.engines.contents import build_key
from carrel.environments.engines.staging import stage_project
from carrel.environments.files import ProjectReader, open_folder
from carrel.environments.plans import plan_project
from carrel.environments.stacks import plan_stack

Kept = Callable[[str], bool]


@dataclass(frozen=True)
class EngineMeans:
    """An `ImageMeans`: what is kept by Carrel, and what engines have."""

    engines: Engines
    kept: Kept
    tried: bool = True
    """Else an engine is taken to be there."""

    def engine(self) -> Availability:
        if not self.tried:
            return Availability(True, "")
        try:
            return Availability(True, self.engines.best().probe().reason)
        except EngineUnavailable as error:
            return Availability(False, error.message, error.hint)

    def features(self) -> Availability:
        return self.engines.features()

    def keeps(self, image: str) -> bool:
        return self.kept(image)

    def has(self, image: str) -> bool:
        if self.kept(image):
            return True
        try:
            return self.engines.holder(image) is not None
        except EnvironmentRefused:
            return False


@dataclass(frozen=True)
class ProjectImages:
    """An `ImageMaker`."""

    engines: Engines

    def found(self) -> tuple[EngineFound, ...]:
        return self.engines.found()

    def plan(
        self,
        project: Path,
        request: PlanRequest,
        kept: Kept,
        *,
        name: str = "",
        try_engine: bool = True,
    ) -> EnvironmentPlan:
        means = EngineMeans(self.engines, kept, try_engine)
        return plan_project(project, request, means, name=name)

    def stack(
        self, project: Path, request: PlanRequest, plan: EnvironmentPlan, kept: Kept
    ) -> StackPlan:
        return plan_stack(project, request, plan, EngineMeans(self.engines, kept))

    @contextlib.contextmanager
    def make(
        self,
        project: Path,
        plan: EnvironmentPlan,
        options: BuildOptions,
        kept: Kept,
        watch: EngineWatch,
    ) -> Iterator[MadeImage]:
        if plan.kind is PlanKind.IMAGE:
            with self.fetch(plan.image, options, watch) as made:
                yield made
            return
        if plan.build is None and not plan.features:
            raise EnvironmentRefused(
                f"There is nothing to build. {plan.why}",
                hint="Name a file with --dockerfile or --devcontainer.",
            )
        with self.engines.workspace() as work:
            copy = work / "project"
            stage_project(project, copy, watch.check)
            build = _build(copy, plan, options)
            name = _name(build)
            if kept(name):
                yield MadeImage(name, None)
                return
            with self.engines.build(build, watch, engine=options.engine) as stream:
                yield MadeImage(name, stream)

    def key(
        self, project: Path, plan: EnvironmentPlan, options: BuildOptions, watch: EngineWatch
    ) -> str:
        if plan.build is None and not plan.features:
            return ""
        watch.check()
        return _name(_build(project, plan, options))

    def definition(self, project: Path, plan: EnvironmentPlan) -> str:
        if plan.build is None:
            return ""
        with open_folder(project) as files:
            return ProjectReader(files).text(plan.build.dockerfile) or ""

    @contextlib.contextmanager
    def fetch(self, name: str, options: BuildOptions, watch: EngineWatch) -> Iterator[MadeImage]:
        check_image_name(name)
        with contextlib.ExitStack() as stack:
            try:
                if options.anew:
                    raise ImageNotInEngine(name)
                stream = stack.enter_context(self.engines.save(name, watch))
            except ImageNotInEngine:
                if options.local:
                    raise
                pulled = self.engines.pull(name, watch, engine=options.engine)
                stream = stack.enter_context(pulled)
            yield MadeImage(name, stream)


def _name(build: ImageBuild) -> str:
    return f"carrel-build:{build_key(build)[:40]}"


def _build(project: Path, plan: EnvironmentPlan, options: BuildOptions) -> ImageBuild:
    asked = plan.build or Build("")
    build = ImageBuild(
        project,
        asked.dockerfile,
        asked.context,
        options.target or asked.target,
        {**asked.args, **options.args},
        options.network,
    )
    if not plan.features:
        return build
    image = "" if plan.build is not None else plan.image
    return replace(build, features=plan.features, configuration=plan.path, image=image)
