"""Control groups of sandboxes: made, limited, watched, emptied and removed.

A sandbox has a group in every tree that is needed for its limits, and each of its
commands a group below that in one tree only, the tracking one, so that a command's whole
family can be found and killed. In version 2 that is the same tree.

Sandboxes that have their limits together (a family) have their groups below one more, which has
the limits: so the kernel counts them together, and each can still be killed and removed alone.

Where groups can be made is found out by making one. Version 2 has rules of its own: a group hands
controllers on only when it has no process itself (the root is exempt), and a process is moved only
by whoever may write to both the new group and the nearest one that holds the old and the new. So an
ordinary user needs a part of the tree that was delegated to him and that his processes are in
already.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import LimitsUnavailable, SandboxUnavailable
from carrel.domain.limits import LimitKind, Limits, LimitSupport, ResourceUsage
from carrel.linux import cgroupfs, systemd
from carrel.linux.cgroupfs import Hierarchy

FAMILY = ".family"
"""How the name of a group ends that has those of a family below it; no id has a dot."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_KINDS = {"memory": LimitKind.MEMORY, "pids": LimitKind.PIDS, "cpu": LimitKind.CPU}
_PROBE_LIMITS = Limits(memory_bytes=64 << 20, cpus=0.5, pids=64)
PARENT = "carrel"
"""All groups are below one of this name."""
PROBE = "probe-"
_ROUNDS = 8
"""A process may have forked just before it was moved; a few times over is enough."""
LIMITING = ("memory", "pids", "cpu")
_USEFUL = frozenset({*LIMITING, "cpuacct", "freezer"})
_CHILD_TIMEOUT_S = 5.0
"""For a shell that reads one line to end once its input was closed."""
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
"""The kernel takes no smaller share of a period."""


# Where groups can be made


@dataclass(frozen=True)
class Site:
    """A folder that groups can be made in, with the controllers that they then have."""

    version: int
    folder: Path
    controllers: frozenset[str]


@dataclass(frozen=True)
class Survey:
    """The sites that work, and in sentences why others do not."""

    sites: tuple[Site, ...]
    refusals: tuple[str, ...]

    def having(self, controller: str) -> Site | None:
        return next((site for site in self.sites if controller in site.controllers), None)


def survey(trees: tuple[Hierarchy, ...] | None = None) -> Survey:
    """Tries every mounted tree: makes a group, moves a process into it, removes it."""
    trees = cgroupfs.hierarchies() if trees is None else trees
    sites: list[Site] = []
    refusals: list[str] = []
    for tree in trees:
        had = frozenset[str]().union(*(site.controllers for site in sites))
        if tree.version == 1 and not tree.controllers & _USEFUL - had:
            continue
        if not tree.writable:
            refusals.append(f"{tree.mount} is mounted read-only.")
            continue
        try:
            sites.append(_site(tree))
        except OSError as error:
            refusals.append(f"{error.filename or tree.mount}: {error.strerror}.")
    if not trees:
        refusals.append("No control groups are mounted.")
    return Survey(tuple(sites), tuple(refusals))


def _site(tree: Hierarchy) -> Site:
    """The best place in one tree. Raises the first refusal when there is none."""
    best: Site | None = None
    first: OSError | None = None
    wanted = len(tree.controllers.intersection(LIMITING))
    for parent in _parents(tree):
        try:
            site = _prepare(tree, parent)
            _try_site(site)
        except OSError as error:
            first = first or error
            continue
        if best is None or len(site.controllers) > len(best.controllers):
            best = site
        if len(site.controllers.intersection(LIMITING)) == wanted:
            break
    if best is None:
        raise first or OSError(errno.EACCES, "no group here belongs to this user", str(tree.mount))
    return best


def _parents(tree: Hierarchy) -> list[Path]:
    """Folders to try, the best first."""
    own = [tree.own] if tree.own is not None else []
    if tree.version == 2 and systemd.RUNNING.is_dir():
        # Beside its own groups systemd wants nobody's; what it delegated is ours alone.
        units = [Path(unit) for folder in own if (unit := systemd.unit_of(str(folder)))]
        return [unit for unit in units if systemd.is_delegated(unit)]
    if os.geteuid() == 0:
        return list(dict.fromkeys([tree.mount, *own]))
    if tree.version == 1:
        return own
    # The uppermost folder that is ours holds all our processes, so that they can be moved.
    lineage = [path for folder in own for path in reversed((folder, *folder.parents))]
    ours = [path for path in lineage if path.is_relative_to(tree.mount) and _is_ours(path)]
    return list(dict.fromkeys([*ours[:1], *own]))


def _is_ours(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / cgroupfs.PROCS, os.W_OK)


