"""Environments of new spaces: the image that was asked for, or that the project's files describe,
is there before anything of the space is made; the project's own commands run before others have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.domain.access import LOCAL
from carrel.domain.environments import SetupCommand, SetupStage
from carrel.domain.errors import (
    CarrelError,
    EnvironmentRefused,
    ImageBuildFailed,
    SetupFailed,
    SpaceInvalid,
    SpaceNotFound,
)
from carrel.domain.images import RootImage
from carrel.domain.plans import HOST, EnvironmentPlan, PlanKind, PlanRequest
from carrel.domain.projects import OnProgress, ProjectKind, ignore_progress
from carrel.domain.runtimes import Network
from carrel.domain.services import PlannedService, StackPlan
from carrel.domain.spaces import Space, SpaceRequest
from carrel.domain.systems import SpaceEnvironment
from carrel.service.creation import Creator
from carrel.service.images import ImageLibrary
from carrel.service.journal import Journal
from carrel.service.space_config import write_plan
from carrel.service.space_requests import check_environment, check_services, check_systems

if TYPE_CHECKING:
    from carrel.service.setup import Setups
    from carrel.service.spaces import Spaces

MOST_NOTES = 20
"""Of what a hostile file asks for, nobody reads more."""
MOST_HOOKS = 100
MOST_LINES = 10
LINE = 500
SEE_BUILD = "`carrel image build` tries it again and says all; `--image none` leaves it out."
SET_UP = "The space is there, but it was not set up as its project says."
OPEN = (
    "They do not run, because the space has the machine's own network, where everybody on it could"
    " reach them: --services auto runs them all the same."
)
UNASKED = "They do not run unless you ask for them: --services auto"
SHARED = (
    "The space has the machine's own network: its services listen there, and other programs and"
    " spaces can reach them, or have their ports already."
)
NO_PLAN = EnvironmentPlan(PlanKind.HOST, "")


@dataclass(frozen=True)
class SpaceEnvironments:
    library: ImageLibrary
    creator: Creator
    spaces: Spaces
    journal: Journal
    setups: Setups
    usual: str = "auto"
    """What new spaces of folders have that say nothing: none or auto."""

    async def found(self, request: SpaceRequest, on_progress: OnProgress) -> SpaceRequest:
        """With its environment, which is built if need be. When the caller goes, the build
        ends, and nothing is left of it. Raises what `ImageLibrary.build` raises, `ImageNotFound`,
        `SpaceInvalid`; what nobody asked for and cannot be had is no error, and then nobody is kept
        from working by what fails."""
        asked = self._asked(request)
        if request.environment is not None or (asked is None and not request.services):
            return request
        asked = asked or PlanRequest("none")
        asked = dataclasses.replace(asked, services=request.services, variables=request.env)
        found, plan = await self._with_image(request, asked, on_progress)
        if request.guest or request.services == "none":
            return found
        try:
            return await self._with_services(found, asked, plan, on_progress)
        except CarrelError:
            if not asked.unasked or asked.services:
                raise
            # Nobody asked for them, and they would not run: there is nothing to say.
            return found

    async def _with_image(
        self, request: SpaceRequest, asked: PlanRequest, on_progress: OnProgress
    ) -> tuple[SpaceRequest, EnvironmentPlan]:
        if asked.image == "none" and not _by_file(asked):
            return dataclasses.replace(request, environment=SpaceEnvironment()), NO_PLAN
        if request.guest:
            # What it may name is there already.
            return request, NO_PLAN
        # Beside one of the files, a name is what a plan refuses.
        if asked.image not in ("auto", "none") and not _by_file(asked):
            return await self._named(request, on_progress), NO_PLAN
        try:
            runtime = await self.creator.machine.runtime(request.runtime)
            check_systems(runtime)
        except SpaceInvalid as error:
            if asked.automatic:
                return _without(request, HOST + _small(error.message)), NO_PLAN
            raise
        if runtime.capabilities.needs_image:
            asked = dataclasses.replace(asked, unasked=False)
        try:
            return await self._planned(request, asked, on_progress)
        except CarrelError as error:
            if not asked.unasked:
                raise
            return _without(request, *_failure(error)), NO_PLAN

    async def _with_services(
        self,
        request: SpaceRequest,
        asked: PlanRequest,
        plan: EnvironmentPlan,
        on_progress: OnProgress,
    ) -> SpaceRequest:
        """Those that go along with an image of the project's files, or were asked for."""
        by_files = asked.image == "auto" or _by_file(asked)
        if not (asked.services or by_files):
            return request
        strict = bool(asked.services) or not asked.automatic
        try:
            check_services(await self.creator.machine.runtime(request.runtime))
        except SpaceInvalid:
            if not asked.services:
                return request
            raise
        folder = await self._folder(request, on_progress)
        if folder is None:
            if asked.services:
                raise EnvironmentRefused(
                    "There are no files of a project, and so no compose file.",
                    hint="Leave the services out: --services none",
                )
            return request
        if asked.unasked and not asked.services:
            return await self._left_out(request, folder, asked, plan, UNASKED)
        if request.network is not Network.NONE and not strict:
            return await self._left_out(request, folder, asked, plan, OPEN)
        stack, planned = await self.library.services_of(folder, asked, plan, on_progress)
        if not stack.why:
            return request
        return _served(request, stack, planned)

    async def _left_out(
        self,
        request: SpaceRequest,
        folder: Path,
        asked: PlanRequest,
        plan: EnvironmentPlan,
        why: str,
    ) -> SpaceRequest:
        """What nobody asked for takes no memory, and does not listen on the machine's addresses."""
        maker, kept = self.library.maker, lambda _name: True
        stack = await asyncio.to_thread(maker.stack, folder, asked, plan, kept)
        if not stack.services:
            return request
        note = f"{stack.why} {why}"
        return _served(request, dataclasses.replace(stack, why=note, dropped=()), ())

    def _asked(self, request: SpaceRequest) -> PlanRequest | None:
        files = (request.dockerfile, request.devcontainer, request.by_devcontainer)
        if request.image or any(files):
            return PlanRequest(request.image or "auto", *files)
        of_others = request.parent or request.base_id or request.place or request.transient
        folder = request.project.kind is ProjectKind.FOLDER
        wanted = self.usual == "auto" and folder and not of_others
        return PlanRequest(unasked=True, only_ready=request.unwatched) if wanted else None

    async def _named(self, request: SpaceRequest, on_progress: OnProgress) -> SpaceRequest:
        name = request.image
        if name.startswith("/"):
            return request
        check_systems(await self.creator.machine.runtime(request.runtime))
        image = await self.library.nearby(name, on_progress)
        return dataclasses.replace(request, environment=SpaceEnvironment(image.image_id, name))

    async def _planned(
        self, request: SpaceRequest, asked: PlanRequest, on_progress: OnProgress
    ) -> tuple[SpaceRequest, EnvironmentPlan]:
        folder = await self._folder(request, on_progress)
        if folder is None:
            if asked.automatic:
                why = HOST + "there are no files of a project to look at."
                return _without(request, why), NO_PLAN
            raise EnvironmentRefused(
                "There are no files of a project to build from.",
                hint="Name an image with --image, or build one first: carrel image build",
            )
        name = os.path.basename(request.project.location.rstrip("/")).removesuffix(".git")
        plan, image = await self.library.of_project(folder, name, asked, on_progress)
        if image is None:
            hooks = any(one.step for one in plan.hooks)
            more = (f"The commands of {plan.path} were not run.",) if hooks else ()
            # Nothing is to be said of files of which none asks for anything.
            silent = asked.unasked and not plan.path
            return _without(request, *() if silent else (plan.why, *more)), plan
        text = await asyncio.to_thread(self.library.maker.definition, folder, plan)
        environment = _environment(plan, image, request)
        environment = dataclasses.replace(environment, plan=plan, definition=text)
        if asked.unasked:
            # A user that it does not have would be an error later, when the space is made.
            user = environment.user or image.config.user
            await asyncio.to_thread(self.creator.systems.account, image.folder, user)
            environment = dataclasses.replace(environment, unasked=True)
        return dataclasses.replace(request, environment=environment), plan

    async def _folder(self, request: SpaceRequest, on_progress: OnProgress) -> Path | None:
        """With the files of the project, as far as they are in one folder."""
        project = request.project
        if project.kind is ProjectKind.FOLDER and not request.base_id:
            return Path(project.location)
        if project.kind is ProjectKind.EMPTY and not request.base_id:
            return None
        base = await self.creator.found_base(request, on_progress)
        return base.layers[0] if len(base.layers) == 1 else None

    async def write_down(self, space: Space, request: SpaceRequest) -> None:
        """For people to read, in the folder of a space that was made."""
        if (found := request.environment) is not None and found.plan is not None:
            folder = self.creator.open_spaces.folder(space.space_id)
            await asyncio.to_thread(write_plan, folder, space, found)

    async def set_up(self, space: Space, request: SpaceRequest, on_progress: OnProgress) -> Space:
        """Runs the project's commands in a space that was made with `waiting`, which others have
        afterwards. Raises `SetupFailed`; the space is gone then, unless nobody asked for them."""
        found, notes = request.environment, space.image_notes
        try:
            for commands in _steps(request, space):
                await self._side_by_side(space, commands, on_progress)
        except BaseException as error:
            if isinstance(error, SetupFailed) and found is not None and found.unasked:
                notes = (*notes, SET_UP, *_lines(error.message))
            else:
                # Its owner may have given it up.
                with contextlib.suppress(SpaceNotFound):
                    await asyncio.shield(self.spaces.remove(LOCAL, space.space_id, force=True))
                raise
        ready = self.journal.amend(
            space.space_id,
            transient=request.transient,
            setting_up=request.setting_up,
            image_notes=notes,
        )
        await self.journal.write(ready)
        return ready

    async def started(self, space: Space) -> None:
        """Runs what the project wants at every start. Raises `SetupFailed`; the space stays, for
        somebody to see why."""
        hooks = space.image.at_start if space.image else ()
        for _step, commands in groupby(hooks, lambda one: one.step):
            await self._side_by_side(space, list(commands), ignore_progress)

    async def _side_by_side(
        self, space: Space, commands: list[SetupCommand], on_progress: OnProgress
    ) -> None:
        """All of them end, also when one fails: what they leave is complete or gone."""
        ended = await asyncio.gather(
            *(self.setups.run_one(space, one, on_progress) for one in commands),
            return_exceptions=True,
        )
        for error in ended:
            if error is not None:
                raise error


