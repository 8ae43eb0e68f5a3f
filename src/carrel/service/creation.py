"""How a space is made: a base, a tree and a sandbox; each step is written down before and after.
Nothing of a space that could not be made is left: its record says `removed`, and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import posixpath
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from math import inf
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from carrel.api.types.common import shared
from carrel.domain.access import LOCAL
from carrel.domain.collaborators import (
    Bases,
    Disk,
    Downloads,
    HomeFiles,
    Machine,
    Packages,
    Toolchains,
    Users,
)
from carrel.domain.environments import NO_SETTINGS, NO_TOOLS, SetupStage
from carrel.domain.errors import (
    ImageNeeded,
    InsufficientDisk,
    ServiceFailed,
    SpaceInvalid,
    TooManySpaces,
)
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.images import ImageImport, Images, RootImage
from carrel.domain.limits import Limits
from carrel.domain.projects import (
    BaseRequest,
    ClonePolicy,
    OnProgress,
    Project,
    ProjectKind,
)
from carrel.domain.runtimes import EagerRuntime, Network, Runtime
from carrel.domain.services import PlannedService
from carrel.domain.spaces import Space, SpaceRequest, SpaceState
from carrel.domain.store import Record
from carrel.domain.systems import (
    Part,
    SpaceEnvironment,
    SpaceImage,
    SpaceService,
    SystemMounts,
)
from carrel.domain.trees import (
    Base,
    Owner,
    Skipped,
    Tree,
    TreeDriver,
    TreeLayer,
    TreeRequest,
)
from carrel.service.journal import Journal, JournaledOperation, plain
from carrel.service.open_spaces import OpenSpace, OpenSpaces, is_below, own_path, without_project
from carrel.service.services import SpaceServices
from carrel.service.shared import TURN_S, CallerSlots
from carrel.service.space_config import asked_for
from carrel.service.space_requests import check_services, check_systems, name_from, reach_of

OPERATION = "create"
BASE, TREE, FILL, SANDBOX, SERVICES = "base", "tree", "fill", "sandbox", "services"
_SHOWN = 20
"""So many things that a space does not have are named in its record."""
_MOVED = "something kept writing to it; the space has it as it was at one moment"

Fill = Callable[[TreeDriver, Tree, tuple[Part, ...]], None]
"""Puts something into a new tree before anybody sees it; blocking."""
NO_LAYERS: Mapping[str, TreeLayer] = {}
Undo = Callable[[str, JournaledOperation, BaseException], Awaitable[None]]
AGAIN_S = 0.05
"""A base that clean-up removes is out of sight in a moment."""
BLOCK = 4096
"""What the smallest file takes."""
BUILDS = 8
"""Bases at the same time, of callers other than the owner: each has a thread, for as long as a
server takes to send a project."""
BUILDS_OF_ONE = 4
"""Bases of one project at the same time, of one account: all but one of them wait for the first,
and the threads that they would wait in are needed for everything else."""
WORKING = (SpaceState.RUNNING, SpaceState.STOPPING, SpaceState.REMOVING)
GUEST = "guest"
"""All together that were made by an earlier version for who is not the owner."""


@dataclasses.dataclass(frozen=True)
class Creator:
    bases: Bases
    machine: Machine
    users: Users
    open_spaces: OpenSpaces
    journal: Journal
    undo: Undo
    disk: Disk
    home_files: HomeFiles
    toolchains: Toolchains
    packages: Packages
    downloads: Downloads
    bases_going: set[str]
    """Those that clean-up removes just now."""
    disk_for: Callable[[int], int]
    """Of so much free room, how much a space may use that was given no limit; 0: all."""
    images: Images
    systems: SystemMounts
    services: SpaceServices
    show: tuple[str, ...] = ()
    """What the settings have shown to all spaces of the owner."""
    most_of_caller: int = 0
    """Spaces of one who is not the owner; 0: any number."""
    clone_hosts: tuple[str, ...] = ()
    """Hosts of private networks from which callers without full rights may clone."""
    turns: CallerSlots = dataclasses.field(default_factory=lambda: CallerSlots(BUILDS, TURN_S))
    builds: WeakValueDictionary[tuple[str, ...], asyncio.Semaphore] = dataclasses.field(
        default_factory=WeakValueDictionary
    )
    """By account and project, while somebody builds or waits."""

    def draft(self, request: SpaceRequest, limits: Limits) -> Space:
        """The record as it is when nothing has been done yet."""
        now = self.journal.clock()
        space_id = request.space_id or new_id("sp")
        resolved = {
            "space_id": space_id,
            "name": request.name or name_from(request.project, space_id),
            "state": SpaceState.CREATING,
            "created_at": now,
            "updated_at": now,
            "active_at": now,
            "limits": limits,
            "labels": dict(request.labels),
            "env": dict(request.env),
            "image": None,
            "services": (),
            "image_notes": request.environment.notes if request.environment else (),
            "asked": asked_for(request),
        }
        return Space(**{**shared(request, Space), **resolved})

    async def create(
        self,
        space: Space,
        request: SpaceRequest,
        on_progress: OnProgress,
        *records: Record,
        fill: Fill | None = None,
        layer: TreeLayer | None = None,
        part_layers: Mapping[str, TreeLayer] = NO_LAYERS,
    ) -> Space:
        """`records` are written together with the new space's own. Raises what the step
        that failed raised, when all of the space is gone again."""
        space = await asyncio.to_thread(self._first_look, space, request)
        space_id = space.space_id
        self._check_share(space)
        operation = self.journal.operation(space_id, OPERATION)
        born = self.journal.event(EventType.SPACE_STATE, space_id, to=str(space.state))
        self.journal.know(space)
        await operation.begin(BASE, space, born, *records)
        try:
            runtime = await self.machine.runtime(space.runtime)
            driver = await self.machine.driver(space.driver, runtime)
            base = await self.found_base(request, on_progress)
            resolved = {
                "runtime": runtime.name,
                "driver": driver.name,
                "base_id": base.base_id,
                "left_out": _noted(base)[:_SHOWN],
                "project": _project(request, base),
                "default_disk_bytes": self._default_disk(space, base),
                "downloads": self._downloads_of(space, request, runtime, base),
                "image": await self._image(space, request, runtime, on_progress),
                "services": await self._services(space, request, runtime, driver),
            }
            space = self.journal.amend(space_id, **resolved)
            await operation.begin(TREE, space)
            siblings = [one for one in self.journal.all() if one.downloads == space.downloads]
            owner, home = await asyncio.to_thread(self._claim, space, siblings, base)
            await self._check_seen(space, runtime, owner)
            wanted = dataclasses.replace(self._wanted(space, base, owner), layer=layer)
            if isinstance(runtime, EagerRuntime):
                spec = self.open_spaces.spec(dataclasses.replace(space, owner=owner))
                spec = dataclasses.replace(spec, **home)
                if spec.home_links:
                    await asyncio.to_thread(runtime.furnish, spec)
                first = space.image is None or bool(space.agent)
                if first and fill is None and space.limits.disk_bytes is None:
                    # Else the tree would be held to the quota while it is made.
                    runtime.begin(spec)
                    await asyncio.sleep(0)
            tree = await asyncio.to_thread(driver.create, wanted)
            self.open_spaces.made(tree, runtime)
            made = {"owner": owner, "tree_created_ns": tree.created_ns}
            space = self.journal.amend(space_id, **made)
            await self.open_spaces.make_systems(space, part_layers)
            if fill is not None:
                await operation.begin(FILL, space)
                await asyncio.to_thread(fill, driver, tree, self.open_spaces.parts(space))
            await operation.begin(SANDBOX, space)
            return await self._start(space, tree, operation, home, on_progress)
        except BaseException as error:
            told = plain(error)
            await self.undo(space_id, operation, told)
            if told is error:
                raise
            raise told from error

    async def _image(
        self, space: Space, request: SpaceRequest, runtime: Runtime, on_progress: OnProgress
    ) -> SpaceImage | None:
        """Raises `SpaceInvalid` where a space cannot have one, `ImageNotFound`, `ImageInvalid`."""
        found = request.environment
        if not (request.image if found is None else found.image_id):
            if runtime.capabilities.needs_image:
                raise ImageNeeded(
                    f"A container of {runtime.name} is made of an image.",
                    hint="Name one with --image, or leave --runtime out.",
                )
            return None
        check_systems(runtime)
        return await asyncio.to_thread(self._held_image, space, request, on_progress)

    def _held_image(
        self, space: Space, request: SpaceRequest, on_progress: OnProgress
    ) -> SpaceImage:
        found = request.environment or SpaceEnvironment(request.image, request.image)
        name = found.image_id
        if name.startswith("/"):
            path = Path(name)
            taken = self.images.take(ImageImport(image_name(path), path), on_progress)
            name = taken.image_id
        held = self.images.hold(name, space.space_id)
        image = self._as_user(space, held, found.name, found.user)
        return dataclasses.replace(
            image,
            notes=() if image.first_id is not None else (self._one_id(space, image),),
            asked_user=found.user,
            variables=with_image(found.variables, dict(held.config.env)),
            ports=found.ports,
            at_start=tuple(one for one in found.hooks if one.stage is SetupStage.START),
        )

    def _one_id(self, space: Space, image: SpaceImage) -> str:
        why = DIRECT_IDS if space.place else self.users.why_no_range() or TAKE_AGAIN
        return f"{ONE_ID.format(image.user)} {why}"

    def _as_user(self, space: Space, held: RootImage, name: str, wanted: str) -> SpaceImage:
        """With one of its accounts; its own, where none is `wanted`. Raises `ImageInvalid`."""
        account = self.systems.account(held.folder, wanted or held.config.user)
        # What is given away in a folder itself, an ordinary user could not even remove.
        alone = space.place and os.geteuid() != 0
        first = None if alone else self.users.take_range(space.space_id)
        folder = held.folder
        if first is not None:
            found = self.images.folder_for(held, (account.uid, account.gid))
            first, folder = (None, folder) if found is None else (first, found)
        return SpaceImage(
            image_id=held.image_id,
            name=name,
            folder=str(folder),
            first_id=first,
            uid=account.uid,
            gid=account.gid,
            user=account.name,
            home=account.home,
            shell=account.shell,
            env=dict(held.config.env),
        )

    async def _services(
        self, space: Space, request: SpaceRequest, runtime: Runtime, driver: TreeDriver
    ) -> tuple[SpaceService, ...]:
        planned = request.environment.services if request.environment else ()
        if not planned:
            return ()
        check_services(runtime)
        if os.geteuid() != 0 and driver.name != "overlay":
            raise SpaceInvalid(
                f"With the tree driver {driver.name} the sandboxes of a space cannot share a"
                " network as an ordinary user, and services are reached by that.",
                hint="Leave --driver out, or leave the services out: --services none",
            )
        return await asyncio.to_thread(self._held_services, space, planned)

    def _held_services(
        self, space: Space, planned: tuple[PlannedService, ...]
    ) -> tuple[SpaceService, ...]:
        found = []
        for one in planned:
            spec = one.spec
            held = self.images.hold(one.image_id, space.space_id)
            config = held.config
            name = spec.image or f"built by {spec.build.dockerfile if spec.build else ''}"
            image = self._as_user(space, held, name, spec.user)
            entry = config.entrypoint if spec.entrypoint is None else spec.entrypoint
            # Another entry point makes the image's words its own no more.
            words = config.cmd if spec.entrypoint is None else ()
            argv = (*entry, *(words if spec.command is None else spec.command))
            if not argv:
                raise ServiceFailed(
                    f"The service {spec.name} has no command, and neither has its image.",
                    hint="Give it a command in its compose file.",
                    service=spec.name,
                )
            if config.health is not None and not spec.own_health:
                spec = dataclasses.replace(spec, health=config.health)
            folder = spec.folder or config.workdir or "/"
            number = signal_number(spec.stop_signal or config.stop_signal)
            found.append(SpaceService(spec, image, argv, posixpath.join("/", folder), number))
        return tuple(found)

    async def _check_seen(self, space: Space, runtime: Runtime, owner: Owner) -> None:
        """Raises `SpaceInvalid` where a space cannot be shown others without more than that."""
        if not space.sees:
            return
        if not runtime.capabilities.own_paths:
            raise SpaceInvalid(
                f"The runtime {runtime.name} cannot show a space the files of another.",
                hint="Use the runtime bubblewrap, or copy files with `carrel take`.",
            )
        for place, space_id in space.sees.items():
            other = self.journal.staying(space_id)
            if other is None or other.owner is None:
                raise SpaceInvalid(f"{place} is gone.", hint="`carrel ls` lists spaces.")
            if other.owner.uid == owner.uid:
                raise SpaceInvalid(
                    f"{other.name} and the new space run as the same user, so that one could speak"
                    " to sockets and pipes of the other.",
                    hint="A daemon of root's gives each space a user. Here, `carrel take` copies"
                    " files, and `carrel fork` begins with all of them.",
                )
        await self.open_spaces.ensure_seen(dataclasses.replace(space, owner=owner))

    def _check_share(self, space: Space) -> None:
        """Each space takes descriptors of the daemon, a mount and files, also when it is idle.
        Raises `TooManySpaces`."""
        if not (self.most_of_caller and space.account):
            return
        mine = sum(one.account == space.account for one in self.journal.all())
        if mine >= self.most_of_caller:
            raise TooManySpaces(
                f"There are {mine} spaces of this caller already, the most that it may have.",
                hint="Remove some, or ask the owner to raise `spaces_per_caller`.",
            )

    def _first_look(self, space: Space, request: SpaceRequest) -> Space:
        """At what is not to be found wanting later."""
        self._check_room()
        if space.restored_from:
            return self._narrowed(space)
        return self._narrowed(self.equipped(space, request), just_found=not request.parent)

    def _narrowed(self, space: Space, *, just_found: bool = False) -> Space:
        """Without what has come into the folders that it is shown, and must not be seen."""
        shown = {*space.shown.values(), *space.packages.shown.values()}
        tools = self.toolchains.narrowed(space.tools, shown, just_found=just_found)
        return space if tools == space.tools else dataclasses.replace(space, tools=tools)

    def equipped(self, space: Space, request: SpaceRequest) -> Space:
        """With what of the owner's home it is shown. A space that another asked for has what that
        one has."""
        if request.parent:
            parent = self.journal.get(request.parent)
            tools, shown = (parent.tools, parent.shown) if parent else (NO_TOOLS, {})
            packages = parent.packages if parent else NO_SETTINGS
        elif request.guest:
            return space
        else:
            tools = self.toolchains.find() if request.home_tools else NO_TOOLS
            shown = self._shown(request, own_path(space))
            packages = self.packages.settings(credentials=request.with_credentials)
        return dataclasses.replace(
            space,
            tools=without_project(tools, own_path(space)),
            shown=shown,
            packages=packages,
        )

    def _shown(self, request: SpaceRequest, project: str) -> dict[str, str]:
        """Raises `SpaceInvalid` for what this request asks for. What the settings name and cannot
        be shown keeps no space from being made."""
        shown: dict[str, str] = {}
        for path in self.show:
            with contextlib.suppress(SpaceInvalid):
                shown |= self._may_show(path, project)
        for path in request.show:
            shown |= self._may_show(path, project)
        return shown

    def _may_show(self, path: str, project: str) -> Mapping[str, str]:
        found = self.toolchains.check(path)
        if project and any(is_below(os.path.realpath(project), real) for real in found.values()):
            raise SpaceInvalid(
                f"{path} contains the project, of which the space has a copy there.",
                hint="Show folders beside the project.",
            )
        return found

    def _check_room(self) -> None:
        """Nothing is begun on a full disk: what is kept free there is for those who make room."""
        if self.disk.is_full():
            raise InsufficientDisk(
                "The disk with the data folder is full.",
                hint="`carrel df` shows what uses the disk. `carrel rm`, `carrel gc --bases` "
                "and deleting files in spaces still work.",
                free_bytes=self.disk.free()[0],
            )

    def _default_disk(self, space: Space, base: Base) -> int:
        """Beside what the base takes, since some trees are whole copies of it."""
        if space.limits.disk_bytes is not None:
            return 0
        share = self.disk_for(self.disk.free()[0])
        return share and share + base.size_bytes + base.entries * BLOCK

    async def found_base(self, request: SpaceRequest, on_progress: OnProgress) -> Base:
        """One that stays: from the moment this returns, the record says that it is used."""
        while True:
            async with self._builds_of(request), self._turn(_account(request)):
                base = await asyncio.to_thread(self._base, request, on_progress)
            if base.base_id not in self.bases_going and base.folder.is_dir():
                return base
            # Clean-up was at it: it is built again, or told to be gone.
            await asyncio.sleep(AGAIN_S)

    def _builds_of(self, request: SpaceRequest) -> asyncio.Semaphore:
        key = (_account(request), request.project.kind, request.project.location)
        found = self.builds.get(key)
        if found is None:
            found = self.builds[key] = asyncio.Semaphore(BUILDS_OF_ONE)
        return found

    def _turn(self, account: str) -> AbstractAsyncContextManager[None]:
        """The owner has as many as there are threads."""
        return nullcontext() if account == LOCAL.name else self.turns.of(account)

    def _base(self, request: SpaceRequest, on_progress: OnProgress) -> Base:
        if request.base_id:
            return self.bases.use(request.base_id)
        wanted = BaseRequest(
            project=request.project,
            exclude=request.exclude,
            max_bytes=request.max_bytes,
            max_files=request.max_files,
            git_reach=reach_of(request),
            clone_policy=ClonePolicy(self.clone_hosts) if request.guest else None,
        )
        return self.bases.build(wanted, on_progress)

    def _wanted(self, space: Space, base: Base, owner: Owner) -> TreeRequest:
        place = Path(space.place) if space.place else None
        return TreeRequest(
            space.space_id, base, self.open_spaces.folder(space.space_id), owner, place
        )

    def _claim(
        self, space: Space, siblings: list[Space], base: Base
    ) -> tuple[Owner, dict[str, Any]]:
        """Its user, and what its home begins with, as a `SandboxSpec` has it."""
        self.open_spaces.folder(space.space_id).mkdir(mode=0o700)
        owner = self.users.take(space.space_id)
        self.open_spaces.make_services(dataclasses.replace(space, owner=owner))
        if space.agent:
            self.open_spaces.make_agent_folders(space.space_id, owner)
        settings = {name: text.encode() for name, text in space.packages.files.items()}
        home: dict[str, Any] = {
            "home_files": {**settings, **self.home_files.files(owner=not space.guest)}
        }
        if space.downloads:
            homes = {
                self.open_spaces.home(one): inf if one.state in WORKING else one.active_at
                for one in siblings
                if one.space_id != space.space_id
            }
            home["home_links"] = self.downloads.links(space.downloads, homes, base)
        return owner, home

    def _downloads_of(
        self, space: Space, request: SpaceRequest, runtime: Runtime, base: Base
    ) -> str:
        """Of one project only, since a package may be private; apart from those that were given
        credentials, for the same reason. Children have what their parents have."""
        if space.network is not Network.OPEN or not runtime.capabilities.own_paths:
            return ""
        if not request.share_downloads or space.guest or not self.downloads.most_bytes:
            return ""
        if request.parent:
            parent = self.journal.get(request.parent)
            return parent.downloads if parent else ""
        project = _project(request, base)
        if project.kind is ProjectKind.EMPTY:
            return ""
        parts = (project.kind, project.location, space.packages.credentials, os.geteuid())
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]

    async def _start(
        self,
        space: Space,
        tree: Tree,
        operation: JournaledOperation,
        home: Mapping[str, Any],
        on_progress: OnProgress,
    ) -> Space:
        opened = await self.open_spaces.of(space)
        spec = dataclasses.replace(opened.first.spec, **home)
        with opened.driver.mount(tree) as mount:
            sandbox = await opened.runtime.start(spec, mount, wait=False)
        self.open_spaces.begun(opened)
        enforced = sandbox.limits
        if space.services:
            await operation.begin(SERVICES, space)
            await self.services.begin(space, on_progress)
        space, event = self.journal.moved(space.space_id, SpaceState.READY, enforced=enforced)
        await operation.end(space, event)
        return space

    async def start_again(self, opened: OpenSpace, operation: JournaledOperation) -> Space:
        """A space that was stopped, or failed."""
        space_id = opened.space.space_id
        narrowed = await asyncio.to_thread(self._narrowed, opened.space)
        space = self.journal.amend(space_id, tools=narrowed.tools)
        await operation.begin(SANDBOX, space)
        opened = await self.open_spaces.of(space)
        await self.open_spaces.mend(opened)
        sandbox = await self.open_spaces.start(opened)
        if space.services:
            await operation.begin(SERVICES)
            try:
                await self.services.begin(space)
            except BaseException:
                await asyncio.shield(opened.stop(0.0))
                raise
        space, event = self.journal.moved(
            space_id,
            SpaceState.READY,
            enforced=sandbox.limits,
            stopped_at=None,
            problem=None,
            active_at=self.journal.clock(),
        )
        await operation.end(space, event)
        return space


def signal_number(word: str) -> int:
    """Of a name or a number; SIGTERM for what is none."""
    word = word.upper()
    try:
        if word.isascii() and word.isdigit():
            return int(signal.Signals(int(word[:4])))
        return int(signal.Signals[word if word.startswith("SIG") else f"SIG{word}"])
    except (KeyError, ValueError):
        return int(signal.SIGTERM)


_OF_IMAGE = re.compile(r"\$\{containerEnv:([^${}:]{1,200})(?::([^${}]*))?\}")


def with_image(variables: Mapping[str, str], image: Mapping[str, str]) -> dict[str, str]:
    """With references to the image's own variables replaced; a devcontainer.json makes them."""

    def value(match: re.Match[str]) -> str:
        return image.get(match[1], match[2] or "")

    return {name: _OF_IMAGE.sub(value, text) for name, text in variables.items()}


def image_name(path: Path) -> str:
    """For one that is taken in by the way."""
    word = re.sub(r"[^a-z0-9._-]+", "-", path.name.lower()).strip("-._")
    return f"from/{word or 'image'}"


ONE_ID = (
    "Commands run as {} with one id of the host, so that packages which need several users cannot "
    "be installed."
)
DIRECT_IDS = "Its tree is the folder itself, where files are to belong to their owner alone."
TAKE_AGAIN = (
    "Its image was taken in before you had a range of ids: take it in once more, by carrel image "
    "import, build or pull --anew, and make a new space."
)


def _account(request: SpaceRequest) -> str:
    return request.account or (GUEST if request.guest else LOCAL.name)


def _noted(base: Base) -> tuple[Skipped, ...]:
    """What the copy of the project is without, or has as it was at one moment."""
    return (*(Skipped(path, _MOVED) for path in base.unstable), *base.skipped)


def _project(request: SpaceRequest, base: Base) -> Project:
    return base.project if request.base_id else request.project