def _prepare(tree: Hierarchy, parent: Path) -> Site:
    folder = parent / PARENT
    if tree.version == 1:
        folder.mkdir(exist_ok=True)
        return Site(1, folder, tree.controllers & _USEFUL)
    offered = cgroupfs.read(parent, "cgroup.controllers").split()
    wanted = frozenset(offered) & frozenset(LIMITING)
    if wanted - cgroupfs.subtree_controllers(parent):
        _step_aside(parent)
        cgroupfs.enable(parent, wanted)
    folder.mkdir(exist_ok=True)
    # What every group of version 2 does without a controller for it.
    built_in = {"cpuacct", "freezer"} if (folder / "cgroup.freeze").exists() else {"cpuacct"}
    return Site(2, folder, cgroupfs.enable(folder, wanted) | built_in)


def _step_aside(parent: Path) -> None:
    """Moves the processes of a group one down, so that it can hand controllers on. To try
    without would not only fail for memory: processors and processes would be handed on,
    and turn the group into one of threads, which nothing can be moved to."""
    if not (parent / "cgroup.type").exists():
        return  # the root of the tree, which may have both
    leaf = parent / systemd.LEAF
    for _ in range(_ROUNDS):
        here = cgroupfs.read(parent, cgroupfs.PROCS).split()
        if not here:
            return
        leaf.mkdir(exist_ok=True)
        for pid in here:
            with contextlib.suppress(ProcessLookupError):
                cgroupfs.write(leaf, cgroupfs.PROCS, pid)
    raise OSError(errno.EBUSY, "processes that cannot be moved are in it", str(parent))


def probe_name() -> str:
    """Of a group that is made to see whether that works; tells who made it."""
    return f"{PROBE}{os.getpid()}-{secrets.token_hex(4)}"


def _sweep(folder: Path) -> None:
    """Removes what one that died while it tried has left."""
    for group in folder.glob(f"{PROBE}*"):
        if not Path(f"/proc/{group.name.removeprefix(PROBE).split('-')[0]}").exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _try_site(site: Site) -> None:
    """Does once what a sandbox will need. Raises OSError."""
    _sweep(site.folder)
    group = site.folder / probe_name()
    group.mkdir()
    try:
        with _child() as pid:
            cgroupfs.join([str(group / cgroupfs.PROCS)], pid)
            if pid not in cgroupfs.members(group):
                raise OSError(errno.EIO, "a process that was moved is not here", str(group))
    finally:
        removed = cgroupfs.remove(group)
    if not removed:
        raise OSError(errno.EBUSY, "a group that was made cannot be removed", str(group))


