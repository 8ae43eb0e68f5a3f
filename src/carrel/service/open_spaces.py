"""One space at work: its tree and its sandbox, put together from its record."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from carrel.domain.agents import AgentFolders
from carrel.domain.collaborators import Downloads, Edits, Machine
from carrel.domain.environments import HomeTools
from carrel.domain.errors import (
    CommandInvalid,
    LauncherUnavailable,
    StateConflict,
    TreeDamaged,
)
from carrel.domain.ids import dev_id, service_id
from carrel.domain.limits import Limits
from carrel.domain.projects import ProjectKind
from carrel.domain.runtimes import (
    Bind,
    Command,
    Run,
    Runtime,
    Sandbox,
    SandboxSpec,
    StillRuntime,
)
from carrel.domain.services import MountKind, ServiceView
from carrel.domain.spaces import Space
from carrel.domain.systems import CommandPlace, Part, SpaceImage, System, SystemMounts, Volume
from carrel.domain.trees import Change, Owner, Tree, TreeDriver, TreeLayer, TreeMount, TreeUsage

T = TypeVar("T")
STILL_S = 30.0
"""So long a space stands still at most for a copy of its files: what waits there is waited for by
clients of its own."""
SERVICES, VOLUMES, HOSTS, AGENT_HOSTS = "services", "volumes", "hosts", "agent-hosts"
"""In the folder of a space that has services."""
LOCAL_HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"


@dataclass(frozen=True)
class OpenSpace:
    """Live handles of one space, for one use."""

    space: Space
    driver: TreeDriver
    runtime: Runtime
    tree: Tree
    sandbox: Sandbox
    """The agent's, with the host's toolchain."""
    dev: Sandbox | None = None
    """The one with the space's image, if it has one."""
    services: tuple[Sandbox, ...] = ()
    """Those of the space's services, in their order."""

    @property
    def first(self) -> Sandbox:
        """The one that is used first: the agent's, or with an image and without an agent that."""
        return self.sandbox if self.dev is None or self.space.agent else self.dev

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        own = (self.sandbox,) if self.dev is None else (self.sandbox, self.dev)
        return (*own, *self.services)

    def at(self, place: CommandPlace, service: str = "") -> Sandbox:
        """That of the service of this name, if one is given. Raises `CommandInvalid`."""
        if service:
            for one, sandbox in zip(self.space.services, self.services, strict=True):
                if one.name == service:
                    return sandbox
            raise no_service(self.space, service)
        return self.dev if place is CommandPlace.DEV and self.dev is not None else self.sandbox

    async def stop(self, grace_s: float = 2.0, *, services: bool = True) -> None:
        """As `Runtime.stop`, all of it; or without its services, which show nothing that could have
        to be shown anew."""
        found = [one for one in self.sandboxes if services or one not in self.services]
        await asyncio.gather(*(self.runtime.stop(one, grace_s) for one in found))


@dataclass(frozen=True)
class OwnProgram:
    """This program, as every space has it."""

    command: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    """What a sandbox has to show for it."""
    shell: tuple[str, ...] = ()
    """See `SandboxSpec.shells`."""


