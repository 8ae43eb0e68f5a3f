"""Trees and runtimes, put together for programs that use them directly.

    async with open_app(load_settings()) as app:
        base = app.bases.build(request)
        …

Opening costs nothing but a few objects; what works on this machine is found out when a
driver or a runtime is first asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.agents import programs
from carrel.config import Settings
from carrel.domain.errors import SandboxUnavailable, TreeUnavailable
from carrel.domain.images import Images
from carrel.domain.limits import Limits, LimitSupport
from carrel.domain.runtimes import Bind, LimitHit, LimitsChanged, LocalRuntime
from carrel.domain.trees import Owner, TreeDriver
from carrel.launcher.client import Launcher
from carrel.linux import btrfs, ids
from carrel.runtimes.bubblewrap import BubblewrapRuntime
from carrel.runtimes.containers import LINGER_S as CONTAINER_LINGER_S
from carrel.runtimes.containers import DockerRuntime, PodmanRuntime
from carrel.runtimes.engine import LINGER_S, Engine
from carrel.runtimes.landlock import LandlockRuntime
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.runtimes.limits.disk import ProjectQuotas
from carrel.runtimes.limits.enforcement import Enforcement, support_for
from carrel.runtimes.process import ProcessRuntime
from carrel.runtimes.proof import Prover, choose_runtime
from carrel.runtimes.recordings import Readers
from carrel.runtimes.sandbox import Identities, close_folders
from carrel.service.open_spaces import OwnProgram
from carrel.trees.bases.disk import SubvolumeLayout
from carrel.trees.bases.store import BaseStore
from carrel.trees.drivers.btrfs import BtrfsDriver
from carrel.trees.drivers.common import choose_driver
from carrel.trees.drivers.copies import CopyDriver, ReflinkDriver
from carrel.trees.drivers.direct import DirectDriver
from carrel.trees.drivers.overlay import OverlayDriver
from carrel.trees.host_edits import HostEdits
from carrel.trees.images.store import ImageStore
from carrel.trees.ranged.calls import RangeCalls
from carrel.trees.ranged.images import RangedImages

AUTO = "auto"
_EVERY_LIMIT = Limits(1 << 30, 1.0, 100, 1 << 30, 1 << 30, 1024, 60.0)


@dataclass(frozen=True)
class App:
    """The wired rooms. `drivers` and `runtimes` are in the order of preference; `direct` is
    none that is chosen."""

    settings: Settings
    launcher: Launcher
    identities: Identities
    bases: BaseStore
    drivers: tuple[TreeDriver, ...]
    runtimes: tuple[LocalRuntime, ...]
    enforcement: Enforcement
    direct: TreeDriver
    readers: Readers
    edits: HostEdits
    images: Images
    ranges: RangeCalls
    engines: Sequence[Engine] = ()

    def end_watches(self) -> None:
        """Of limits: whoever is about to let the launcher go asks it nothing more."""
        for engine in self.engines:
            engine.close()

    def limits(self) -> tuple[LimitSupport, ...]:
        """How each kind of limit would be enforced on a space of this machine; blocking."""
        spare = ids.uid_range()[1:] if os.geteuid() == 0 else ()
        owner = Owner(spare[-1], spare[-1]) if spare else None
        return support_for(_EVERY_LIMIT, self.enforcement.cgroups, self.settings.data, owner)

    async def driver(self, name: str = AUTO) -> TreeDriver:
        """By name, or the best that works here. `TreeUnavailable`."""
        if name == AUTO:
            return (await asyncio.to_thread(choose_driver, self.drivers))[0]
        for driver in self.drivers:
            if driver.name == name:
                return driver
        known = ", ".join(driver.name for driver in self.drivers)
        raise TreeUnavailable(f"There is no tree driver {name!r}.", hint=f"Use one of: {known}.")

    async def runtime(self, name: str = AUTO) -> LocalRuntime:
        """By name, or the best that confines here. `SandboxUnavailable`."""
        if name == AUTO:
            return (await choose_runtime(self.runtimes))[0]
        for runtime in self.runtimes:
            if runtime.name == name:
                return runtime
        known = ", ".join(runtime.name for runtime in self.runtimes)
        raise SandboxUnavailable(f"There is no runtime {name!r}.", hint=f"Use one of: {known}.")


def own_program() -> OwnProgram:
    """This program, as spaces have it."""
    shown = tuple(Bind(Path(path), path) for path in programs.folders())
    return OwnProgram(
        programs.python("carrel.cli.main"), shown, programs.script("carrel.agents.dev_shell")
    )


def ignore_event(_event: LimitHit | LimitsChanged) -> None:
    """The listener of callers that do not watch limits."""


@asynccontextmanager
async def open_app(
    settings: Settings,
    on_event: Callable[[LimitHit | LimitsChanged], None] = ignore_event,
    linger_s: float = LINGER_S,
) -> AsyncIterator[App]:
    """What runs in sandboxes goes on when the context ends."""
    try:
        _make_data(settings.data)
    except OSError as error:
        # A disk that cannot be written is told of by who must write to it.
        if error.errno != errno.EROFS:
            raise
    launcher = Launcher(settings.data)
    identities = Identities(settings.data)
    bases, drivers = _trees(settings, launcher)
    enforcement = Enforcement(Cgroups(), ProjectQuotas())
    prover = Prover(settings.data, identities, own_program().binds)
    readers, edits, ranges = Readers(launcher), HostEdits(), RangeCalls(settings.data)

    engines = [
        Engine(name, launcher, enforcement, on_event, linger_s, readers)
        for name in ("bubblewrap", "landlock", "process")
    ]
    engines += [
        Engine(name, launcher, enforcement, on_event, CONTAINER_LINGER_S, readers)
        for name in ("podman", "docker")
    ]
    runtimes = (
        BubblewrapRuntime(settings.data, engines[0], prover),
        LandlockRuntime(engines[1], prover),
        ProcessRuntime(engines[2]),
        PodmanRuntime(settings.data, engines[3], prover),
        DockerRuntime(settings.data, engines[4], prover),
    )
    try:
        yield App(
            *(settings, launcher, identities, bases, drivers, runtimes, enforcement),
            direct=DirectDriver(),
            readers=readers,
            edits=edits,
            images=_images(settings.data, ranges),
            ranges=ranges,
            engines=engines,
        )
    finally:
        edits.close()
        ranges.close()
        for engine in engines:
            engine.close()
        launcher.close()


def _make_data(data: Path) -> None:
    """With the modes that keep other accounts out, whatever an earlier version made. As root
    sandboxes' users and warm processes may have to pass through, and find each folder closed."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    data.mkdir(mode=mode, parents=True, exist_ok=True)
    if stat.S_IMODE(data.stat().st_mode) == 0o711:
        # Other modes are somebody's own choice.
        data.chmod(mode)
    for name in ("spaces", "instances"):
        close_folders(data / name)
    with contextlib.suppress(FileNotFoundError):
        (data / "compiled").chmod(0o700)


def _images(data: Path, ranges: RangeCalls) -> Images:
    store = ImageStore(data)
    return store if os.geteuid() == 0 else RangedImages(store, ranges)


def _trees(settings: Settings, launcher: Launcher) -> tuple[BaseStore, tuple[TreeDriver, ...]]:
    """Where the disk can snapshot, bases are kept as subvolumes, which only that driver can
    use; everywhere else as layers, which all others share."""
    data = settings.data
    if btrfs.on_btrfs(data):
        bases = BaseStore(data, layout=SubvolumeLayout())
        return bases, (BtrfsDriver(data, bases),)
    bases = BaseStore(data)
    return bases, (
        OverlayDriver(data, bases, launcher),
        ReflinkDriver(data, bases),
        CopyDriver(data, bases),
    )