@contextlib.contextmanager
def _child() -> Iterator[int]:
    """A process to be moved, which ends when it is no longer needed."""
    with subprocess.Popen(
        ["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield process.pid
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_CHILD_TIMEOUT_S)


# The files of the controllers, by their names in version 2 and in version 1


def _limit_memory(group: Path, limits: Limits) -> None:
    """With swap: a sandbox that is over its limit must not push others into it."""
    if limits.memory_bytes is None:
        return
    value = str(limits.memory_bytes)
    if (group / "memory.max").exists():
        cgroupfs.write(group, "memory.max", value)
        if (group / "memory.swap.max").exists():
            cgroupfs.write(group, "memory.swap.max", "0")
        return
    both = "memory.memsw.limit_in_bytes"
    if (group / both).exists() and _lowers(group, both, limits.memory_bytes):
        # The kernel keeps memory at or below memory and swap together at all times.
        cgroupfs.write(group, "memory.limit_in_bytes", value)
        cgroupfs.write(group, both, value)
        return
    if (group / both).exists():
        cgroupfs.write(group, both, value)
    else:
        cgroupfs.write(group, "memory.swappiness", "0")
    cgroupfs.write(group, "memory.limit_in_bytes", value)


def _lowers(group: Path, name: str, value: int) -> bool:
    current = cgroupfs.read_number(group, name)
    return current is None or value <= current


def _limit_cpu(group: Path, limits: Limits) -> None:
    if limits.cpus is None:
        return
    quota = max(_LEAST_QUOTA_US, round(limits.cpus * _PERIOD_US))
    if (group / "cpu.max").exists():
        cgroupfs.write(group, "cpu.max", f"{quota} {_PERIOD_US}")
    else:
        cgroupfs.write(group, "cpu.cfs_period_us", str(_PERIOD_US))
        cgroupfs.write(group, "cpu.cfs_quota_us", str(quota))


def _limit_pids(group: Path, limits: Limits) -> None:
    if limits.pids is not None:
        cgroupfs.write(group, "pids.max", str(limits.pids))


def count_below(group: Path) -> None:
    """Has a group count what the groups below it use, which it limits anyway, each by itself
    too. Raises OSError."""
    if cgroupfs.read(group, "memory.use_hierarchy").strip() == "0":
        # Only kernels before 5.11 ask.
        cgroupfs.write(group, "memory.use_hierarchy", "1")
    offered = frozenset(cgroupfs.read(group, "cgroup.controllers").split())
    if offered:
        cgroupfs.enable(group, offered & {"memory", "pids", "cpu"})


LIMITERS: dict[str, Callable[[Path, Limits], None]] = {
    "memory": _limit_memory,
    "cpu": _limit_cpu,
    "pids": _limit_pids,
}


def first_number(folder: Path | None, *names: str) -> int | None:
    """The first of the files that is there and holds a number."""
    if folder is None:
        return None
    values = (cgroupfs.read_number(folder, name) for name in names)
    return next((value for value in values if value is not None), None)


def entry(folder: Path | None, key: str, *names: str) -> int | None:
    """The entry `key` in the first of the files that has one."""
    if folder is None:
        return None
    counts = (cgroupfs.read_table(folder, name).get(key) for name in names)
    return next((entry for entry in counts if entry is not None), None)


def read_cpu_seconds(folder: Path | None) -> float | None:
    if folder is None:
        return None
    usec = cgroupfs.read_table(folder, "cpu.stat").get("usage_usec")
    if usec is not None:
        return usec / 1e6
    nanoseconds = cgroupfs.read_number(folder, "cpuacct.usage")
    return nanoseconds / 1e9 if nanoseconds is not None else None


# The groups of sandboxes


@dataclass(frozen=True)
class CgroupHandle:
    """The groups of one sandbox.

    A process joins by writing its number (or 0 for itself) to every file in `procs`.
    Where this machine has no usable groups, all are empty.
    """

    group_id: str
    folders: tuple[str, ...] = ()
    """Those that belong to this handle and go with it."""
    procs: tuple[str, ...] = ()
    tracking: str | None = None
    controllers: tuple[tuple[str, str], ...] = ()
    """The folder that each controller of this group is in."""

    def folder(self, controller: str) -> Path | None:
        found = dict(self.controllers).get(controller)
        return Path(found) if found is not None else None


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
                self._support = None
            return known

    def _roles(self) -> dict[str, Site]:
        """The site of each controller; the tracking one is the freezer's."""
        known = self._surveyed()
        names = (*LIMITING, "cpuacct", "freezer")
        return {name: site for name in names if (site := known.having(name)) is not None}

    def support(self) -> tuple[LimitSupport, ...]:
        """For memory, CPU and processes: whether this machine's groups can limit them."""
        roles = self._roles()
        if self._support is None:
            refusals = " ".join(self._surveyed().refusals)
            self._support = tuple(
                self._try(name, kind, roles.get(name), refusals) for name, kind in _KINDS.items()
            )
        return self._support

    def _try(self, name: str, kind: LimitKind, site: Site | None, refusals: str) -> LimitSupport:
        if site is None:
            reason = f"no usable cgroup has the {name} controller. {refusals}".strip()
            return LimitSupport(kind, False, reason, systemd.remedy())
        group = site.folder / probe_name()
        try:
            group.mkdir()
            LIMITERS[name](group, _PROBE_LIMITS)
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

    def create(self, group_id: str, limits: Limits, family: str = "") -> CgroupHandle:
        """Makes the groups of a sandbox, or finds them, and sets its limits: its own, or with
        all of its `family`. A limit whose controller this machine does not offer is left out
        (see `support`).

        Raises `LimitsUnavailable`, and leaves nothing then.
        """
        roles = self._roles()
        handle = self._handle(_checked(group_id), roles, _checked(family) if family else "")
        try:
            with self._lock:
                self._make(handle)
            for name in LIMITING:
                if (group := handle.folder(name)) is not None:
                    LIMITERS[name](_limited(group), limits)
        except OSError as error:
            self.remove(handle)
            raise LimitsUnavailable(
                f"The control group of {group_id} cannot be set up: {error}.",
                hint="Start without this limit, or look at what the kernel refused.",
            ) from error
        return handle

    @staticmethod
    def _make(handle: CgroupHandle) -> None:
        """Raises OSError. Nobody else makes or removes groups of a family meanwhile."""
        for folder in map(Path, handle.folders):
            if (above := _limited(folder)) != folder:
                above.mkdir(exist_ok=True)
                count_below(above)
            folder.mkdir(exist_ok=True)

    def family(self, family: str) -> frozenset[str]:
        """The ids of the groups of a family that are there."""
        found = (site.folder / f"{_checked(family)}{FAMILY}" for site in self._surveyed().sites)
        return frozenset(path.name for folder in found for path in _groups(folder))

    def _handle(self, group_id: str, roles: dict[str, Site], family: str = "") -> CgroupHandle:
        place = f"{family}{FAMILY}/{group_id}" if family else group_id
        controllers = tuple((name, str(site.folder / place)) for name, site in roles.items())
        folders = tuple(dict.fromkeys(folder for _, folder in controllers))
        by_name = dict(controllers)
        roles_of_tracking = ("freezer", "pids", "memory", "cpu", "cpuacct")
        tracking = next((by_name[name] for name in roles_of_tracking if name in by_name), None)
        procs = tuple(f"{folder}/{cgroupfs.PROCS}" for folder in folders)
        return CgroupHandle(group_id, folders, procs, tracking, controllers)

    def load(self, group_id: str, family: str | None = None) -> CgroupHandle | None:
        """The groups of a sandbox that was made before, as far as they are there. Without its
        `family`, those of all families are looked through for it."""
        found = self._family_of(_checked(group_id), family)
        full = self._handle(group_id, self._roles(), found)
        there = tuple(filter(os.path.isdir, full.folders))
        if not there:
            return None
        return CgroupHandle(
            group_id,
            there,
            tuple(f"{folder}/{cgroupfs.PROCS}" for folder in there),
            full.tracking if full.tracking in there else there[0],
            tuple(pair for pair in full.controllers if pair[1] in there),
        )

    def _family_of(self, group_id: str, family: str | None) -> str:
        """Most are the first of their family, or have none."""
        places = [site.folder for site in self._surveyed().sites]
        eldest = family or group_id
        if any(os.path.isdir(f"{place}/{eldest}{FAMILY}/{group_id}") for place in places):
            return eldest
        if family is not None or any(os.path.isdir(f"{place}/{group_id}") for place in places):
            return ""
        above = (
            folder.name.removesuffix(FAMILY)
            for place in places
            for folder in _groups(place)
            if folder.name.endswith(FAMILY) and (folder / group_id).is_dir()
        )
        return next(above, "")

    def known(self) -> frozenset[str]:
        """The ids of all groups that are there, of every data folder."""
        found: set[str] = set()
        for site in self._surveyed().sites:
            for folder in _groups(site.folder):
                inner = _groups(folder) if folder.name.endswith(FAMILY) else [folder]
                found.update(path.name for path in inner)
        return frozenset(name for name in found if not name.startswith(PROBE))

    def usage(self, handle: CgroupHandle) -> ResourceUsage:
        memory, pids = handle.folder("memory"), handle.folder("pids")
        return ResourceUsage(
            cpu_seconds=read_cpu_seconds(handle.folder("cpuacct")),
            memory_bytes=first_number(memory, "memory.current", "memory.usage_in_bytes"),
            memory_peak_bytes=first_number(memory, "memory.peak", "memory.max_usage_in_bytes"),
            pids=first_number(pids, "pids.current"),
        )

    def memory_events(self, handle: CgroupHandle) -> int | None:
        """How many processes the kernel has killed at the memory limit."""
        return entry(handle.folder("memory"), "oom_kill", "memory.events", "memory.oom_control")

    def pids_events(self, handle: CgroupHandle) -> int | None:
        """How often a fork was refused at the limit of processes."""
        return _both(handle.folder("pids"), "max", "pids.events")

    def cpu_throttled(self, handle: CgroupHandle) -> int | None:
        """In how many periods (a tenth of a second each) the group had to wait."""
        return _both(handle.folder("cpu"), "nr_throttled", "cpu.stat")

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
        with self._lock:
            for folder in map(Path, handle.folders):
                if (above := _limited(folder)) != folder:
                    # Not while there are others of the family.
                    with contextlib.suppress(OSError):
                        above.rmdir()
        if stuck:
            pids = sorted(self.members(handle))
            raise SandboxUnavailable(
                f"The control group {stuck[0]} cannot be removed: processes {pids} are in it.",
                hint="They do not end when killed; look at what they wait for.",
                folders=stuck,
            )


def _limited(folder: Path) -> Path:
    """The group that has the limits of this one."""
    return folder.parent if folder.parent.name.endswith(FAMILY) else folder


def _groups(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []


def _both(folder: Path | None, key: str, name: str) -> int | None:
    """Of the group, and of the one with its limits: kernels differ in where they count."""
    if folder is None or _limited(folder) == folder:
        return entry(folder, key, name)
    counts = [entry(one, key, name) for one in (folder, _limited(folder))]
    return sum(count or 0 for count in counts)
