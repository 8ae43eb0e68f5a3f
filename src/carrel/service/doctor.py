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
from carrel.domain.access import LOCAL
from carrel.domain.agents import FoundFrontend
from carrel.domain.availability import Availability
from carrel.domain.collaborators import Machine, Packages, Toolchains
from carrel.domain.engines import EngineFound
from carrel.domain.errors import CarrelError
from carrel.domain.limits import LimitSupport
from carrel.service.credentials import Keyring

LITTLE_ROOM = 1 << 30
"""Less than this on the data folder's disk is worth a warning."""
_PROGRAMS = {
    "git": ("git", "projects from git, and commits in spaces"),
    "bwrap": ("bubblewrap", "the default sandbox"),
    "tmux": ("tmux", "terminals that outlive their clients"),
    "ssh": ("openssh-client", "SSH into spaces: its clients, and the keys"),
    "sshd": ("openssh-server", "SSH into spaces; the machine's own service may stay off"),
}


_ADMINISTRATORS = "/usr/sbin:/sbin"
"""Not on everybody's PATH."""
_ROUTES = (Path("/proc/net/route"), Path("/proc/net/ipv6_route"))
_DEFAULT = ("00000000", "0" * 32)
"""Where a route to everywhere goes."""


class Doctor:
    """`limits` says how each kind of limit is enforced, `launcher` the version and the process
    of the launcher that runs, `git` whether the git that is there can land work, `engines` what
    builds images; all blocking. `keyring` knows agents and their keys."""

    def __init__(
        self,
        data: Path,
        machine: Machine,
        limits: Callable[[], Sequence[LimitSupport]],
        launcher: Callable[[], tuple[str, int]],
        git: Callable[[], Availability],
        keyring: Keyring,
        toolchains: Toolchains,
        packages: Packages,
        engines: Callable[[], Sequence[EngineFound]],
        no_range: Callable[[], str],
    ) -> None:
        """`no_range`: why the systems of images have one id here; empty: they have a range."""
        self._engines = engines
        self._no_range = no_range
        self._keyring = keyring
        self._data = data
        self._machine = machine
        self._limits = limits
        self._launcher = launcher
        self._git = git
        self._toolchains = toolchains
        self._packages = packages

    async def examine(self) -> Diagnosis:
        findings = [self._kernel(), await asyncio.to_thread(self._room)]
        findings += await asyncio.to_thread(self._outdated)
        drivers, driver = await self._drivers()
        runtimes, runtime = await self._runtimes()
        limits = await asyncio.to_thread(self._enforcement)
        network = await asyncio.to_thread(_network)
        agents = await self._agents()
        tools = await asyncio.to_thread(self._tools)
        engines = _with_engines(await asyncio.to_thread(self._engines))
        engines.append(_ids(await asyncio.to_thread(self._no_range)))
        programs = await asyncio.to_thread(self._programs)
        found = (*findings, *programs, *drivers, *runtimes, *limits, network)
        found += (*engines, *tools, *agents)
        healthy = all(finding.grade is not Grade.BAD for finding in found)
        return Diagnosis(healthy=healthy, runtime=runtime, driver=driver, findings=found)

    @staticmethod
    def _kernel() -> Finding:
        return Finding("machine", "kernel", Grade.GOOD, f"{platform.system()} {platform.release()}")

    def _programs(self) -> list[Finding]:
        found = []
        for program, (package, purpose) in _PROGRAMS.items():
            path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_ADMINISTRATORS}")
            if path is not None and program == "git":
                found.append(_finding("program", program, self._git(), needed=True))
                continue
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
            found.append(_finding("tree", driver.name, answer, needed=not best))
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
            asked_for = runtime.capabilities.needs_image
            found.append(
                _finding("runtime", runtime.name, answer, needed=not best and not asked_for)
            )
            if asked_for:
                continue
            if answer.available and not best:
                best = runtime.name
                gaps = runtime.capabilities.uncovered
                found += [Finding("isolation", best, Grade.WARNING, gap) for gap in gaps]
        if not best:
            what = "Nothing on this machine confines an agent."
            found.append(Finding("runtime", "any", Grade.BAD, what))
        return found, best

    async def _agents(self) -> list[Finding]:
        """Which can work: those that are installed, and have a key where they need one."""
        found = await self._keyring.found(LOCAL)
        keys = await self._keyring.endpoints(LOCAL)
        findings = [_agent(one) for one in sorted(found, key=lambda one: not one.installed)]
        for name, endpoints in keys.items():
            also = f", and for {', '.join(endpoints)}" if endpoints else ""
            findings.append(Finding("key", name, Grade.GOOD, f"Kept for its provider{also}."))
        return findings

    def _enforcement(self) -> list[Finding]:
        return [
            Finding(
                "limit",
                str(support.kind),
                Grade.GOOD if support.enforced else Grade.WARNING,
                support.how if support.enforced else f"Not enforced: {support.how}",
                support.remedy,
            )
            for support in self._limits()
        ]

    def _tools(self) -> list[Finding]:
        """Those in the owner's home, which its spaces see, and what they do not get."""
        found = [
            Finding("toolchain", tool.name, Grade.GOOD, ", ".join(tool.shown))
            for tool in self._toolchains.find().tools
            if not tool.partly
        ]
        found += [
            Finding("toolchain", tool.name, Grade.WARNING, _IN_PART, "Remove what you do not use.")
            for tool in self._toolchains.find().tools
            if tool.partly
        ]
        if withheld := self._packages.settings().withheld:
            what = f"Spaces do not get: {'; '.join(withheld)}."
            found.append(Finding("packages", "withheld", Grade.GOOD, what))
        return found


