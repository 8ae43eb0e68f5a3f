"""Trees and runtimes, put together for programs that use them directly.

    async with open_app(load_settings()) as app:
        base = app.bases.build(request)
        …

Opening costs nothing but a few objects; what works on this machine is found out when a
driver or a runtime is first asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from carrel.config import Settings
from carrel.domain.errors import SandboxUnavailable, TreeUnavailable
from carrel.domain.limits import Limits, LimitSupport
from carrel.domain.runtimes import LimitHit, Runtime
from carrel.domain.trees import TreeDriver
from carrel.launcher.client import Launcher
from carrel.linux import btrfs
from carrel.runtimes.auto import choose_runtime
from carrel.runtimes.bubblewrap.runtime import BubblewrapRuntime
from carrel.runtimes.engine import LINGER_S, Engine
from carrel.runtimes.identity import Identities
from carrel.runtimes.landlock import LandlockRuntime
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.runtimes.limits.disk import ProjectQuotas
from carrel.runtimes.limits.enforcing import Enforcement
from carrel.runtimes.limits.support import support_for
from carrel.runtimes.process import ProcessRuntime
from carrel.runtimes.proof import Prover
from carrel.trees.bases.layouts import SubvolumeLayout
from carrel.trees.bases.store import BaseStore
from carrel.trees.drivers.auto import choose_driver
from carrel.trees.drivers.btrfs import BtrfsDriver
from carrel.trees.drivers.copy import CopyDriver
from carrel.trees.drivers.direct import DirectDriver
from carrel.trees.drivers.overlay import OverlayDriver
from carrel.trees.drivers.reflink import ReflinkDriver

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
    runtimes: tuple[Runtime, ...]
    enforcement: Enforcement
    direct: TreeDriver

    def limits(self) -> tuple[LimitSupport, ...]:
        """How each kind of limit would be enforced on a space of this machine; blocking."""
        return support_for(_EVERY_LIMIT, self.enforcement.cgroups, self.settings.data)

    async def driver(self, name: str = AUTO) -> TreeDriver:
        """By name, or the best that works here. `TreeUnavailable`."""
        if name == AUTO:
            return (await asyncio.to_thread(choose_driver, self.drivers))[0]
        for driver in self.drivers:
            if driver.name == name:
                return driver
        known = ", ".join(driver.name for driver in self.drivers)
        raise TreeUnavailable(f"There is no tree driver {name!r}.", hint=f"Known are: {known}.")

    async def runtime(self, name: str = AUTO) -> Runtime:
        """By name, or the best that confines here. `SandboxUnavailable`."""
        if name == AUTO:
            return (await choose_runtime(self.runtimes)).runtime
        for runtime in self.runtimes:
            if runtime.name == name:
                return runtime
        known = ", ".join(runtime.name for runtime in self.runtimes)
        raise SandboxUnavailable(f"There is no runtime {name!r}.", hint=f"Known are: {known}.")


def ignore_event(_event: LimitHit) -> None:
    """The listener of callers that do not watch limits."""


@asynccontextmanager
async def open_app(
    settings: Settings,
    on_event: Callable[[LimitHit], None] = ignore_event,
    linger_s: float = LINGER_S,
) -> AsyncIterator[App]:
    """What runs in sandboxes goes on when the context ends."""
    settings.data.mkdir(mode=0o711, parents=True, exist_ok=True)
    (settings.data / "spaces").mkdir(mode=0o711, exist_ok=True)
    launcher = Launcher(settings.data)
    identities = Identities(settings.data)
    bases, drivers = _trees(settings, launcher)
    enforcement = Enforcement(Cgroups(), ProjectQuotas())
    prover = Prover(settings.data, identities)

    def engine(name: str) -> Engine:
        return Engine(name, launcher, enforcement, on_event, linger_s)

    runtimes = (
        BubblewrapRuntime(settings.data, engine("bubblewrap"), prover),
        LandlockRuntime(engine("landlock"), prover),
        ProcessRuntime(engine("process")),
    )
    try:
        yield App(
            *(settings, launcher, identities, bases, drivers, runtimes, enforcement),
            direct=DirectDriver(),
        )
    finally:
        launcher.close()


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
