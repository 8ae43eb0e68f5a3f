"""Containers that podman or docker makes, and the launcher enters: commands run in them as in any
other sandbox.

The engine gives namespaces, the rules for devices, and what else a machine's policy puts on its
containers. Whatever is shown in one is put there by the launcher: the system of the space's image,
the tree, the folders of the sandbox. A process that enters has neither the engine's filter nor its
restrictions, so it gets ours, and users of its own: root in there is nobody on the host.

What an agent runs beside the image, with the host's toolchain, is bubblewrap's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from carrel.domain.availability import Availability
from carrel.domain.errors import ContainerGone, ContainerUnavailable, ImageNeeded
from carrel.domain.ids import new_id
from carrel.domain.runtimes import (
    Bind,
    Capabilities,
    Command,
    LocalRun,
    Network,
    Proof,
    Sandbox,
    SandboxSpec,
    Zygote,
)
from carrel.domain.systems import System
from carrel.domain.trees import Owner, TreeMount
from carrel.linux import ids, mounts, processes
from carrel.runtimes import systems
from carrel.runtimes.arguments import LEAST_MEMORY_FILES, memory_files
from carrel.runtimes.bubblewrap import (
    BubblewrapRuntime,
    MountSource,
    confine_system,
    pod_of,
    stage,
    system_binds,
    uncovered_attempts,
)
from carrel.runtimes.container_engines import (
    TOP_FOLDERS,
    ContainerEngine,
    ContainerRequest,
    DockerContainers,
    PodmanContainers,
)
from carrel.runtimes.engine import Engine, EngineRuntime
from carrel.runtimes.etc import EtcFolder
from carrel.runtimes.proof import Prover
from carrel.runtimes.requests import Confinement, ContainerProcess, SandboxSetup, container_gone
from carrel.runtimes.sandbox import HUB, SandboxFolders

LINGER_S = 3600.0
"""How long an idle container stays: it takes little, and a new one a fifth of a second."""
TRIES = 2
"""A container that was removed behind our back is made anew; more often is a fault."""
MOST_MOUNTS = 48
"""They go in one packet with the namespaces."""
FOLDER = "containers"
WRITTEN = "Written by Carrel and never read back. The launcher mounts what commands see in it."
_NOT_FILLED = ("proc", "sys", "dev", "tmp")
"""Of the system's folders: the engine has its own, and so has the sandbox."""


