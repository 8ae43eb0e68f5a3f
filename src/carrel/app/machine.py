"""Which tree driver and which runtime this machine's spaces get."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from carrel.domain.errors import SandboxUnavailable, TreeUnavailable
from carrel.domain.runtimes import Runtime
from carrel.domain.spaces import AUTO
from carrel.domain.trees import TreeDriver
from carrel.runtimes.auto import choose_runtime
from carrel.trees.drivers.auto import choose_driver


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
        if self._runtime is not None:
            self._runtime.expect()

    async def runtime(self, name: str) -> Runtime:
        if name == AUTO:
            async with self._lock:
                if self._runtime is None:
                    self._runtime = (await choose_runtime(self.runtimes)).runtime
                return self._runtime
        for runtime in self.runtimes:
            if runtime.name == name:
                return runtime
        known = ", ".join(runtime.name for runtime in self.runtimes)
        raise SandboxUnavailable(f"There is no runtime {name[:80]!r}.", hint=f"Known are: {known}.")

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
            f"There is no tree driver {name[:80]!r}.", hint=f"Known are: {known}."
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
            hint="Use bubblewrap.",
        )
