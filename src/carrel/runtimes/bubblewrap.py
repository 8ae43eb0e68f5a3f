"""The default runtime: bubblewrap makes the walls, the launcher enters them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, CommandInvalid, SandboxUnavailable
from carrel.domain.limits import Limits
from carrel.domain.runtimes import (
    Bind,
    Capabilities,
    Command,
    Network,
    Proof,
    Sandbox,
    SandboxSpec,
    Zygote,
)
from carrel.domain.trees import TreeMount
from carrel.linux import landlock, mounts
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_real
from carrel.runtimes import policy
from carrel.runtimes.engine import Engine, EngineRuntime
from carrel.runtimes.etc import OWN_FILES, WITHHELD, EtcFolder
from carrel.runtimes.proof import Prover
from carrel.runtimes.requests import Confinement, SandboxSetup
from carrel.runtimes.sandbox import (
    HOME,
    HUB,
    INSIDE_ID,
    TOOLCHAIN,
    WORKSPACE,
    SandboxFolders,
    environment,
)

if TYPE_CHECKING:
    from carrel.launcher.messages import MountPoint

LEAST_MEMORY_FILES = 1 << 20
"""What semaphores and the like need, however little is allowed."""
OWN_FOLDERS = ("/tmp", HUB, HOME)
"""Of a sandbox, which others may be bound below."""
MountSource = Path | Callable[[], int]
"""Where a mount leads, or what makes it."""
MOST_LATE = 32
"""Binds whose mounts go in one packet to the launcher, with the namespaces and the tree."""


@dataclass(frozen=True)
class ShownBinds:
    """What a sandbox shows beside its tree, and where it shows that."""

    all: list[Bind]
    places: list[str]
    late: tuple[Bind, ...] = ()
    """Of those, what comes with the tree, where that is still being made: bubblewrap reads the
    whole mount table for each that it binds."""


@dataclass(frozen=True)
class BegunSandbox:
    """One that is set up while its tree is being made."""

    sandbox: Sandbox
    shown: ShownBinds


class BubblewrapRuntime(EngineRuntime):
    """Implements `LocalRuntime`, `EagerRuntime` and `WarmRuntime`."""

    name = "bubblewrap"

    def __init__(self, data: Path, engine: Engine, prover: Prover, program: str = "bwrap") -> None:
        super().__init__(engine)
        self._prover = prover
        self._program = program
        self._etc = EtcFolder(data)
        self._holders = data / "launcher" / "holders"
        """Where the launcher notes the sandboxes that it has set up."""
        self._begun: dict[str, BegunSandbox] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            confines=True,
            private_files=True,
            private_processes=True,
            private_network=True,
            own_paths=True,
            uncovered=("The kernel itself is shared with the host.", *_open_network_gaps()),
        )

    async def probe(self) -> Availability:
        """Starts a sandbox on empty folders and proves it."""
        if _found(self._program) is None:
            return Availability(
                False, "bubblewrap is not installed.", "sudo apt-get install bubblewrap"
            )
        try:
            proof = await self._prover.try_out(self)
        except SandboxUnavailable as error:
            old = "Unknown option" in error.message
            return Availability(False, error.message, _NEWER if old else _remedy())
        return Availability(True, f"{len(proof.attempts)} attempts to get out were refused.")

    def furnish(self, spec: SandboxSpec) -> None:
        SandboxFolders(spec.folder).make(spec.owner, spec.home_files, spec.home_links)

    def begin(self, spec: SandboxSpec) -> None:
        """Where mounts can be given to a sandbox that is there already."""
        self._engine.welcome(spec)
        if os.geteuid() != 0:
            return
        with contextlib.suppress(CarrelError, OSError):
            # What goes wrong here goes wrong again at the start, and is told then.
            sandbox, binds = self._engine.prepare(spec), shown_binds(spec)
            shown = ShownBinds(binds, tree_places(spec), late_binds(binds, spec.hidden))
            self._engine.begin(sandbox, self._confine(sandbox, None, Command(()), shown))
            self._begun[spec.sandbox_id] = BegunSandbox(sandbox, shown)

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        begun = self._begun.pop(spec.sandbox_id, None)
        late = _late_mounts(begun, spec, tree) if begun is not None else None
        if begun is not None and late is None:
            await self.stop(begun.sandbox)
        sandbox = self._engine.prepare(spec) if begun is None or late is None else begun.sandbox
        stamp = _stamp(self._program)
        try:
            if late is not None:
                warming = self._engine.place(sandbox, late)
            else:
                warming = self._engine.warm(sandbox, self._confine(sandbox, tree, Command(())))
            if wait or not self._prover.is_proven(sandbox, stamp):
                await self._complete(sandbox, tree, warming, begun=late is not None)
                await self._prover.require(self, sandbox, tree, stamp)
        except BaseException:
            await self.stop(sandbox)
            raise
        return sandbox

    async def _complete(
        self, sandbox: Sandbox, tree: TreeMount, warming: asyncio.Task[None], *, begun: bool
    ) -> None:
        try:
            await asyncio.shield(warming)
        except SandboxUnavailable:
            if not begun:
                raise
            # What was begun had ended meanwhile, or its launcher had: once more, in one go. What
            # still waits for its tree would let this wait with it.
            await self.stop(sandbox)
            self._engine.prepare(sandbox.spec)
            confinement = self._confine(sandbox, tree, Command(()))
            await asyncio.shield(self._engine.warm(sandbox, confinement))

    def _confine(
        self,
        sandbox: Sandbox,
        tree: TreeMount | None,
        command: Command,
        shown: ShownBinds | None = None,
    ) -> Confinement:
        spec = sandbox.spec
        return Confinement(
            uid=INSIDE_ID,
            gid=INSIDE_ID,
            confined=True,
            cwd=working_folder(command.cwd),
            env=environment(spec, command, HOME, "/tmp", HUB, filtered=True),
            scope_sockets=spec.network is Network.OPEN and _can_scope(),
            seccomp=policy.program(policy.DEFAULT),
            hold=lambda: self._hold(spec, tree, shown or _shown(spec)),
        )

    def _hold(self, spec: SandboxSpec, tree: TreeMount | None, shown: ShownBinds) -> SandboxSetup:
        program = _found(self._program)
        if program is None:
            raise SandboxUnavailable(
                "bubblewrap is not installed.", hint="sudo apt-get install bubblewrap"
            )
        paths, binds, staged = self._sources(spec, tree, shown)
        namespace = tree.namespace if tree is not None else None
        return SandboxSetup(
            argv=arguments(program, spec, paths, binds, shown.places, survive=namespace is None),
            kept=[*TOOLCHAIN, "/dev", "/proc", os.path.realpath(program)] if staged else [],
            namespace=namespace,
            late=late_targets(shown) if tree is None else [],
            staged=staged,
            points=_mount_points(spec, binds, shown.places),
        )

    def _sources(
        self, spec: SandboxSpec, tree: TreeMount | None, shown: ShownBinds
    ) -> tuple[dict[str, str], list[Bind], dict[str, int]]:
        """Where bubblewrap finds what the sandbox shows, by name; the binds, named `bind0` and
        on, with those that come later; the mounts that lead to all the others. As root these are
        detached mounts: bubblewrap runs as the sandbox's user, who cannot walk the data folder.
        Otherwise plain paths."""
        # A space may be older than its folder for the hub.
        SandboxFolders(spec.folder).hub.mkdir(mode=0o755, exist_ok=True)
        sources = {"etc": self._etc.current()}
        binds = list(shown.all)
        if tree is not None:
            binds += [Bind(path, str(path)) for path in tree.read_only]
            sources["tree"] = tree.path
        numbered = enumerate(binds)
        late = frozenset(shown.late)
        named = {f"bind{number}": bind for number, bind in numbered if bind not in late}
        sources |= {name: bind.source for name, bind in named.items()}
        if os.geteuid() != 0:
            return {name: str(path) for name, path in sources.items()}, binds, {}
        real = {name for name, bind in named.items() if bind.if_real}
        detached = {} if tree is None or tree.detached is None else {"tree": tree.detached}
        staged = _stage({**sources, **detached}, real, ())
        return {name: f"{STAGE}/{name}" for name in sources}, binds, staged

    async def warm_up(self, zygote: Zygote) -> None:
        await self._engine.warm_up(zygote)

    async def cool_down(self, name: str) -> None:
        await self._engine.cool_down(name)

    def watch(self, sandbox: Sandbox) -> None:
        held = self._holders / f"{sandbox.spec.sandbox_id}.json"
        self._engine.watch(sandbox, inhabited=held.exists())

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof:
        run = partial(self._run_probe, sandbox, tree)
        return await self._prover.prove(
            sandbox, tree, uncovered_attempts(sandbox.spec.network), run
        )

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        self._begun.pop(sandbox.spec.sandbox_id, None)
        await super().stop(sandbox, grace_s)


def _memory_files(limits: Limits) -> int:
    """Files in memory count against the memory limit where the kernel enforces one. In any case
    they are not to be a way around the limits, nor to take all memory of the machine."""
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    asked = (limits.memory_bytes, limits.disk_bytes)
    return max(LEAST_MEMORY_FILES, min([half, *(one for one in asked if one is not None)]))


def _stage(
    sources: Mapping[str, MountSource], real: Collection[str], read_only: Collection[str]
) -> dict[str, int]:
    staged: dict[str, int] = {}
    with ExitStack() as undo:
        for name, source in sources.items():
            if callable(source):
                staged[name] = source()
            elif name in real:
                with Descriptor(open_real(source, os.O_PATH)) as place:
                    staged[name] = mounts.clone_mount(place, read_only=name in read_only)
            else:
                staged[name] = mounts.clone_mount(str(source), read_only=name in read_only)
            undo.callback(os.close, staged[name])
        undo.pop_all()
    return staged


def shown_binds(spec: SandboxSpec) -> list[Bind]:
    """First its own folders. What is below the tree could lead a mount elsewhere by a link; the
    tree has its own there."""
    others = [bind for bind in _there(spec.binds) if not is_below(bind.target, WORKSPACE)]
    return [*_own_folders(spec), *others]


def _own_folders(spec: SandboxSpec) -> tuple[Bind, ...]:
    folders = SandboxFolders(spec.folder)
    home = Bind(folders.home, HOME, writable=True)
    return Bind(folders.tmp, "/tmp", writable=True), Bind(folders.hub, HUB), home


def late_binds(binds: list[Bind], hidden: Collection[str]) -> tuple[Bind, ...]:
    """The folders, but for those that would cover what bubblewrap binds or hides below them."""
    late = [
        bind
        for bind in binds
        if bind.source.is_dir() and not any(is_below(path, str(bind.source)) for path in hidden)
    ][:MOST_LATE]
    while True:
        known = frozenset(late)
        early = [bind.target for bind in binds if bind not in known]
        left = [one for one in late if not any(is_below(path, one.target) for path in early)]
        if len(left) == len(late):
            return tuple(late)
        late = left


def _shown(spec: SandboxSpec) -> ShownBinds:
    return ShownBinds(shown_binds(spec), tree_places(spec))


def late_targets(shown: ShownBinds) -> list[str]:
    """Where a sandbox that was begun gets its tree, and the binds that come with it."""
    first, *others = shown.places
    targets = [bind.target for bind in shown.late]
    own = [target for target in targets if target in OWN_FOLDERS]
    return [*own, first, *(target for target in targets if target not in own), *others]


def _late_mounts(begun: BegunSandbox, spec: SandboxSpec, tree: TreeMount) -> list[int] | None:
    """As `late_targets` has them. None when the sandbox cannot be completed as it was begun."""
    if begun.sandbox.spec != spec or tree.detached is None or tree.read_only or tree.namespace:
        return None
    sources: dict[str, MountSource] = dict.fromkeys(begun.shown.places, tree.detached)
    sources |= {bind.target: bind.source for bind in begun.shown.late}
    real = {bind.target for bind in begun.shown.late if bind.if_real}
    read_only = {bind.target for bind in begun.shown.late if not bind.writable}
    try:
        staged = _stage(sources, real, read_only)
    except OSError:
        # Something has gone since then, or leads elsewhere.
        return None
    return [staged[target] for target in late_targets(begun.shown)]


def _there(binds: tuple[Bind, ...]) -> list[Bind]:
    """Without those of a home that are gone, or lead elsewhere by now. A mount costs time: what is
    shown with a folder around it is not shown once more."""
    found = [bind for bind in binds if not bind.if_real or _is_real(bind.source)]
    plain = [bind.target for bind in found if _is_plain(bind)]
    return [
        bind
        for bind in found
        if not _is_plain(bind)
        or not any(bind.target != one and is_below(bind.target, one) for one in plain)
    ]


def _is_plain(bind: Bind) -> bool:
    """Shown as it is, where it is."""
    return not bind.writable and str(bind.source) == bind.target


def _is_real(path: str | Path) -> bool:
    try:
        os.close(open_real(os.fsencode(path), os.O_PATH))
    except OSError:
        return False
    return True


def _found(program: str) -> str | None:
    """As `shutil.which`, which looks thrice at each folder: this is asked for each new space."""
    search = "" if "/" in program else os.environ.get("PATH", os.defpath)
    for folder in search.split(":"):
        path = f"{folder}/{program}" if folder else program
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _stamp(program: str) -> tuple[int, ...]:
    """Changes when another bubblewrap is installed."""
    path = _found(program)
    if path is None:
        return ()
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


@cache
def _can_scope() -> bool:
    return landlock.abi() >= landlock.ABI_SCOPE


def _open_network_gaps() -> tuple[str, ...]:
    """Abstract Unix sockets have their names in the network, not in the file system."""
    if _can_scope():
        return (
            "With an open network, commands of one sandbox do not reach each other's abstract "
            "Unix sockets either.",
        )
    return (
        "With an open network, abstract Unix sockets of the host can be connected to "
        "(Landlock's ABI 6, in Linux 6.12, closes this).",
    )


def uncovered_attempts(network: Network) -> tuple[str, ...]:
    """Attempts of the probe that this kernel lets through, as the capabilities say."""
    if network is Network.OPEN and not _can_scope():
        return ("connect to an abstract socket of the host",)
    return ()


def working_folder(cwd: str) -> str:
    """In the sandbox's own words. Only names: whether it is there, the sandbox will say."""
    if "\0" in cwd:
        raise CommandInvalid("A folder's name cannot hold NUL.", hint="Remove it.")
    return os.path.normpath(os.path.join(WORKSPACE, cwd))


