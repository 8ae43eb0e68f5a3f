"""The plan of a project's environment: what was asked for, or the first rule that gives an image.

What a person asks for and cannot be had is an error. When nobody asked, the host's toolchain is
taken instead, and the plan says why.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.environments import (
    EnvironmentReport,
    Feature,
    Image,
    ReadFiles,
    Rule,
    Variable,
)
from carrel.domain.errors import EnvironmentRefused
from carrel.domain.plans import (
    HOST,
    DroppedRequest,
    EnvironmentPlan,
    ImageMeans,
    PlanKind,
    PlanRequest,
)
from carrel.environments.compose import read_stack
from carrel.environments.devcontainer import (
    devcontainer_config,
    devcontainer_places,
    read_devcontainer,
)
from carrel.environments.discovery import inspect_files
from carrel.environments.dockerfile import ContainerFound, dockerfile_found
from carrel.environments.engines.features import is_feature
from carrel.environments.files import MalformedFile, ProjectReader, open_folder
from carrel.environments.programs import HostPrograms
from carrel.environments.vetting import Vetting

PULL = "Fetch it with `carrel image pull {}`, or import an archive of it."
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".oci", ".docker")


def plan_project(
    root: Path, request: PlanRequest, means: ImageMeans, *, name: str = ""
) -> EnvironmentPlan:
    """Reads files and runs nothing. `name` is the project's, where the folder has another. Raises
    `EnvironmentRefused`, and what `inspect_project` raises."""
    with open_folder(root) as files:
        name = name or Path(os.path.abspath(root)).name
        return plan_files(files, request, means, name=name)


def plan_files(
    files: ReadFiles, request: PlanRequest, means: ImageMeans, *, name: str = "project"
) -> EnvironmentPlan:
    """As `plan_project`; `name` is that of the project's folder."""
    return _Planning(ProjectReader(files), files, request, means, name).plan()


