"""The default runtime: bubblewrap makes the walls, the launcher enters them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, CommandInvalid, SandboxUnavailable
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
from carrel.domain.systems import System
from carrel.domain.trees import Owner, TreeMount
from carrel.linux import landlock, mounts
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import open_ids
from carrel.linux.openat2 import open_real
from carrel.runtimes import policy, systems
from carrel.runtimes.arguments import (
    OWN_FOLDERS,
    STAGE,
    arguments,
    is_real,
    mount_points,
    tree_places,
)
from carrel.runtimes.engine import Engine, EngineRuntime
from carrel.runtimes.etc import EtcFolder
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
    is_below,
)

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
    """Implements `LocalRuntime`, `ReachableRuntime`, `EagerRuntime` and `WarmRuntime`."""

    name = "bubblewrap"

    def __init__(self, data: Path, engine: Engine, prover: Prover, program: str = "bwrap") -> None:
        super().__init__(engine)
        self._prover = prover
        self._program = program
        self._data = data
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
            systems=True,
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
        if spec.system is not None:
            assert tree is not None
            hold = partial(self._hold_system, spec, spec.system, tree)
            return confine_system(spec, spec.system, command, hold)
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

    def _hold_system(self, spec: SandboxSpec, system: System, tree: TreeMount) -> SandboxSetup:
        program = self._bubblewrap()
        SandboxFolders(spec.folder).hub.mkdir(mode=0o755, exist_ok=True)
        binds = system_binds(spec, tree)
        found = systems.sources(spec, tree, self._data, self._etc.current())
        named = {f"bind{number}": bind for number, bind in enumerate(binds)}
        found |= {name: bind.source for name, bind in named.items()}
        paths = {name: str(source) for name, source in found.items()}
        staged: dict[str, int] = {}
        pod = pod_of(spec, tree)
        owner = Owner(*system.shown(0, 0))
        points = systems.mount_points(spec, binds, system)
        ranged = None
        if systems.has_own_range(system):
            ranged = systems.ranged_start(spec, system, paths)
            paths = {name: f"{STAGE}/{name}" for name in found}
        else:
            for link in systems.links(spec, system):
                mounts.make_link(**link, uid=owner.uid, gid=owner.gid)
        if os.geteuid() == 0:
            # The launcher has mounts of its own, and this is none of them.
            for point in points:
                mounts.make_mount_point(**point, uid=owner.uid, gid=owner.gid)
            points = []
            real = {name for name, bind in named.items() if bind.if_real}
            detached = {}
            if tree.detached is not None and "tree" in found:
                detached = {"tree": tree.detached}
            users = {systems.USERS: partial(open_ids, *system.ids)}
            staged = stage({**found, **detached, **users}, real, ())
            paths = {name: f"{STAGE}/{name}" for name in found}
        namespace = tree.namespace or (None if staged else system.key)
        return SandboxSetup(
            argv=systems.arguments(
                program, spec, paths, binds, survive=namespace is None, pod=bool(pod)
            ),
            kept=[*TOOLCHAIN, "/dev", "/proc", os.path.realpath(program)] if staged else [],
            namespace=namespace,
            late=[],
            staged=staged,
            points=points,
            pod=pod,
            owner=owner,
            ranged=ranged,
        )

    def _bubblewrap(self) -> str:
        program = _found(self._program)
        if program is None:
            raise SandboxUnavailable(
                "bubblewrap is not installed.", hint="sudo apt-get install bubblewrap"
            )
        return program

    def _hold(self, spec: SandboxSpec, tree: TreeMount | None, shown: ShownBinds) -> SandboxSetup:
        program = self._bubblewrap()
        paths, binds, staged = self._sources(spec, tree, shown)
        namespace = tree.namespace if tree is not None else None
        pod = pod_of(spec, tree)
        return SandboxSetup(
            argv=arguments(
                program, spec, paths, binds, shown.places, survive=namespace is None, pod=bool(pod)
            ),
            kept=[*TOOLCHAIN, "/dev", "/proc", os.path.realpath(program)] if staged else [],
            namespace=namespace,
            late=late_targets(shown) if tree is None else [],
            staged=staged,
            points=mount_points(spec, binds, shown.places),
            pod=pod,
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
        staged = stage({**sources, **detached}, real, ())
        return {name: f"{STAGE}/{name}" for name in sources}, binds, staged

    def _has_network(self, sandbox: Sandbox) -> bool:
        return sandbox.spec.network is Network.NONE

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


def found_by_commands(sandbox: Sandbox) -> dict[str, str]:
    """The environment of commands that bring none, where the tree is at /workspace."""
    spec, nothing = sandbox.spec, Command(())
    if spec.system is not None:
        return systems.environment(spec, nothing, spec.system)
    return environment(spec, nothing, HOME, "/tmp", HUB, filtered=True)


def confine_system(
    spec: SandboxSpec, system: System, command: Command, hold: Callable[[], SandboxSetup]
) -> Confinement:
    """Of commands in a sandbox with the system of an image."""
    own_ids = system.first_id is not None
    return Confinement(
        uid=system.uid,
        gid=system.gid,
        confined=True,
        cwd=working_folder(command.cwd, WORKSPACE if spec.service is None else "/"),
        env=systems.environment(spec, command, system),
        scope_sockets=spec.network is Network.OPEN and _can_scope(),
        seccomp=policy.program(policy.SYSTEM if own_ids else policy.DEFAULT),
        capabilities=systems.capabilities(system),
        hold=hold,
    )


def system_binds(spec: SandboxSpec, tree: TreeMount) -> list[Bind]:
    if spec.service is not None:
        return systems.shown_binds(_there(spec.binds), service=True)
    shown = (*_there(spec.binds), *(Bind(path, str(path)) for path in tree.read_only))
    return systems.shown_binds(shown)


def pod_of(spec: SandboxSpec, tree: TreeMount | None) -> str:
    """An ordinary user can give sandboxes one network only where they have one namespace."""
    held = os.geteuid() == 0 or (tree is not None and tree.namespace is not None)
    return spec.pod if spec.network is Network.NONE and held else ""


def stage(
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
        staged = stage(sources, real, read_only)
    except OSError:
        # Something has gone since then, or leads elsewhere.
        return None
    return [staged[target] for target in late_targets(begun.shown)]


def _there(binds: tuple[Bind, ...]) -> list[Bind]:
    """Without those of a home that are gone, or lead elsewhere by now. A mount costs time: what is
    shown with a folder around it is not shown once more."""
    found = [bind for bind in binds if not bind.if_real or is_real(bind.source)]
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


def working_folder(cwd: str, begins: str = WORKSPACE) -> str:
    """In the sandbox's own words. Only names: whether it is there, the sandbox will say."""
    if "\0" in cwd:
        raise CommandInvalid("A folder's name cannot hold NUL.", hint="Remove it.")
    return os.path.normpath(os.path.join(begins, cwd))


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