def waiting(draft: Space, request: SpaceRequest) -> Space:
    """A space in which commands of the project are to run first: nobody else works in it until
    then, and nothing is kept of it when it goes."""
    if request.setting_up or not any(_steps(request, draft)):
        return draft
    return dataclasses.replace(draft, transient=True, setting_up=True)


def _steps(request: SpaceRequest, space: Space) -> Iterator[list[SetupCommand]]:
    """One after the other. Those that have run for its base do not run again."""
    found = request.environment
    if found is None or request.setting_up:
        return
    for stage in (SetupStage.CREATE, SetupStage.START):
        if stage is SetupStage.CREATE and space.setup:
            continue
        hooks = [one for one in found.hooks if one.stage is stage]
        for _step, commands in groupby(hooks, lambda one: one.step):
            yield list(commands)


def _by_file(asked: PlanRequest) -> bool:
    return bool(asked.dockerfile or asked.devcontainer or asked.by_devcontainer)


def _without(request: SpaceRequest, *notes: str) -> SpaceRequest:
    return dataclasses.replace(request, environment=SpaceEnvironment(notes=notes))


def _environment(
    plan: EnvironmentPlan, image: RootImage, request: SpaceRequest
) -> SpaceEnvironment:
    """Those variables of a Dockerfile that count are the image's own. What is not the file's
    language of references would be taken literally."""
    by_devcontainer = plan.build is None or plan.build.dockerfile != plan.path
    dropped = [f"{one.what} was left out: {one.why}." for one in plan.dropped]
    variables: dict[str, str] = {}
    for one in plan.variables if by_devcontainer else ():
        if one.path != plan.path:
            continue
        try:
            check_environment({**variables, one.name: one.value})
        except SpaceInvalid as error:
            dropped.append(f"{one.name[:80]} was left out: {_small(error.message)}")
            continue
        if "${" in one.value.replace("${containerEnv:", ""):
            dropped.append(f"{one.name} was left out: it refers to what a space has not.")
        else:
            variables[one.name] = one.value
    dropped += [f"{one.target} is a folder of the space's own system." for one in plan.mounts]
    if plan.folder and plan.folder != "/workspace":
        dropped.append(f"The project's files are at /workspace, and not at {plan.folder[:200]}.")
    hooks = [one for one in plan.hooks if one.step and request.run_setup is not False]
    if len(hooks) > MOST_HOOKS:
        raise EnvironmentRefused(f"{plan.path} has more than {MOST_HOOKS} commands.")
    if len(dropped) > MOST_NOTES:
        dropped[MOST_NOTES:] = [f"{len(dropped) - MOST_NOTES} more were left out."]
    what = f"{_what(plan)} ({image.image_id})."
    return SpaceEnvironment(
        image.image_id,
        plan.path or plan.image,
        plan.user,
        variables,
        tuple(hooks),
        tuple(one for one in plan.ports if not one.service),
        (plan.why, what, *dropped),
    )