class OpenSpaces:
    def __init__(
        self,
        folder: Path,
        machine: Machine,
        agent_folders: AgentFolders | None = None,
        program: OwnProgram | None = None,
        downloads: Downloads | None = None,
        edits: Edits | None = None,
        others: Callable[[str], Space | None] = lambda _space_id: None,
        systems: SystemMounts | None = None,
        reserved: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`folder` holds a folder for each space. `others` gives the record of one by its id,
        unless it is on its way out. `reserved` are names of hosts to which keys go, in small
        letters; blocking."""
        self._reserved = reserved
        self._others = others
        self._program = program or OwnProgram()
        self._downloads = downloads
        self._edits = edits
        self._folder = folder
        self._machine = machine
        self._agent_folders = agent_folders
        self._systems = systems
        self._usable: set[str] = set()
        self._late: dict[str, asyncio.Task[None] | None] = {}
        """Sandboxes that are prepared when they are first used, and the tasks that do it."""

    def folder(self, space_id: str) -> Path:
        return self._folder / space_id

    async def of(self, space: Space) -> OpenSpace:
        """Raises `StateConflict` for a space that never got so far."""
        if space.owner is None or not space.base_id:
            raise StateConflict(
                f"{space.name} was never completed.", hint="Remove it.", state=str(space.state)
            )
        runtime, driver = await self.back_ends(space)
        await self.ensure_seen(space)
        tree = tree_of(space, self.folder(space.space_id))
        spec = self.spec(space)
        sandbox = Sandbox(runtime.name, spec, space.enforced)
        system = self.system(space)
        services = tuple(
            Sandbox(runtime.name, self._service_spec(space, spec, index), space.enforced)
            for index in range(len(space.services))
        )
        if system is None:
            return OpenSpace(space, driver, runtime, tree, sandbox, None, services)
        dev = Sandbox(runtime.name, self._dev_spec(space, spec, system), space.enforced)
        return OpenSpace(space, driver, runtime, tree, sandbox, dev, services)

    def system(self, space: Space) -> System | None:
        """That of its image."""
        if space.image is None or space.owner is None:
            return None
        folder = self.folder(space.space_id) / "system"
        mounted = self._mounted(space)
        return self._system(space, space.image, dev_id(space.space_id), folder, mounted)

    def systems(self, space: Space) -> tuple[System, ...]:
        """All of the space's: that of its image, then one for each service. What was written in
        each is below its `folder`."""
        own = self.system(space)
        found = () if own is None else (own,)
        if space.owner is None:
            return found
        return (*found, *(self._service_system(space, at) for at in range(len(space.services))))

    def _service_system(self, space: Space, index: int) -> System:
        service = space.services[index]
        folder = self.folder(space.space_id) / SERVICES / service.name
        key = service_id(space.space_id, index)
        mounted = tuple(one.target.lstrip("/") for one in service.spec.mounts)
        return self._system(space, service.image, key, folder, mounted)

    def _system(
        self, space: Space, image: SpaceImage, key: str, folder: Path, mounted: tuple[str, ...]
    ) -> System:
        assert space.owner is not None
        return System(
            key=key,
            beside=space.space_id if space.driver == "overlay" else "",
            image_id=image.image_id,
            image=Path(image.folder),
            folder=folder,
            owner=space.owner,
            first_id=image.first_id,
            uid=image.uid,
            gid=image.gid,
            user=image.user,
            home=image.home,
            shell=image.shell,
            env=image.env,
            mounted=mounted,
        )

    def disk_use(self, opened: OpenSpace) -> TreeUsage:
        """What the space has written: in its tree, and in its systems. Blocking."""
        found = [opened.driver.usage(opened.tree)]
        if self._systems is not None:
            found += [self._systems.usage(one) for one in self.systems(opened.space)]
        files = sum(one.files_used for one in found)
        return TreeUsage(sum(one.bytes_used for one in found), files)

    def system_changes(self, space: Space) -> Iterator[Change]:
        """How that of its image differs from it. Blocking."""
        system = self.system(space)
        return self._systems.changes(system) if system and self._systems else iter(())

    def parts(self, space: Space) -> tuple[Part, ...]:
        """What it has beside its tree, and belongs to its work: its systems, and the volumes of its
        services, each with the ids of the first that has it."""
        return (*self.systems(space), *self.volumes(space))

    def volumes(self, space: Space) -> Iterator[Volume]:
        """Those that its services share; they are there once it was made."""
        seen: set[str] = set()
        for index, service in enumerate(space.services if space.owner is not None else ()):
            for one in service.spec.mounts:
                if one.kind is MountKind.VOLUME and one.source not in seen:
                    seen.add(one.source)
                    folder = self.folder(space.space_id) / VOLUMES / one.source
                    yield Volume(folder, self._service_system(space, index), one.target)

    def _mounted(self, space: Space) -> tuple[str, ...]:
        """Where its sandbox shows the tree, and folders of the host."""
        shown = [own_path(space), *space.shown]
        if self._agent_folders is not None:
            shown.append(self._agent_folders.documents(self.folder(space.space_id)).target)
        return tuple(path[1:] for path in shown if path)

    def _dev_spec(self, space: Space, spec: SandboxSpec, system: System) -> SandboxSpec:
        """The owner's toolchains are for the host's libraries; what else was shown is shown."""
        shown = [_home_bind(source, target) for target, source in space.shown.items()]
        if space.agent and self._agent_folders is not None:
            shown.append(self._agent_folders.documents(self.folder(space.space_id)))
        return dataclasses.replace(
            spec,
            sandbox_id=system.key,
            system=system,
            binds=(*shown, *self._names(space)),
            hidden=(),
            carrel=(),
            shells=(),
            env={**space.image.variables, **space.env} if space.image else space.env,
            path_first=(),
            path_last=(),
        )

    def _service_spec(self, space: Space, spec: SandboxSpec, index: int) -> SandboxSpec:
        """Nothing of the space, but its network, its limits, and what the service's file names."""
        service = space.services[index]
        system = self._service_system(space, index)
        mounts = service.spec.mounts
        volumes = self.folder(space.space_id) / VOLUMES
        of_tree = [one for one in mounts if one.kind is MountKind.TREE]
        linked = [one for one in of_tree if one.source != "."]
        return dataclasses.replace(
            spec,
            sandbox_id=system.key,
            system=system,
            binds=(
                *self._names(space),
                *(
                    Bind(volumes / one.source, one.target, writable=not one.read_only)
                    for one in mounts
                    if one.kind is MountKind.VOLUME
                ),
            ),
            hidden=(),
            carrel=(),
            shells=(),
            env=service.spec.environment,
            path_first=(),
            path_last=(),
            also_at="",
            service=ServiceView(
                tuple((one.target, not one.read_only) for one in of_tree if one.source == "."),
                {one.target: one.source for one in linked},
                all(one.read_only for one in linked),
                tuple(one.target for one in mounts if one.kind is MountKind.MEMORY),
            ),
        )

    def _names(self, space: Space, file: str = HOSTS) -> tuple[Bind, ...]:
        """Where the names of its services are found."""
        if not space.services:
            return ()
        return (Bind(self.folder(space.space_id) / file, "/etc/hosts"),)

    def make_services(self, space: Space) -> None:
        """What its sandboxes show for its services; idempotent, blocking. Its owner is known."""
        if not space.services:
            return
        folder = self.folder(space.space_id)
        names = [*dict.fromkeys(name for one in space.services for name in one.names)]
        _write_hosts(folder / HOSTS, names)
        # A stranger's file is not to say where the agent sends its key.
        reserved = self._reserved()
        private = [one for one in names if "." not in one and one.lower() not in reserved]
        _write_hosts(folder / AGENT_HOSTS, private)
        (folder / SERVICES).mkdir(mode=0o700, exist_ok=True)
        (folder / VOLUMES).mkdir(mode=0o700, exist_ok=True)
        for index, service in enumerate(space.services):
            system = self._service_system(space, index)
            for one in service.spec.mounts:
                if one.kind is MountKind.VOLUME and self._systems is not None:
                    self._systems.make_volume(system, folder / VOLUMES / one.source, one.target)

    async def back_ends(self, space: Space) -> tuple[Runtime, TreeDriver]:
        """Raises `SandboxUnavailable` and `TreeUnavailable` for those that this daemon lacks."""
        runtime = await self._machine.runtime(space.runtime)
        return runtime, await self._machine.driver(space.driver, runtime)

    def spec(self, space: Space) -> SandboxSpec:
        assert space.owner is not None
        folder = self.folder(space.space_id)
        return SandboxSpec(
            sandbox_id=space.space_id,
            folder=folder,
            tree=self._tree_folder(space),
            owner=space.owner,
            network=space.network,
            limits=limits_of(space),
            family=space.family or space.space_id,
            binds=self.binds(space),
            hidden=space.tools.hidden,
            carrel=self._program.command,
            env={**_tool_variables(space), **space.packages.env, **space.env},
            path_first=space.tools.path_first,
            path_last=space.tools.path_last,
            account=space.counts_for,
            also_at=own_path(space),
            and_at=space.named,
            pod=space.space_id if space.image is not None or space.services else "",
            shells=self._program.shell if space.image is not None else (),
        )

    def binds(self, space: Space) -> tuple[Bind, ...]:
        """What its sandbox shows: its agent's, its servers', this program, and of the owner's
        home what it was made with."""
        # A server that was taken off the machine must not keep a space from starting.
        there = [path for path in space.shows if os.path.exists(path)]
        shows = (*self._program.binds, *(Bind(Path(path), path) for path in there))
        seen: tuple[Bind, ...] = ()
        if space.agent and self._agent_folders is not None:
            seen = self._agent_folders.binds(self.folder(space.space_id), space.agent)
        shared: tuple[Bind, ...] = ()
        if space.downloads and self._downloads is not None:
            shared = (self._downloads.shown(space.downloads),)
        found: dict[str, Bind] = {}
        for bind in (*seen, *shows, *shared, *self._names(space, AGENT_HOSTS)):
            found.setdefault(bind.target, bind)
        for target, other in self._seen(space):
            found.setdefault(target, Bind(self._tree_folder(other), target))
        for target, source in _of_the_home(space):
            found.setdefault(target, _home_bind(source, target))
        return tuple(found.values())

    def _seen(self, space: Space) -> Iterator[tuple[str, Space]]:
        """Only where nothing in the one can be taken for the other's own user."""
        for target, space_id in space.sees.items():
            other = self._others(space_id)
            if other is None or other.owner is None or space.owner is None:
                continue
            if other.owner.uid != space.owner.uid and self._tree_folder(other).is_dir():
                yield target, other

    async def ensure_seen(self, space: Space) -> None:
        """What it sees of others is mounted: else it would be shown empty folders."""
        for _, other in self._seen(space) if space.sees else ():
            if other.space_id not in self._usable:
                runtime, driver = await self.back_ends(other)
                tree = tree_of(other, self.folder(other.space_id))
                await asyncio.to_thread(driver.ensure, tree)
                self.made(tree, runtime)

    def _tree_folder(self, space: Space) -> Path:
        return Path(space.place) if space.place else self.folder(space.space_id) / "project"

    def home(self, space: Space) -> Path:
        return self.folder(space.space_id) / "home"

    def make_agent_folders(self, space_id: str, owner: Owner) -> None:
        """Makes the folders that a sandbox with an agent shows."""
        if self._agent_folders is not None:
            self._agent_folders.make(self.folder(space_id), owner)

    @asynccontextmanager
    async def mounted(self, opened: OpenSpace) -> AsyncIterator[TreeMount]:
        """The tree for a runtime. One that lost its mount, after a reboot or by somebody's
        hand, gets it again."""
        await self._mount(opened)
        try:
            context = opened.driver.mount(opened.tree)
            mount = context.__enter__()
        except TreeDamaged:
            await self.mend(opened)
            context = opened.driver.mount(opened.tree)
            mount = context.__enter__()
        try:
            yield mount
        except TreeDamaged:
            # The launcher that held the mount is gone: to be looked at by the next who comes.
            self.forget(opened.space.space_id)
            raise
        finally:
            context.__exit__(None, None, None)

    async def look(self, opened: OpenSpace, work: Callable[[], T], *more: OpenSpace) -> T:
        """Something that reads the tree, and `more` of them, in a thread. Once more if a mount went
        meanwhile, as an ordinary user's does with the launcher that holds it."""
        for one in (opened, *more):
            await self.ensure(one)
        try:
            return await asyncio.to_thread(work)
        except (TreeDamaged, LauncherUnavailable):
            for one in (opened, *more):
                await self.mend(one)
            return await asyncio.to_thread(work)

    async def start(self, opened: OpenSpace) -> Sandbox:
        """Prepares the sandbox that is used first, and answers it; the other one, of a space with
        an image, is prepared when something is to run in it."""
        async with self.mounted(opened) as mount:
            sandbox = await opened.runtime.start(opened.first.spec, mount, wait=False)
        self.begun(opened)
        return sandbox

    def begun(self, opened: OpenSpace) -> None:
        """The first sandbox of a space is prepared."""
        for one in opened.sandboxes:
            if one is not opened.first:
                self._late[one.spec.sandbox_id] = None

    async def prepare(self, opened: OpenSpace, sandbox: Sandbox) -> None:
        """That is done by the first who wants to run something there."""
        sandbox_id = sandbox.spec.sandbox_id
        if sandbox_id not in self._late:
            return
        task = self._late[sandbox_id]
        if task is None or (task.done() and task.exception() is not None):
            task = self._late[sandbox_id] = asyncio.create_task(self._prepare(opened, sandbox))
        await asyncio.shield(task)
        self._late.pop(sandbox_id, None)

    async def _prepare(self, opened: OpenSpace, sandbox: Sandbox) -> None:
        async with self.mounted(opened) as mount:
            await opened.runtime.start(sandbox.spec, mount, wait=False)

    @asynccontextmanager
    async def at_work(self, opened: OpenSpace) -> AsyncIterator[TreeMount]:
        """As `mounted`, for who runs something in the agent's sandbox."""
        await self.prepare(opened, opened.sandbox)
        async with self.mounted(opened) as mount:
            yield mount

    async def run(
        self,
        opened: OpenSpace,
        command: Command,
        place: CommandPlace = CommandPlace.AGENT,
        service: str = "",
    ) -> Run:
        """A command in its sandbox. A tree that turns out to be without its mount gets it again:
        nothing has run then."""
        sandbox = opened.at(place, service)
        await self.prepare(opened, sandbox)
        try:
            async with self.mounted(opened) as mount:
                return await opened.runtime.run(sandbox, mount, command)
        except TreeDamaged:
            async with self.mounted(opened) as mount:
                return await opened.runtime.run(sandbox, mount, command)

    async def ensure(self, opened: OpenSpace) -> None:
        """For who is about to read the tree. Mounted it is once in a daemon's life, unless it is
        found damaged."""
        await self._mount(opened)
        ranged = any(one.first_id is not None for one in self.systems(opened.space))
        if self._systems is not None and ranged:
            await asyncio.to_thread(self._systems.give_back, opened.tree)

    async def _mount(self, opened: OpenSpace) -> None:
        if opened.space.space_id not in self._usable:
            await asyncio.to_thread(self._ensure, opened)
            self.made(opened.tree, opened.runtime)

    def _ensure(self, opened: OpenSpace) -> None:
        opened.driver.ensure(opened.tree)
        for system in self.systems(opened.space):
            if self._systems is not None:
                self._systems.ensure(system)

    async def make_systems(self, space: Space, layers: Mapping[str, TreeLayer]) -> None:
        """Of a new space, whose tree is there. `layers`: what they begin with, see
        `States.part_layers`."""
        for system in self.systems(space):
            name = system.folder.relative_to(self.folder(space.space_id)).as_posix()
            if self._systems is not None:
                await asyncio.to_thread(self._systems.ensure, system, layers.get(name))

    async def drop(self, opened: OpenSpace) -> None:
        """Its tree, and its systems, as far as they were made."""
        for one in opened.sandboxes:
            self._late.pop(one.spec.sandbox_id, None)
        await asyncio.to_thread(self._drop, opened)

    def _drop(self, opened: OpenSpace) -> None:
        if self._systems is not None:
            for system in self.systems(opened.space):
                self._systems.drop(system)
        opened.driver.drop(opened.tree)

    async def pause(self, opened: OpenSpace) -> None:
        """Has all that runs in it stand still, where that can be done, until `resume`; not for
        longer than `STILL_S`."""
        if isinstance(opened.runtime, StillRuntime):
            with contextlib.suppress(LauncherUnavailable):
                for one in opened.sandboxes:
                    await opened.runtime.pause(one, STILL_S)

    async def resume(self, opened: OpenSpace) -> None:
        if isinstance(opened.runtime, StillRuntime):
            with contextlib.suppress(LauncherUnavailable):
                for one in opened.sandboxes:
                    await opened.runtime.resume(one)

    async def mend(self, opened: OpenSpace) -> None:
        """Looks at it again: its mount may have gone with what held it."""
        self._usable.discard(opened.space.space_id)
        await self.ensure(opened)

    def made(self, tree: Tree, runtime: Runtime) -> None:
        """A new tree needs no look."""
        self._usable.add(tree.tree_id)
        if self._edits is not None:
            self._edits.watch(tree, own_mount=runtime.capabilities.own_paths)

    def forget(self, space_id: str) -> None:
        self._usable.discard(space_id)
        if self._edits is not None:
            self._edits.forget(space_id)


def no_service(space: Space, name: str) -> CommandInvalid:
    known = ", ".join(one.name for one in space.services)
    return CommandInvalid(
        f"{space.name} has no service {name[:80]!r}.",
        hint=f"It has: {known}." if known else "carrel new --services makes a space with services.",
    )


def own_path(space: Space) -> str:
    """Where its project is on the host. What names it by that path, in scripts of a virtual
    environment say, finds the tree there."""
    if space.guest:
        # Who knows it by a name in `project_roots` need not know where that is.
        return ""
    if space.place:
        return space.place
    return space.project.location if space.project.kind is ProjectKind.FOLDER else ""


def _of_the_home(space: Space) -> Iterator[tuple[str, str]]:
    """What of it is in the tree anyway is there as the tree has it. What is hidden as a whole is
    not there."""
    own = own_path(space)
    for shown in (*(tool.shown for tool in space.tools.tools), space.shown, space.packages.shown):
        for target, source in shown.items():
            if source not in space.tools.hidden and (not own or not is_below(target, own)):
                yield target, source


@lru_cache(maxsize=256)
def _home_bind(source: str, target: str) -> Bind:
    """The same for all spaces: they are compared, which is quick then."""
    return Bind(Path(source), target, if_real=True)


def _tool_variables(space: Space) -> dict[str, str]:
    return {name: value for tool in space.tools.tools for name, value in tool.env.items()}


def without_project(tools: HomeTools, project: str) -> HomeTools:
    """Those in whose folders a project is are not shown: it would be seen as it is on the host."""
    if not project:
        return tools
    real = os.path.realpath(project)
    gone = [tool for tool in tools.tools if any(is_below(real, one) for one in tool.shown.values())]
    places = [place for tool in gone for place in (*tool.shown, *tool.shown.values())]

    def kept(entries: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in entries if not any(is_below(one, place) for place in places))

    left = tuple(tool for tool in tools.tools if tool not in gone)
    first, last = kept(tools.path_first), kept(tools.path_last)
    return dataclasses.replace(tools, tools=left, path_first=first, path_last=last)


def is_below(path: str, folder: str) -> bool:
    """Also the folder itself."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def limits_of(space: Space) -> Limits:
    """What was asked for, and the disk limit of those who asked for none."""
    if space.limits.disk_bytes is not None or not space.default_disk_bytes:
        return space.limits
    return dataclasses.replace(space.limits, disk_bytes=space.default_disk_bytes)


def tree_of(space: Space, folder: Path) -> Tree:
    assert space.owner is not None
    return Tree(
        tree_id=space.space_id,
        driver=space.driver,
        base_id=space.base_id,
        folder=folder,
        owner=space.owner,
        created_ns=space.tree_created_ns,
    )


def _write_hosts(path: Path, names: Iterable[str]) -> None:
    path.write_text(LOCAL_HOSTS + "".join(f"127.0.0.1 {one}\n" for one in names))
    path.chmod(0o644)