@dataclass(frozen=True)
class _Planning:
    reader: ProjectReader
    files: ReadFiles
    request: PlanRequest
    means: ImageMeans
    name: str

    def plan(self) -> EnvironmentPlan:
        asked = self.request
        named = [bool(asked.dockerfile), asked.by_devcontainer or bool(asked.devcontainer)]
        named.append(asked.image != "auto")
        if sum(named) > 1:
            raise EnvironmentRefused(
                "An image, a Dockerfile and a devcontainer.json were named at once.",
                hint="Say one of --image, --dockerfile and --devcontainer.",
            )
        if asked.dockerfile:
            return self._dockerfile(inside(asked.dockerfile))
        if asked.devcontainer or asked.by_devcontainer:
            return self._devcontainer(asked.devcontainer)
        if asked.image == "none":
            return EnvironmentPlan(PlanKind.HOST, "No image was asked for.")
        if asked.image != "auto":
            return self._named(asked.image)
        return self._automatic()

    # What was asked for

    def _named(self, image: str) -> EnvironmentPlan:
        place = Path(image).expanduser()
        looks_like_path = image.startswith(("/", "./", "../", "~")) or image.endswith(ARCHIVES)
        if looks_like_path:
            if place.is_dir():
                return EnvironmentPlan(
                    PlanKind.FOLDER, f"The folder {image} was asked for.", str(place.absolute())
                )
            if place.is_file():
                return EnvironmentPlan(
                    PlanKind.ARCHIVE, f"The archive {image} was asked for.", str(place.absolute())
                )
            raise EnvironmentRefused(
                f"There is no archive and no folder {image}.", hint="Check the path."
            )
        return EnvironmentPlan(
            PlanKind.IMAGE, f"The image {image} was asked for.", image=image, may_pull=True
        )

    def _dockerfile(self, path: str) -> EnvironmentPlan:
        found = dockerfile_found(self.reader, path) if self.reader.exists(path) else None
        if found is None:
            raise self._unusable(path, "Dockerfile")
        self._need_engine(path)
        return self._of(found)

    def _devcontainer(self, path: str) -> EnvironmentPlan:
        places = [inside(path)] if path else list(devcontainer_places(self.reader))
        for place in places:
            for candidate in (place, posixpath.join(place, "devcontainer.json")):
                if self.reader.exists(candidate):
                    found = read_devcontainer(self.reader, candidate)
                    if found is None:
                        raise self._unusable(candidate, "devcontainer.json")
                    found, problem = self._with_service(found)
                    problem = problem or self._problem(found)
                    if problem:
                        raise EnvironmentRefused(
                            f"{candidate} {problem}", hint="Name an image with --image."
                        )
                    if found.image is not None and found.image.build is not None:
                        self._need_engine(candidate)
                    return replace(self._of(found), may_pull=True)
        raise self._unusable(path or ".devcontainer/devcontainer.json", "devcontainer.json")

    def _unusable(self, path: str, kind: str) -> EnvironmentRefused:
        notes = [note for note in self.reader.notes if note.path == path]
        why = " ".join(note.message for note in notes) or "It is not there."
        return EnvironmentRefused(
            f"{path} is no {kind} that can be used. {why}",
            hint="Name a file inside the project, or an image with --image.",
        )

    def _need_engine(self, path: str) -> None:
        answer = self.means.engine()
        if not answer.available:
            raise EnvironmentRefused(
                f"{path} must be built, and nothing here can build it. {answer.reason}",
                hint=answer.remedy or "Install podman, or name an image with --image.",
            )

    # What the files say

    def _automatic(self) -> EnvironmentPlan:
        report = inspect_files(self.files, HostPrograms(""))
        if report.decided.rule is Rule.DOCKERFILE:
            found = dockerfile_found(self.reader, report.decided.path)
        elif report.decided.rule is Rule.DEVCONTAINER:
            found = read_devcontainer(self.reader, report.decided.path)
        else:
            return self._by_language(report)
        if found is None:  # It is read a second time; between, it may have changed.
            return EnvironmentPlan(PlanKind.HOST, "The project's files are changing.")
        found, problem = self._with_service(found)
        why = f"{found.match.path} {problem}" if problem else self._missing(found)
        plan = self._of(found)
        if not why:
            return plan
        # Its variables may name what only the image has; its hooks were written for it too, but
        # set up the project.
        host = f"{HOST}{why}"
        return EnvironmentPlan(
            PlanKind.HOST, host, plan.path, hooks=plan.hooks, ports=plan.ports, dropped=plan.dropped
        )

    def _missing(self, found: ContainerFound) -> str:
        """Why it cannot be had without asking anybody; empty: it can."""
        problem = self._problem(found)
        if problem:
            return f"{found.match.path} {problem}"
        image = found.image
        assert image is not None
        if image.build is not None:
            answer = self.means.engine()
            return "" if answer.available else f"{found.match.path} must be built. {answer.reason}"
        if self.means.has(image.reference):
            return ""
        return f"the image {image.reference} is not here. {PULL.format(image.reference)}"

    def _by_language(self, report: EnvironmentReport) -> EnvironmentPlan:
        """No file of the project names this image. So it counts only when a person has given it to
        Carrel, not when some engine happens to have it."""
        image, path = report.image.reference, report.decided.path
        shared = {"path": path, "hooks": report.setup}
        if path and image and self.means.keeps(image):
            why = f"{report.decided.why} The image {image} is here."
            return EnvironmentPlan(PlanKind.IMAGE, why, image=image, **shared)  # type: ignore[arg-type]
        why = f"{report.decided.why} The host's toolchain is used."
        return EnvironmentPlan(PlanKind.HOST, why, **shared)  # type: ignore[arg-type]

    def _with_service(self, found: ContainerFound) -> tuple[ContainerFound, str]:
        """With the image of the service that a devcontainer.json names, and why there is none."""
        image = found.image
        if image is None or image.compose is None:
            return found, ""
        name, path = image.compose.service, found.match.path
        try:
            stack = read_stack(self.reader, image.compose.files, self.request.variables)
            spec = stack.services.get(name)
        except MalformedFile as error:
            return found, f"names compose files that cannot be used: {error.message}"
        if spec is None or not (spec.image or spec.build):
            return found, f"names the service {name[:80]}, which has no image in its compose files."
        variables = tuple(Variable(key, text, path) for key, text in spec.environment.items())
        own = {one.name for one in found.variables}
        kept = tuple(one for one in variables if one.name not in own)
        resolved = replace(
            image, reference=spec.image, build=spec.build, user=image.user or spec.user
        )
        return replace(found, image=resolved, variables=(*kept, *found.variables)), ""

    def _problem(self, found: ContainerFound) -> str:
        """Why no image comes of a file, to be read after its name; empty: one does."""
        image = found.image
        if image is None:
            return "names no image and no Dockerfile that is inside the project."
        if image.build is not None and not self.reader.exists(image.build.dockerfile):
            return f"names the Dockerfile {image.build.dockerfile}, which is not there."
        if image.build is None and "${" in image.reference:
            return f"names the image {image.reference}, which depends on your variables."
        return ""

    def _of(self, found: ContainerFound) -> EnvironmentPlan:
        image = found.image or Image()
        plan = EnvironmentPlan(
            PlanKind.BUILD if image.build is not None else PlanKind.IMAGE,
            found.match.why,
            found.match.path,
            image.reference,
            image.build,
            image.features,
            user=image.user,
            folder=image.folder,
            variables=found.variables,
            hooks=found.setup,
            ports=found.ports,
        )
        if found.match.rule is not Rule.DEVCONTAINER:
            return plan
        config = devcontainer_config(self.reader, found.match.path) or {}
        vetted = Vetting(found.match.path, config, self.name).vet(
            image.folder, found.variables, found.setup
        )
        features, dropped = self._features(plan)
        return replace(
            plan,
            user=image.user or vetted.user,
            folder=vetted.folder,
            variables=vetted.variables,
            hooks=vetted.hooks,
            mounts=vetted.mounts,
            kind=PlanKind.BUILD if features else plan.kind,
            features=features,
            dropped=(*vetted.dropped, *dropped),
        )

    def _features(self, plan: EnvironmentPlan) -> tuple[tuple[Feature, ...], list[DroppedRequest]]:
        """Those that can be added, and why not the others."""
        if not plan.features:
            return (), []
        answer = self.means.features()
        kept, dropped = [], []
        for feature in plan.features:
            what = f"features: {feature.reference}"[:200]
            if not answer.available:
                dropped.append(DroppedRequest(what, answer.reason))
            elif not is_feature(feature.reference):
                dropped.append(
                    DroppedRequest(what, "it is neither beside the file nor of a registry")
                )
            else:
                kept.append(feature)
        return tuple(kept), dropped


def inside(path: str) -> str:
    """A path of the project, as a person gave it. Raises `EnvironmentRefused`."""
    clean = posixpath.normpath(path)
    if clean.startswith(("/", "../")) or clean == ".." or "\0" in clean:
        raise EnvironmentRefused(
            f"{path!r} is not inside the project.", hint="Give a path relative to the project."
        )
    return clean
