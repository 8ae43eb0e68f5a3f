"""Control groups of sandboxes: made, limited, watched, emptied and removed.

A sandbox has a group in every tree that is needed for its limits, and each of its
commands a group below that in one tree only, the tracking one, so that a command's whole
family can be found and killed. In version 2 that is the same tree.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.errors import LimitsUnavailable, SandboxUnavailable
from carrel.domain.limits import LimitKind, Limits, LimitSupport, Usage
from carrel.linux import cgroupfs
from carrel.runtimes.limits import controls
from carrel.runtimes.limits.sites import LIMITING, PROBE, Site, Survey, probe_name, survey

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_KINDS = {"memory": LimitKind.MEMORY, "pids": LimitKind.PIDS, "cpu": LimitKind.CPU}
_PROBE_LIMITS = Limits(memory_bytes=64 << 20, cpus=0.5, pids=64)


@dataclass(frozen=True)
class CgroupHandle:
    """The groups of one sandbox or of one command; can be written down as JSON.

    A process joins by writing its number (or 0 for itself) to every file in `procs`.
    Where this machine has no usable groups, all are empty.
    """

    group_id: str
    folders: tuple[str, ...] = ()
    """Those that belong to this handle and go with it."""
    procs: tuple[str, ...] = ()
    tracking: str | None = None
    kill_file: str | None = None
    controllers: tuple[tuple[str, str], ...] = ()
    """The folder that each controller of this group is in."""

    def folder(self, controller: str) -> Path | None:
        found = dict(self.controllers).get(controller)
        return Path(found) if found is not None else None

    @classmethod
    def from_plain(cls, plain: Mapping[str, object]) -> CgroupHandle:
        """From what `dataclasses.asdict` gave, be it through JSON."""

        def texts(name: str) -> tuple[str, ...]:
            values = plain[name]
            assert isinstance(values, (list, tuple))
            return tuple(map(str, values))

        def text(name: str) -> str | None:
            value = plain[name]
            return None if value is None else str(value)

        pairs = plain["controllers"]
        assert isinstance(pairs, (list, tuple))
        return cls(
            str(plain["group_id"]),
            texts("folders"),
            texts("procs"),
            text("tracking"),
            text("kill_file"),
            tuple((str(name), str(folder)) for name, folder in pairs),
        )


def _checked(identifier: str) -> str:
    """Groups' own files have dots in their names, so no id may have one."""
    if not _ID.fullmatch(identifier):
        raise ValueError(f"not a name for a control group: {identifier!r}")
    return identifier