_IN_PART = (
    "Its folder is too large to be looked through for passwords: spaces do not see the deeper part."
)


def _finding(area: str, name: str, answer: Availability, *, needed: bool) -> Finding:
    """One that works is enough: what is not needed any more is not missed, and not to be mended."""
    if answer.available:
        return Finding(area, name, Grade.GOOD, answer.reason)
    if not needed:
        return Finding(area, name, Grade.UNUSED, answer.reason)
    return Finding(area, name, Grade.WARNING, answer.reason, answer.remedy)


def _with_engines(engines: Sequence[EngineFound]) -> list[Finding]:
    """None is needed: images can be imported without one."""
    one_works = any(one.answer.available for one in engines)
    return [
        Finding("engine", one.name, Grade.GOOD, one.answer.reason)
        if one.answer.available
        else Finding(
            *("engine", one.name, Grade.UNUSED, one.answer.reason),
            remedy="" if one_works else one.answer.remedy,
        )
        for one in engines
    ]


def _ids(missing: str) -> Finding:
    if not missing:
        return Finding("image", "ids", Grade.GOOD, "Systems of images have a range of ids.")
    why, _, remedy = missing.partition(": ")
    what = f"{why}: in an image everything belongs to one user, and apt-get installs nothing."
    return Finding("image", "ids", Grade.WARNING, what, remedy)


def _agent(found: FoundFrontend) -> Finding:
    if not found.installed:
        return Finding("agent", found.name, Grade.UNUSED, "Not installed.", found.install)
    if found.problem:
        return Finding("agent", found.name, Grade.WARNING, found.problem)
    what = f"Version {found.version}." if found.version else "Installed."
    if found.logged_in is not False:
        return Finding("agent", found.name, Grade.GOOD, what)
    remedy = f"carrel auth set {found.credentials[0]}" if found.credentials else ""
    return Finding("agent", found.name, Grade.WARNING, f"{what} There is no key for it.", remedy)


def _network() -> Finding:
    """Whether what has an open network gets anywhere."""
    for path in _ROUTES:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        if any(
            set(_DEFAULT) & set(line.split()[:2]) and "lo" not in line.split() for line in lines
        ):
            what = "Spaces with an open network reach what this machine reaches."
            return Finding("network", "route", Grade.GOOD, what)
    what = "This machine has no way to other networks: agents reach no model elsewhere."
    return Finding("network", "route", Grade.WARNING, what, "Connect it, or use a model on it.")