def _remedy(kernel: Path = Path("/proc/sys/kernel")) -> str:
    """The command that ends one of the two usual prohibitions of user namespaces."""
    if _reads(kernel / "apparmor_restrict_unprivileged_userns") == "1":
        # For bubblewrap alone: the sysctl would lift it for every program.
        load = f"sudo tee {_PROFILE_PATH} && sudo apparmor_parser -r {_PROFILE_PATH}"
        return f"printf '{_PROFILE}' | {load}"
    if _reads(kernel / "unprivileged_userns_clone") == "0":
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _reads(kernel.parent / "user/max_user_namespaces") == "0":
        return "sudo sysctl -w user.max_user_namespaces=15000"
    return ""


_NEWER = "Install bubblewrap 0.8 or newer, and: carrel down"
_PROFILE_PATH = "/etc/apparmor.d/bwrap"
_PROFILE = (
    r"abi <abi/4.0>,\ninclude <tunables/global>\n"
    r"profile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n"
)
"""What Ubuntu has for other programs that need user namespaces."""


def _reads(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# The command line of bubblewrap for one sandbox

STAGE = "/tmp"
"""Where the launcher shows us the staged mounts, as root."""
SECCOMP_FD = 10
INFO_FD = 11
HIDDEN = ("/proc/keys", "/proc/key-users")
"""Of an ordinary user, who has the sandbox's own host id, they would tell the host's keys."""


def arguments(
    program: str,
    spec: SandboxSpec,
    paths: dict[str, str],
    binds: list[Bind],
    places: list[str],
    *,
    survive: bool,
) -> list[str]:
    """`binds` begin with its own folders; `places` are those of the tree. `paths` says where
    bubblewrap finds what the sandbox shows; what is not in it comes later, and finds folders to be
    put on."""
    holder, name = _holder()
    tree = paths.get("tree")
    argv = [program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--disable-userns", "--cap-drop", "ALL", "--clearenv"]
    if spec.network is Network.NONE:
        argv.append("--unshare-net")
    if not survive:
        argv.append("--die-with-parent")
    argv += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", "carrel"]
    argv += _toolchain()
    argv += ["--ro-bind", paths["etc"], "/etc", "--dev", "/dev", "--proc", "/proc"]
    # What is written to /dev itself would be in memory too, and without a bound.
    argv += ["--perms", "1777", "--size", str(_memory_files(spec.limits)), "--tmpfs", "/dev/shm"]
    argv += ["--remount-ro", "/dev"]
    for hidden in filter(os.path.exists, HIDDEN):
        argv += ["--ro-bind", "/dev/null", hidden]
    argv += ["--symlink", "/tmp", "/var/tmp", "--dir", "/run"]
    bound = [_bound(paths.get(f"bind{number}"), bind) for number, bind in enumerate(binds)]
    own = len(OWN_FOLDERS)
    first, *others = places
    argv += chain.from_iterable(bound[:own])
    argv += ["--dir", first] if tree is None else ["--bind", tree, first]
    argv += chain.from_iterable(bound[own:])
    for target, instead in _masks(spec, binds):
        argv += ["--ro-bind", f"{paths['etc']}/{instead}", target]
    for place in others:
        argv += ["--dir", place] if tree is None else ["--bind", tree, place]
    argv += ["--ro-bind", holder, f"/run/{name}", "--remount-ro", "/"]
    argv += ["--seccomp", str(SECCOMP_FD), "--info-fd", str(INFO_FD), "--chdir", "/"]
    return [*argv, "--", f"/run/{name}"]


def _bound(source: str | None, bind: Bind) -> list[str]:
    if source is None:
        return ["--dir", bind.target]
    return ["--bind" if bind.writable else "--ro-bind", source, bind.target]


def _masks(spec: SandboxSpec, binds: list[Bind]) -> Iterator[tuple[str, str]]:
    """What is put over hidden files and folders, by its name in our /etc. What the sandbox's user
    cannot get at needs none, and bubblewrap, which runs as that user, could not put one there."""
    named = {str(bind.source) for bind in binds}
    for bind in binds:
        top = str(bind.source)
        for path in spec.hidden:
            if path in named or not is_below(path, top) or not _is_real(path):
                continue
            if all(map(_passes, _folders_between(top, path))):
                suffix = "folder" if os.path.isdir(path) else os.path.splitext(path)[1]
                instead = f"{WITHHELD}{suffix}"
                yield bind.target + path[len(top) :], instead if instead in OWN_FILES else WITHHELD


def _folders_between(top: str, path: str) -> Iterator[str]:
    while path != top:
        path = os.path.dirname(path)
        yield path


def _passes(folder: str) -> bool:
    if os.geteuid() == 0:
        return bool(os.stat(folder).st_mode & stat.S_IXOTH)
    return os.access(folder, os.X_OK)


def tree_places(spec: SandboxSpec) -> list[str]:
    """Where the sandbox shows its tree."""
    return [WORKSPACE, *([spec.also_at] if _is_free(spec.also_at, spec.binds) else [])]


def _is_free(path: str, binds: tuple[Bind, ...]) -> bool:
    """Whether a sandbox has nothing of its own there, nor below it, and can have something."""
    if not path.startswith("/") or os.path.normpath(path) != path:
        return False
    targets = [bind.target for bind in binds]
    own = (WORKSPACE, HOME, "/tmp", "/var/tmp", *targets)
    taken = (*TOOLCHAIN, "/etc", "/dev", "/proc", "/run", "/var/tmp", WORKSPACE, *targets)
    return not (
        any(is_below(path, one) for one in taken) or any(is_below(one, path) for one in own)
    )


def _mount_points(spec: SandboxSpec, binds: list[Bind], places: list[str]) -> list[MountPoint]:
    """Those below what the sandbox may write, and keeps. Bubblewrap makes the folders on the way
    and follows links, while it still sees all of the host."""
    folders = SandboxFolders(spec.folder)
    writable = (("/tmp", folders.tmp), (HOME, folders.home))
    wanted: list[tuple[str, Path | None]] = [(bind.target, bind.source) for bind in binds]
    wanted += [(place, None) for place in places]
    return [
        {
            "above": str(kept),
            "path": target.removeprefix(f"{above}/"),
            "folder": source is None or source.is_dir(),
        }
        for target, source in wanted
        for above, kept in writable
        if target.startswith(f"{above}/")
    ]


def is_below(path: str, folder: str) -> bool:
    """Also the folder itself."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _toolchain() -> list[str]:
    """As the host has it: real folders bound, the links of merged systems made again."""
    argv: list[str] = []
    for path in TOOLCHAIN:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    return argv


def _holder() -> tuple[str, str]:
    """`cat` under another name, so that nobody's `pkill cat` ends the sandbox. One program
    that plays many parts by its name must keep it."""
    found = shutil.which("cat", path="/usr/bin:/bin") or "/bin/cat"
    real = os.path.realpath(found)
    return real, "hold" if os.path.basename(real) == "cat" else "cat"