class Cgroups:
    """All methods are quick and may be called from any thread. What works here is found
    out at the first use, by doing."""

    def __init__(self, look: Callable[[], Survey] = survey) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._survey: Survey | None = None
        self._trees: tuple[cgroupfs.Hierarchy, ...] = ()
        self._support: tuple[LimitSupport, ...] | None = None

    def _surveyed(self) -> Survey:
        with self._lock:
            known = self._survey
            # A parent that someone removed must be made anew with its controllers.
            if known is None or not all(site.folder.is_dir() for site in known.sites):
                known = self._survey = self._look()
            return known

    def _roles(self) -> dict[str, Site]:
        """The site of each controller; the tracking one is the freezer's."""
        known = self._surveyed()
        names = (*LIMITING, "cpuacct", "freezer")
        return {name: site for name in names if (site := known.having(name)) is not None}

    def support(self) -> tuple[LimitSupport, ...]:
        """For memory, CPU and processes: whether this machine's groups can limit them."""
        if self._support is None:
            roles = self._roles()
            refusals = " ".join(self._surveyed().refusals)
            self._support = tuple(
                self._try(name, kind, roles.get(name), refusals) for name, kind in _KINDS.items()
            )
        return self._support

    def _try(self, name: str, kind: LimitKind, site: Site | None, refusals: str) -> LimitSupport:
        if site is None:
            reason = f"no usable cgroup has the {name} controller. {refusals}".strip()
            return LimitSupport(kind, False, reason)
        group = site.folder / probe_name()
        try:
            group.mkdir()
            controls.LIMITERS[name](group, _PROBE_LIMITS)
        except OSError as error:
            return LimitSupport(kind, False, f"{group}: {error.strerror}")
        finally:
            cgroupfs.remove(group)
        return LimitSupport(kind, True, f"cgroup v{site.version} at {site.folder}")

    def stir(self) -> None:
        """So that processes can soon join groups without waiting. All such moves take one lock
        of the kernel's, the first after a pause only when every processor has been through its
        scheduler: eight milliseconds on an idle machine, and nothing for a while after. The
        move is our own, to where we are."""
        if not self._surveyed().sites:
            return
        self._trees = self._trees or cgroupfs.hierarchies()
        for tree in self._trees:
            with contextlib.suppress(OSError):
                if (here := cgroupfs.own_folder(tree)) is not None:
                    cgroupfs.write(here, cgroupfs.PROCS, str(os.getpid()))
                    return

    def create(self, group_id: str, limits: Limits) -> CgroupHandle:
        """Makes the groups of a sandbox, or finds them, and sets its limits. A limit whose
        controller this machine does not offer is left out (see `support`).

        Raises `LimitsUnavailable`, and leaves nothing then.
        """
        roles = self._roles()
        handle = self._handle(_checked(group_id), roles)
        try:
            for folder in handle.folders:
                Path(folder).mkdir(exist_ok=True)
            for name in LIMITING:
                if (group := handle.folder(name)) is not None:
                    controls.LIMITERS[name](group, limits)
        except OSError as error:
            self.remove(handle)
            raise LimitsUnavailable(
                f"The control group of {group_id} cannot be set up: {error}.",
                hint="Start without this limit, or look at what the kernel refused.",
            ) from error
        return replace(handle, kill_file=_kill_file(handle.tracking))

    def _handle(self, group_id: str, roles: dict[str, Site]) -> CgroupHandle:
        controllers = tuple((name, str(site.folder / group_id)) for name, site in roles.items())
        folders = tuple(dict.fromkeys(folder for _, folder in controllers))
        tracking = next(
            (
                folder
                for role in ("freezer", "pids", "memory", "cpu", "cpuacct")
                for name, folder in controllers
                if name == role
            ),
            None,
        )
        procs = tuple(f"{folder}/{cgroupfs.PROCS}" for folder in folders)
        return CgroupHandle(group_id, folders, procs, tracking, None, controllers)

    def load(self, group_id: str) -> CgroupHandle | None:
        """The groups of a sandbox that was made before, as far as they are there."""
        full = self._handle(_checked(group_id), self._roles())
        there = tuple(folder for folder in full.folders if Path(folder).is_dir())
        if not there:
            return None
        return CgroupHandle(
            group_id,
            there,
            tuple(f"{folder}/{cgroupfs.PROCS}" for folder in there),
            full.tracking if full.tracking in there else there[0],
            _kill_file(full.tracking),
            tuple(pair for pair in full.controllers if pair[1] in there),
        )

    def known(self) -> frozenset[str]:
        """The ids of all groups that are there, of every data folder."""
        found: set[str] = set()
        for site in self._surveyed().sites:
            with contextlib.suppress(FileNotFoundError):
                found.update(path.name for path in site.folder.iterdir() if path.is_dir())
        return frozenset(name for name in found if not name.startswith(PROBE))

    def run_group(self, handle: CgroupHandle, run_id: str) -> CgroupHandle:
        """A group for one command, below the sandbox's in the tracking tree; the command
        joins the sandbox's groups in the other trees. Idempotent."""
        if handle.tracking is None:
            return CgroupHandle(_checked(run_id))
        folder = Path(handle.tracking) / _checked(run_id)
        folder.mkdir(exist_ok=True)
        others = (path for path in handle.procs if Path(path).parent != Path(handle.tracking))
        accounting = handle.folder("cpuacct") == Path(handle.tracking)
        return CgroupHandle(
            run_id,
            (str(folder),),
            (*others, str(folder / cgroupfs.PROCS)),
            str(folder),
            _kill_file(str(folder)),
            (("cpuacct", str(folder)),) if accounting else (),
        )

    def usage(self, handle: CgroupHandle) -> Usage:
        memory, pids = handle.folder("memory"), handle.folder("pids")
        return Usage(
            cpu_seconds=controls.cpu_seconds(handle.folder("cpuacct")),
            memory_bytes=controls.first(memory, "memory.current", "memory.usage_in_bytes"),
            memory_peak_bytes=controls.first(memory, "memory.peak", "memory.max_usage_in_bytes"),
            pids=controls.first(pids, "pids.current"),
        )

    def memory_events(self, handle: CgroupHandle) -> int | None:
        """How many processes the kernel has killed at the memory limit."""
        return controls.count(
            handle.folder("memory"), "oom_kill", "memory.events", "memory.oom_control"
        )

    def pids_events(self, handle: CgroupHandle) -> int | None:
        """How often a fork was refused at the limit of processes."""
        return controls.count(handle.folder("pids"), "max", "pids.events")

    def cpu_throttled(self, handle: CgroupHandle) -> int | None:
        """In how many periods (a tenth of a second each) the group had to wait."""
        return controls.count(handle.folder("cpu"), "nr_throttled", "cpu.stat")

    def members(self, handle: CgroupHandle) -> frozenset[int]:
        """The processes of the sandbox or command, by their number on the host."""
        return frozenset(pid for folder in handle.folders for pid in cgroupfs.members(Path(folder)))

    def kill(self, handle: CgroupHandle, timeout: float = cgroupfs.KILL_TIMEOUT_S) -> bool:
        """Kills all of it, whatever it forks meanwhile, and waits until it is gone. False
        when some process is stuck in the kernel. A group that is gone is no error."""
        # The tracking tree first: it can kill at once. Others may hold what died half-way in.
        order = sorted(handle.folders, key=lambda folder: folder != handle.tracking)
        return all([cgroupfs.kill(Path(folder), timeout) for folder in order])

    def remove(self, handle: CgroupHandle, timeout: float = cgroupfs.REMOVE_TIMEOUT_S) -> None:
        """Removes the groups, those of commands first; idempotent. Kills nothing: raises
        `SandboxUnavailable` when there are still processes after `timeout`."""
        stuck = [folder for folder in handle.folders if not cgroupfs.remove(Path(folder), timeout)]
        if stuck:
            pids = sorted(self.members(handle))
            raise SandboxUnavailable(
                f"The control group {stuck[0]} cannot be removed: processes {pids} are in it.",
                hint="They do not end when killed; look at what they wait for.",
                folders=stuck,
            )


def _kill_file(folder: str | None) -> str | None:
    found = cgroupfs.kill_file(Path(folder)) if folder is not None else None
    return str(found) if found is not None else None