def _failure(error: CarrelError) -> tuple[str, ...]:
    """What failed that nobody asked for, and how it is seen as a whole."""
    first, *more = _lines(error.message)
    hint = () if isinstance(error, ImageBuildFailed) or not error.hint else (error.hint,)
    return (HOST + _small(first), *more, *hint, SEE_BUILD)


def _lines(message: str) -> list[str]:
    """The first, and the last of what a program has said."""
    first, *said = [line[:LINE] for line in message.splitlines()] or [""]
    return [first, *(f"  {line}" for line in said[-MOST_LINES:])]


def _served(
    request: SpaceRequest, stack: StackPlan, planned: tuple[PlannedService, ...]
) -> SpaceRequest:
    """Beside what was found of its image."""
    before = request.environment or SpaceEnvironment(request.image, request.image)
    dropped = [f"{one.what} was left out: {one.why}." for one in stack.dropped]
    if planned and request.network is not Network.NONE:
        dropped.insert(0, SHARED)
    dropped += _same_ports(planned)
    if len(dropped) > MOST_NOTES:
        dropped[MOST_NOTES:] = [f"{len(dropped) - MOST_NOTES} more were left out."]
    variables = {**stack.variables, **before.variables} if before.image_id else before.variables
    environment = dataclasses.replace(
        before,
        services=planned,
        variables=variables,
        notes=(*before.notes, stack.why, *dropped),
    )
    return dataclasses.replace(request, environment=environment)


def _same_ports(planned: tuple[PlannedService, ...]) -> Iterator[str]:
    owner: dict[int, str] = {}
    for one in planned:
        for port in one.spec.ports:
            other = owner.setdefault(port, one.spec.name)
            if other != one.spec.name:
                yield (
                    f"{other} and {one.spec.name} both name the port {port}: they share one "
                    "network, and only one of them can have it."
                )


def _what(plan: EnvironmentPlan) -> str:
    if plan.kind is PlanKind.BUILD:
        return f"The space runs on the image that {plan.path} builds"
    return f"The space runs on the image {plan.image}"


def _small(sentence: str) -> str:
    """To stand behind other words; names of files stay as they are."""
    first, space, rest = sentence.partition(" ")
    return f"{first.lower()}{space}{rest}" if first in ("The", "A", "An", "No", "It") else sentence
