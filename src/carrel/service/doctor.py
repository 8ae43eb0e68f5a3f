"""What this machine can do, found by doing it, and how to mend what it cannot."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from carrel import __version__
from carrel.api.types.admin import Diagnosis, Finding, Grade
from carrel.domain.availability import Availability
from carrel.domain.collaborators import Machine
from carrel.domain.errors import CarrelError
from carrel.domain.limits import LimitSupport

LITTLE_ROOM = 1 << 30
"""Less than this on the data folder's disk is worth a warning."""
_PROGRAMS = {
    "git": ("git", "projects from git, and commits in spaces"),
    "bwrap": ("bubblewrap", "the default sandbox"),
    "tmux": ("tmux", "terminals that outlive their clients"),
}


class Doctor:
    """`limits` says how each kind of limit is enforced, `launcher` the version and the process
    of the launcher that runs; both blocking."""

    def __init__(
        self,
        data: Path,
        machine: Machine,
        limits: Callable[[], Sequence[LimitSupport]],
        launcher: Callable[[], tuple[str, int]],
    ) -> None:
        self._data = data
        self._machine = machine
        self._limits = limits
        self._launcher = launcher

    async def examine(self) -> Diagnosis:
        findings = [self._kernel(), *self._programs(), await asyncio.to_thread(self._room)]
        findings += await asyncio.to_thread(self._outdated)
        drivers, driver = await self._drivers()
        runtimes, runtime = await self._runtimes()
        limits = await asyncio.to_thread(self._enforcement)
        found = (*findings, *drivers, *runtimes, *limits)
        healthy = all(finding.grade is not Grade.BAD for finding in found)
        return Diagnosis(healthy=healthy, runtime=runtime, driver=driver, findings=found)

    @staticmethod
    def _kernel() -> Finding:
        return Finding("machine", "kernel", Grade.GOOD, f"{platform.system()} {platform.release()}")

    @staticmethod
    def _programs() -> list[Finding]:
        found = []
        for program, (package, purpose) in _PROGRAMS.items():
            path = shutil.which(program)
            if path is not None:
                found.append(Finding("program", program, Grade.GOOD, path))
                continue
            remedy = f"sudo apt-get install {package}"
            what = f"Not installed: {purpose}."
            found.append(Finding("program", program, Grade.WARNING, what, remedy))
        return found

    def _room(self) -> Finding:
        free = shutil.disk_usage(self._data).free
        grade = Grade.GOOD if free >= LITTLE_ROOM else Grade.WARNING
        what = f"{self._data} has {free >> 20:,} MiB free."
        remedy = "" if grade is Grade.GOOD else "carrel gc, or set CARREL_DATA to a larger disk."
        return Finding("machine", "disk", grade, what, remedy)

    def _outdated(self) -> list[Finding]:
        """A launcher outlives its daemon, and so an upgrade."""
        try:
            version, pid = self._launcher()
        except CarrelError as error:
            return [Finding("machine", "launcher", Grade.WARNING, error.message, error.hint)]
        if version == __version__:
            return []
        what = f"The launcher is still the one of version {version}; this is {__version__}."
        if os.geteuid() != 0:
            what += " Commands that run in spaces end with it."
        return [Finding("machine", "launcher", Grade.WARNING, what, f"kill {pid}")]

    async def _drivers(self) -> tuple[list[Finding], str]:
        found, best = [], ""
        for driver in self._machine.drivers:
            answer = await asyncio.to_thread(driver.probe)
            # One that shares blocks is enough; the others are not missed then.
            grade = Grade.GOOD if answer.available or best else Grade.WARNING
            found.append(_finding("tree", driver.name, answer, grade))
            if answer.available and not best:
                best = driver.name
        if not best:
            found.append(Finding("tree", "any", Grade.BAD, "No private copy can be made here."))
        return found, best

    async def _runtimes(self) -> tuple[list[Finding], str]:
        found, best = [], ""
        for runtime in self._machine.runtimes:
            try:
                answer = await runtime.probe()
            except CarrelError as error:
                answer = Availability(False, error.message, error.hint)
            if not runtime.capabilities.confines:
                what = "Confines nothing; used only when it is asked for by name."
                found.append(Finding("runtime", runtime.name, Grade.GOOD, what))
                continue
            missing = Grade.GOOD if best else Grade.WARNING
            grade = Grade.GOOD if answer.available else missing
            found.append(_finding("runtime", runtime.name, answer, grade))
            if answer.available and not best:
                best = runtime.name
                gaps = runtime.capabilities.uncovered
                found += [Finding("isolation", best, Grade.WARNING, gap) for gap in gaps]
        if not best:
            remedies = [finding.remedy for finding in found if finding.remedy]
            what = "Nothing on this machine confines an agent."
            found.append(Finding("runtime", "any", Grade.BAD, what, "; or ".join(remedies)))
        return found, best

    def _enforcement(self) -> list[Finding]:
        return [
            Finding(
                "limit",
                str(support.kind),
                Grade.GOOD if support.enforced else Grade.WARNING,
                support.how if support.enforced else f"Not enforced: {support.how}",
            )
            for support in self._limits()
        ]


def _finding(area: str, name: str, answer: Availability, grade: Grade) -> Finding:
    remedy = "" if answer.available else answer.remedy
    return Finding(area, name, grade, answer.reason, remedy)
