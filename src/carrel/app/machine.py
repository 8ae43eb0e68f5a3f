"""Which tree driver and which runtime this machine's spaces get."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from carrel.app.rooms import App
from carrel.domain.cleanup import Stray
from carrel.domain.collaborators import Taking
from carrel.domain.environments import HomeTools
from carrel.domain.errors import ContainerUnavailable, SandboxUnavailable, TreeUnavailable
from carrel.domain.files import Files
from carrel.domain.ids import is_id, space_of
from carrel.domain.runtimes import LocalRuntime, Runtime
from carrel.domain.spaces import AUTO
from carrel.domain.trees import Tree, TreeDriver
from carrel.environments.discovery import inspect_files
from carrel.environments.files import FolderFiles
from carrel.environments.login_shell import stamp_of
from carrel.environments.programs import HostPrograms
from carrel.linux.descriptors import Descriptor
from carrel.runtimes.containers import ContainerRuntime
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.runtimes.proof import choose_runtime
from carrel.runtimes.sandbox import PATH, TOOLCHAIN
from carrel.service.setup import ProjectSetup
from carrel.trees import orphans
from carrel.trees.archives import archive
from carrel.trees.drivers.common import choose_driver
from carrel.trees.extraction import unpack
from carrel.trees.files import open_files


class LocalMachine:
    """Implements `Machine`. To try everything out takes a second, so what was found to work
    is not tried again; what did not work is, in case somebody mended it."""

    def __init__(
        self,
        drivers: Sequence[TreeDriver],
        runtimes: Sequence[Runtime],
        by_name: Sequence[TreeDriver] = (),
    ) -> None:
        """`by_name` are drivers that are no choice: the service itself asks for them."""
        self.drivers = tuple(drivers)
        self._by_name = tuple(by_name)
        self.runtimes = tuple(runtimes)
        self._runtime: Runtime | None = None
        self._drivers: dict[bool, TreeDriver] = {}
        self._lock = asyncio.Lock()

    def expect(self) -> None:
        if isinstance(self._runtime, LocalRuntime):
            self._runtime.expect()

    async def runtime(self, name: str) -> Runtime:
        if name == AUTO:
            async with self._lock:
                if self._runtime is None:
                    self._runtime = (await choose_runtime(self.runtimes))[0]
                return self._runtime
        for runtime in self.runtimes:
            if runtime.name == name:
                return runtime
        known = ", ".join(runtime.name for runtime in self.runtimes)
        raise SandboxUnavailable(
            f"There is no runtime {name[:80]!r}.", hint=f"Use one of: {known}."
        )

    async def driver(self, name: str, runtime: Runtime) -> TreeDriver:
        own_paths = runtime.capabilities.own_paths
        if name == AUTO:
            async with self._lock:
                if own_paths not in self._drivers:
                    self._drivers[own_paths] = await asyncio.to_thread(self._choose, own_paths)
                return self._drivers[own_paths]
        for driver in self.drivers:
            if driver.name == name:
                return driver
        for driver in self._by_name:
            if driver.name == name:
                _check_shown(driver, own_paths)
                return driver
        known = ", ".join(driver.name for driver in self.drivers)
        raise TreeUnavailable(
            f"There is no tree driver {name[:80]!r}.", hint=f"Use one of: {known}."
        )

    def _choose(self, own_paths: bool) -> TreeDriver:
        """A runtime without mounts of its own sees a tree only where the host does."""
        seen = [(driver, driver.capabilities) for driver in self.drivers]
        usable = [
            driver for driver, can in seen if can.any_owner and (own_paths or can.visible_on_host)
        ]
        return choose_driver(usable)[0]


def _check_shown(driver: TreeDriver, own_paths: bool) -> None:
    """As root, a folder that is somebody's can be shown as the space's only by a mount."""
    if os.geteuid() == 0 and not own_paths:
        raise TreeUnavailable(
            f"The tree driver {driver.name!r} needs a runtime with mounts of its own.",
            hint="Use the runtime bubblewrap.",
        )


# What is in trees, for the service: the trees' own functions behind one contract.


class TreeContents:
    """Implements `Contents`."""

    def files(self, driver: TreeDriver, tree: Tree) -> AbstractContextManager[Files]:
        return open_files(driver, tree)

    def archive(
        self, driver: TreeDriver, tree: Tree, path: str, taking: Taking, *, zstd: bool = True
    ) -> Iterator[bytes]:
        return archive(driver, tree, path, zstd=zstd, on_skip=taking.skips, on_send=taking.sends)

    def unpack(
        self,
        driver: TreeDriver,
        tree: Tree,
        stream: BinaryIO,
        path: str,
        check: Callable[[int], None],
    ) -> None:
        unpack(driver, tree, stream, path, check=check)


# What makes a project usable, read from a space's tree.


def project_setup(driver: TreeDriver, tree: Tree, tools: HomeTools) -> ProjectSetup:
    """Reads files; runs nothing."""
    search = ":".join((*tools.path_first, PATH, *tools.path_last))
    shown = (*TOOLCHAIN, *(path for tool in tools.tools for path in tool.shown))
    with Descriptor(driver.open_root(tree)) as root:
        report = inspect_files(FolderFiles(root), HostPrograms(search, shown))
    paths = [os.path.realpath(one.found) for one in report.toolchain.programs if one.found]
    return ProjectSetup(report.setup, {path: stamp_of(path) for path in paths})


# What a crash has left on this machine, found by looking in every place where spaces are.

GROUP = "control group"
TRIAL = "trial"
CONTAINER = "container"
TRIALS = ("proof-", ".probe-")
"""How `runtimes.proof` and `trees.drivers` name their folders in the data folder."""


class LocalSweeper:
    """Implements `Sweeper`."""

    def __init__(self, data: Path, app: App, begun_at: float) -> None:
        """`begun_at`: what is older was not made by this daemon."""
        self._data = data
        self._app = app
        self._begun_at = begun_at

    def find(self, known: frozenset[str], removed: frozenset[str]) -> list[Stray]:
        found = orphans.strays(self._data, known, self._app.launcher, before=self._begun_at)
        # What lies in our own folders was made by us, whether or not there is a record of it.
        ours = removed | {stray.space_id for stray in found}
        return [*self._groups(known, ours), *found, *self._trials(), *self._containers(known)]

    def _containers(self, known: frozenset[str]) -> Iterator[Stray]:
        """Each engine is asked only where it has made one. One that does not answer is asked at
        the next start. A space has its folder before its container."""
        for runtime in self._engines():
            with contextlib.suppress(ContainerUnavailable):
                for name in runtime.left():
                    space_id = space_of(name)
                    if space_id not in known and not (self._data / "spaces" / space_id).exists():
                        yield Stray(CONTAINER, space_id, f"{runtime.name}:{name}")

    def _engines(self) -> Iterator[ContainerRuntime]:
        return (one for one in self._app.runtimes if isinstance(one, ContainerRuntime))

    def _trials(self) -> Iterator[Stray]:
        """Folders in which an earlier daemon tried what works here."""
        for name in os.listdir(self._data):
            path = self._data / name
            # Those of this daemon go while it looks.
            with contextlib.suppress(FileNotFoundError):
                found = path.lstat() if name.startswith(TRIALS) else None
                if found and stat.S_ISDIR(found.st_mode) and found.st_ctime < self._begun_at:
                    yield Stray(TRIAL, name, str(path))

    def _groups(self, known: frozenset[str], removed: frozenset[str]) -> Iterator[Stray]:
        """Other data folders have groups in the same place."""
        for name in self._app.enforcement.cgroups.known():
            if is_id(name) and name in removed and name not in known:
                yield Stray(GROUP, name, name)

    def remove(self, stray: Stray) -> None:
        if stray.kind == TRIAL:
            orphans.remove_trial(Path(stray.path))
            return
        if stray.kind == CONTAINER:
            engine, _, name = stray.path.partition(":")
            for runtime in self._engines():
                if runtime.name == engine:
                    runtime.remove(name)
            return
        if stray.kind != GROUP:
            orphans.remove_stray(stray, self._data, self._app.launcher)
            return
        cgroups: Cgroups = self._app.enforcement.cgroups
        handle = cgroups.load(stray.space_id)
        if handle is not None:
            cgroups.kill(handle)
            cgroups.remove(handle)
