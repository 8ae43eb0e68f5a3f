"""The services of a space: which of a project's compose files it has, decided beside its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.environments import Compose, ReadFiles
from carrel.domain.errors import EnvironmentRefused
from carrel.domain.plans import DroppedRequest, EnvironmentPlan, ImageMeans, PlanRequest
from carrel.domain.services import MountKind, ServiceSpec, StackPlan
from carrel.environments.compose import ComposeStack, own_compose_files, read_stack
from carrel.environments.compose_vetting import TAKEN
from carrel.environments.devcontainer import read_devcontainer
from carrel.environments.files import MalformedFile, ProjectReader, open_folder
from carrel.environments.plans import PULL, inside

OUT = "Mend the file, or leave the services out: --services none"
NO_FILE = "There is no compose file in the project: compose.yaml, or docker-compose.yml."


def plan_stack(
    root: Path, request: PlanRequest, plan: EnvironmentPlan, means: ImageMeans
) -> StackPlan:
    """For a space with this image. Reads files and runs nothing. Raises `EnvironmentRefused` where
    somebody asked for services that cannot be had, and what reading a project raises."""
    with open_folder(root) as files:
        return plan_services(files, request, plan, means)


def plan_services(
    files: ReadFiles, request: PlanRequest, plan: EnvironmentPlan, means: ImageMeans
) -> StackPlan:
    """As `plan_stack`."""
    return _StackPlanning(ProjectReader(files), request, plan, means).plan()


@dataclass(frozen=True)
class _StackPlanning:
    reader: ProjectReader
    request: PlanRequest
    plan_of_image: EnvironmentPlan
    means: ImageMeans

    def plan(self) -> StackPlan:
        if self.request.services == "none":
            return StackPlan()
        strict = bool(self.request.services) or not self.request.automatic
        compose = self._chosen(strict)
        if compose is None:
            return StackPlan()
        try:
            found = self._found(compose)
            missing = next(filter(None, map(self._missing, found.services)), "")
            hint = "Leave the services out: --services none"
        except MalformedFile as error:
            found, hint = StackPlan(files=compose.files), OUT
            missing = f"{', '.join(compose.files)} cannot be used: {error.message}"
        if missing and strict:
            raise EnvironmentRefused(missing[:500], hint=hint)
        if missing:
            return StackPlan((), f"No services run: {missing}"[:500], found.files)
        return found

    def _chosen(self, strict: bool) -> Compose | None:
        """The files, and the service that `dev` stands for."""
        asked = self.request.services
        if asked not in ("", "auto"):
            return Compose((inside(asked),), "")
        path = self.plan_of_image.path
        if path.endswith(".json"):
            described = read_devcontainer(self.reader, path)
            image = None if described is None else described.image
            if image is not None and image.compose is not None:
                return image.compose
        files = own_compose_files(self.reader)
        if asked and not files:
            raise EnvironmentRefused(NO_FILE, hint="Name one: --services PATH")
        by_image = self.request.automatic and self.request.image == "auto"
        return Compose(files, "") if files and (asked or by_image) else None

    def _found(self, compose: Compose) -> StackPlan:
        stack = read_stack(self.reader, compose.files, self.request.variables)
        dev = compose.service or self._own(stack)
        chosen = stack.chosen(compose.started, dev)
        dropped = [
            one for one in stack.dropped if _is_of(one, {dev, *(x.name for x in chosen)}, stack)
        ]
        for one in chosen:
            if one.name in TAKEN:
                raise MalformedFile(f"A service cannot be named {one.name}: spaces have one.")
        variables: Mapping[str, str] = {}
        if dev:
            spec = stack.services[dev]
            variables = {} if compose.service else spec.environment
            dropped += [
                DroppedRequest(f"{dev}: volumes: {mount.target}", "dev has a system of its own")
                for mount in spec.mounts
                if mount.kind is MountKind.VOLUME
            ]
        return StackPlan(
            chosen, _why(chosen, compose.files, dev), compose.files, variables, tuple(dropped)
        )

    def _own(self, stack: ComposeStack) -> str:
        """The service that is built as the space's own image is."""
        build = self.plan_of_image.build
        for name, spec in stack.services.items():
            if build is not None and spec.build is not None:
                same = replace(spec.build, args=build.args) == build
                if same:
                    return name
        return ""

    def _missing(self, spec: ServiceSpec) -> str:
        """Why its image cannot be had; empty: it can."""
        name, build = f"the service {spec.name}", spec.build
        if build is not None and not self.reader.exists(build.dockerfile):
            return f"{name} is built by {build.dockerfile}, which is not there."
        if build is not None:
            answer = self.means.engine()
            return "" if answer.available else f"{name} must be built. {answer.reason}"
        if not spec.image:
            return f"{name} names no image."
        try:
            there = self.means.has(spec.image)
        except EnvironmentRefused as error:
            return f"{name}: {error.message}"
        return "" if there else f"the image {spec.image} of {name} is not here. {_pull(spec.image)}"


def _pull(image: str) -> str:
    return PULL.format(image)


def _is_of(dropped: DroppedRequest, names: set[str], stack: ComposeStack) -> bool:
    """What is said of a service that does not run is of no use to anybody."""
    name = dropped.what.partition(": ")[0]
    return name not in stack.services or name in names


def _why(chosen: tuple[ServiceSpec, ...], files: tuple[str, ...], dev: str) -> str:
    names = ", ".join(one.name for one in chosen) or "none"
    also = f" Its service {dev} is dev." if dev else ""
    return f"Services of {', '.join(files)}: {names}.{also}"