class ContainerRuntime(EngineRuntime):
    """Implements `LocalRuntime`, `ReachableRuntime` and `WarmRuntime`."""

    def __init__(
        self, data: Path, engine: Engine, prover: Prover, containers: ContainerEngine
    ) -> None:
        super().__init__(engine)
        self._data = data
        self._prover = prover
        self._containers = containers
        self._beside = BubblewrapRuntime(data, engine, prover)
        self._etc = EtcFolder(data)
        self._processes: dict[str, ContainerProcess] = {}
        self._gone: dict[str, ContainerProcess] = {}
        """Those that could not be entered: one that is just ending looks alive."""
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            confines=True,
            private_files=True,
            private_processes=True,
            private_network=True,
            own_paths=True,
            systems=True,
            needs_image=True,
            uncovered=self._beside.capabilities.uncovered,
        )

    async def probe(self) -> Availability:
        """Makes a container of an empty folder; its isolation is proven with the first image."""
        answer = await asyncio.to_thread(self._containers.probe)
        if not answer.available:
            return answer
        try:
            await asyncio.to_thread(self._try_out)
        except OSError as error:
            return Availability(False, f"The data folder cannot be used: {error}.")
        except ContainerUnavailable as error:
            return Availability(False, error.message, error.hint)
        return answer

    def _try_out(self) -> None:
        folder = self._data / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=folder) as root:
            os.chmod(root, 0o755)
            for name in TOP_FOLDERS:
                (Path(root) / name).mkdir()
            holder = systems.holder(self._data).resolve()
            owner = Owner(ids.store_uid(), ids.store_gid())
            name = new_id("sp")
            self._containers.start(
                ContainerRequest(name, owner, holder, Path(root), True, LEAST_MEMORY_FILES)
            )
            self._containers.remove(name)

    # Starting

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        if spec.system is None:
            self._check_beside(spec)
            return await self._beside.start(spec, tree, wait=wait)
        if os.geteuid() != 0:
            raise ContainerUnavailable(
                "Only a daemon that runs as root uses containers.", hint="Use --runtime bubblewrap."
            )
        sandbox = await asyncio.to_thread(self._engine.prepare, spec)
        try:
            await self._ensure(sandbox)
            warming = self._engine.warm(sandbox, self._confine(sandbox, tree, Command(())))
            await asyncio.shield(warming)
            await self._prover.require(self, sandbox, tree, self._containers.name)
        except BaseException:
            await self.stop(sandbox)
            raise
        return sandbox

    def _check_beside(self, spec: SandboxSpec) -> None:
        if not spec.pod:
            raise ImageNeeded(
                f"A container of {self.name} is made of an image.",
                hint="Name one with --image, or leave --runtime out.",
            )

    async def _ensure(self, sandbox: Sandbox) -> None:
        """Makes the container, unless the launcher is in it or will be."""
        sandbox_id = sandbox.spec.sandbox_id
        async with self._locks.setdefault(sandbox_id, asyncio.Lock()):
            known = self._processes.get(sandbox_id) or self._taken_up(sandbox_id)
            if known is None or known == self._gone.get(sandbox_id) or not is_alive(known):
                known = await asyncio.to_thread(self._make, sandbox.spec)
            self._processes[sandbox_id] = known

    def _taken_up(self, sandbox_id: str) -> ContainerProcess | None:
        """As the launcher has noted it."""
        path = self._data / "launcher" / "holders" / f"{sandbox_id}.json"
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return ContainerProcess(record["init"], record["started"])

    def _make(self, spec: SandboxSpec) -> ContainerProcess:
        system = spec.system
        assert system is not None
        # The engine may write in there only what is mounted over.
        self._make_places(spec, system, [])
        self._used.parent.mkdir(mode=0o700, exist_ok=True)
        self._used.touch()
        self._mark(spec).touch()
        request = ContainerRequest(
            name=spec.sandbox_id,
            user=spec.owner,
            holder=systems.holder(self._data).resolve(),
            root=system.root,
            own_network=spec.network is Network.NONE,
            shared_memory=memory_files(spec.limits),
        )
        self._write_down(spec, request)
        return self._containers.start(request)

    def _write_down(self, spec: SandboxSpec, request: ContainerRequest) -> None:
        """How it is made, for people to read: nothing else reads it."""
        words = [*self._containers.words(), "run", *self._containers.definition(request)]
        place = spec.folder / FOLDER
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, exist_ok=True)
            path = place / f"{self.name}.sh"
            path.write_text(f"# {WRITTEN}\n{shlex.join(words)}\n")
            path.chmod(0o600)

    def _mark(self, spec: SandboxSpec) -> Path:
        """Says that there may be a container."""
        return spec.folder / f"{self.name}-{spec.sandbox_id}"

    def _make_places(self, spec: SandboxSpec, system: System, binds: list[Bind]) -> None:
        SandboxFolders(spec.folder).hub.mkdir(mode=0o755, exist_ok=True)
        owner = system.shown(0, 0)
        for point in systems.mount_points(spec, binds, system):
            mounts.make_mount_point(**point, uid=owner[0], gid=owner[1])

    # Running

    def _confine(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Confinement:
        spec = sandbox.spec
        system = spec.system
        assert system is not None
        hold = partial(self._hold, spec, system, tree)
        confinement = confine_system(spec, system, command, hold)
        own, host = (system.uid, system.gid), (system.owner.uid, system.owner.gid)
        return replace(confinement, users={"own": own, "host": host, "first": system.first_id})

    def _hold(self, spec: SandboxSpec, system: System, tree: TreeMount) -> SandboxSetup:
        process = self._processes.get(spec.sandbox_id)
        if process is None:
            raise container_gone("its process has ended")
        try:
            return self._setup(spec, system, tree, process)
        except OSError:
            if is_alive(process) and os.path.exists(f"/proc/{process.pid}/root/."):
                raise
            raise container_gone("its process has ended") from None

    def _setup(
        self, spec: SandboxSpec, system: System, tree: TreeMount, process: ContainerProcess
    ) -> SandboxSetup:
        binds = system_binds(spec, tree)
        self._make_places(spec, system, binds)
        sources: dict[str, MountSource] = {}
        if not self._containers.takes_root:
            sources |= _fill(Path(f"/proc/{process.pid}/root"), system)
        sources |= self._sources(spec, tree, binds)
        if len(sources) > MOST_MOUNTS:
            raise ContainerUnavailable(
                f"A container cannot be shown {len(sources)} folders.",
                hint=f"Show it {MOST_MOUNTS} at most.",
            )
        read_only = {HUB, *(f"/etc/{name}" for name in systems.OWN_ETC)}
        read_only |= {bind.target for bind in binds if not bind.writable}
        real = {bind.target for bind in binds if bind.if_real}
        return SandboxSetup(
            argv=[],
            kept=[],
            namespace=None,
            late=[*sources],
            points=[],
            staged=stage(sources, real, read_only),
            pod=pod_of(spec, tree),
            owner=Owner(*system.shown(0, 0)),
            container=process,
        )

    def _sources(
        self, spec: SandboxSpec, tree: TreeMount, binds: list[Bind]
    ) -> dict[str, MountSource]:
        """What is shown in the system, by its place."""
        folders, etc = SandboxFolders(spec.folder), self._etc.current()
        sources: dict[str, MountSource] = {f"/etc/{name}": etc / name for name in systems.OWN_ETC}
        sources |= {HUB: folders.hub, "/tmp": folders.tmp}
        shown = tree.detached or tree.path
        sources |= dict.fromkeys(systems.places(spec), shown)
        return sources | {bind.target: bind.source for bind in binds}

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> LocalRun:
        if sandbox.spec.system is None:
            return await self._beside.run(sandbox, tree, command)
        return await self._run_in(sandbox, command, self._confine(sandbox, tree, command))

    async def _run_in(
        self, sandbox: Sandbox, command: Command, confinement: Confinement
    ) -> LocalRun:
        for last in (False, True):
            await self._ensure(sandbox)
            try:
                return await self._engine.run(sandbox, command, confinement)
            except ContainerGone:
                if last:
                    raise
                sandbox_id = sandbox.spec.sandbox_id
                if (gone := self._processes.pop(sandbox_id, None)) is not None:
                    self._gone[sandbox_id] = gone
        raise AssertionError

    async def _run_probe(
        self, sandbox: Sandbox, tree: TreeMount, targets: dict[str, Any], command: Command
    ) -> LocalRun:
        confinement = replace(self._confine(sandbox, tree, command), probe=targets)
        return await self._run_in(sandbox, command, confinement)

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof:
        if sandbox.spec.system is None:
            return await self._beside.verify(sandbox, tree)
        run = partial(self._run_probe, sandbox, tree)
        return await self._prover.prove(
            sandbox, tree, uncovered_attempts(sandbox.spec.network), run
        )

    def _has_network(self, sandbox: Sandbox) -> bool:
        return sandbox.spec.network is Network.NONE

    def watch(self, sandbox: Sandbox) -> None:
        self._beside.watch(sandbox)

    async def warm_up(self, zygote: Zygote) -> None:
        await self._engine.warm_up(zygote)

    async def cool_down(self, name: str) -> None:
        await self._engine.cool_down(name)

    # Ending

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        await super().stop(sandbox, grace_s)
        spec = sandbox.spec
        if spec.system is None:
            return
        async with self._locks.setdefault(spec.sandbox_id, asyncio.Lock()):
            known = self._processes.pop(spec.sandbox_id, None)
            self._gone.pop(spec.sandbox_id, None)
            try:
                await asyncio.to_thread(self._remove, spec)
            except ContainerUnavailable:
                # Where its process has ended, only its name is left, for the next start of the
                # daemon to remove.
                if known is not None and is_alive(known):
                    raise
        self._locks.pop(spec.sandbox_id, None)

    def _remove(self, spec: SandboxSpec) -> None:
        mark = self._mark(spec)
        if mark.exists():
            self._containers.remove(spec.sandbox_id)
            mark.unlink(missing_ok=True)

    def left(self) -> list[str]:
        """The names of all containers of this data folder; none where there never was one.
        Blocking. Raises `ContainerUnavailable`."""
        return self._containers.known() if self._used.exists() else []

    def remove(self, name: str) -> None:
        """One of those. Blocking."""
        self._containers.remove(name)

    @property
    def _used(self) -> Path:
        return self._data / FOLDER / f"{self.name}-used"


def is_alive(process: ContainerProcess) -> bool:
    return processes.is_alive(process.pid, process.started)


def _fill(root: Path, system: System) -> dict[str, MountSource]:
    """What the system has at its top, each with a place in an empty container."""
    found: dict[str, MountSource] = {}
    with os.scandir(system.root) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.name in _NOT_FILLED:
                continue
            if entry.is_symlink():
                with contextlib.suppress(FileExistsError):
                    os.symlink(os.readlink(entry.path), root / entry.name)
            elif entry.is_dir(follow_symlinks=False):
                mounts.make_mount_point(f"{root}/.", entry.name, folder=True, uid=0, gid=0)
                found[f"/{entry.name}"] = Path(entry.path)
    return found


class PodmanRuntime(ContainerRuntime):
    name = "podman"

    def __init__(self, data: Path, engine: Engine, prover: Prover) -> None:
        super().__init__(data, engine, prover, PodmanContainers(data, data / FOLDER / self.name))


class DockerRuntime(ContainerRuntime):
    """`socket` is where the daemon listens; None: where it usually does. The top folder of a
    container belongs to nobody in it."""

    name = "docker"

    def __init__(
        self, data: Path, engine: Engine, prover: Prover, socket: Path | None = None
    ) -> None:
        super().__init__(data, engine, prover, DockerContainers(data, socket))
