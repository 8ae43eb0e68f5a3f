"""The default runtime: bubblewrap makes the walls, the launcher enters them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, CommandInvalid, SandboxUnavailable
from carrel.domain.limits import Usage
from carrel.domain.runtimes import (
    Capabilities,
    Command,
    Network,
    Output,
    Proof,
    Run,
    Sandbox,
    SandboxSpec,
    Zygote,
)
from carrel.domain.trees import TreeMount
from carrel.linux import landlock, mounts
from carrel.runtimes import seccomp_policy
from carrel.runtimes.bubblewrap.arguments import STAGE, View, arguments
from carrel.runtimes.bubblewrap.etc import EtcFolder
from carrel.runtimes.engine import Confinement, Engine
from carrel.runtimes.environment import base_environment, environment
from carrel.runtimes.layout import HOME, HUB, INSIDE_ID, WORKSPACE, SandboxFolders
from carrel.runtimes.proof import Prover

NAME = "bubblewrap"


class BubblewrapRuntime:
    """Implements `Runtime` and `WarmRuntime`."""

    def __init__(self, data: Path, engine: Engine, prover: Prover, program: str = "bwrap") -> None:
        self._engine = engine
        self._prover = prover
        self._program = program
        self._etc = EtcFolder(data)
        self._begun: dict[str, Sandbox] = {}

    @property
    def name(self) -> str:
        return NAME

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
        if shutil.which(self._program) is None:
            return Availability(
                False, "bubblewrap is not installed.", "sudo apt-get install bubblewrap"
            )
        try:
            proof = await self._prover.try_out(self)
        except SandboxUnavailable as error:
            return Availability(False, error.message, _remedy(error.message))
        return Availability(True, f"{len(proof.attempts)} attempts to get out were refused.")

    def expect(self) -> None:
        self._engine.expect()

    def begin(self, spec: SandboxSpec) -> None:
        """Where mounts can be given to a sandbox that is there already."""
        if os.geteuid() != 0 or spec.binds:
            return
        with contextlib.suppress(CarrelError, OSError):
            # What goes wrong here goes wrong again at the start, and is told then.
            sandbox = self._engine.prepare(spec)
            self._engine.begin(sandbox, self._confine(sandbox, None, Command(())))
            self._begun[spec.sandbox_id] = sandbox

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        sandbox = self._begun.pop(spec.sandbox_id, None)
        if sandbox is not None and (
            sandbox.spec != spec or tree.detached is None or tree.read_only or tree.namespace
        ):
            await self.stop(sandbox)
            sandbox = None
        begun = sandbox is not None
        sandbox = sandbox or self._engine.prepare(spec)
        stamp = _stamp(self._program)
        try:
            if begun and tree.detached is not None:
                warming = self._engine.place(sandbox, tree.detached())
            else:
                warming = self._engine.warm(sandbox, self._confine(sandbox, tree, Command(())))
            if wait or not self._prover.is_proven(sandbox, stamp):
                await self._complete(sandbox, tree, warming, begun=begun)
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
            # What was begun had ended meanwhile, or its launcher had: once more, in one go.
            confinement = self._confine(sandbox, tree, Command(()))
            await asyncio.shield(self._engine.warm(sandbox, confinement))

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Run:
        return await self._engine.run(sandbox, command, self._confine(sandbox, tree, command))

    def _confine(
        self,
        sandbox: Sandbox,
        tree: TreeMount | None,
        command: Command,
        probe: dict[str, Any] | None = None,
    ) -> Confinement:
        spec = sandbox.spec
        base = base_environment(spec.sandbox_id, HOME, "/tmp", HUB)
        return Confinement(
            uid=INSIDE_ID,
            gid=INSIDE_ID,
            confined=True,
            cwd=working_folder(command.cwd),
            env=environment(base, spec.env, command.env, terminal=command.output is Output.PTY),
            scope_sockets=spec.network is Network.OPEN and _can_scope(),
            seccomp=_filter(spec.on_the_host),
            hold=lambda: self._hold(spec, tree),
            probe=probe,
        )

    def _hold(
        self, spec: SandboxSpec, tree: TreeMount | None
    ) -> tuple[dict[str, Any], dict[str, int]]:
        program = shutil.which(self._program)
        if program is None:
            raise SandboxUnavailable(
                "bubblewrap is not installed.", hint="sudo apt-get install bubblewrap"
            )
        staged, view = self._view(spec, tree)
        namespace = tree.namespace if tree is not None else None
        holder = {
            "argv": arguments(program, view, spec.network, survive=namespace is None),
            "uid": spec.owner.uid,
            "gid": spec.owner.gid,
            "namespace": namespace,
            "late": [WORKSPACE] if tree is None else [],
            "seccomp": _filter(spec.on_the_host).hex(),
        }
        return holder, staged

    def _view(self, spec: SandboxSpec, tree: TreeMount | None) -> tuple[dict[str, int], View]:
        """As root through detached mounts: bubblewrap runs as the sandbox's user, who cannot
        walk the data folder. Otherwise plain paths."""
        folders = SandboxFolders(spec.folder)
        # A space may be older than its folder for the hub.
        folders.hub.mkdir(mode=0o755, exist_ok=True)
        etc = self._etc.current()
        extra = [(bind.source, bind.target, bind.writable) for bind in spec.binds]
        sources = {"home": folders.home, "tmp": folders.tmp, "hub": folders.hub, "etc": etc}
        if tree is not None:
            extra += [(path, str(path), False) for path in tree.read_only]
            sources["tree"] = tree.path
        sources |= {f"bind{number}": source for number, (source, _, _) in enumerate(extra)}
        if os.geteuid() != 0:
            names = {name: str(path) for name, path in sources.items()}
            staged: dict[str, int] = {}
        else:
            names = {name: f"{STAGE}/{name}" for name in sources}
            staged = _stage(sources, tree.detached if tree is not None else None)
        binds = tuple(
            (names[f"bind{number}"], target, writable)
            for number, (_, target, writable) in enumerate(extra)
        )
        view = View(
            names.get("tree"),
            names["home"],
            names["tmp"],
            names["hub"],
            names["etc"],
            binds,
            spec.also_at,
        )
        return staged, view

    async def warm_up(self, zygote: Zygote) -> None:
        await self._engine.warm_up(zygote)

    async def cool_down(self, name: str) -> None:
        await self._engine.cool_down(name)

    async def attach(self, sandbox: Sandbox, run_id: str) -> Run:
        return await self._engine.attach(sandbox, run_id)

    async def signal(self, sandbox: Sandbox, run_id: str, signal: int) -> None:
        await self._engine.signal(run_id, signal)

    async def kill(self, sandbox: Sandbox, run_id: str) -> None:
        await self._engine.kill(sandbox, run_id)

    async def usage(self, sandbox: Sandbox) -> Usage:
        return await asyncio.to_thread(self._engine.usage, sandbox)

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof:
        return await self._prover.prove(
            sandbox,
            tree,
            uncovered_attempts(sandbox.spec.network),
            lambda targets, command: self._engine.run(
                sandbox, command, self._confine(sandbox, tree, command, targets)
            ),
        )

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        self._begun.pop(sandbox.spec.sandbox_id, None)
        await self._engine.stop(sandbox, grace_s)


def _stage(sources: dict[str, Path], tree: Callable[[], int] | None) -> dict[str, int]:
    staged: dict[str, int] = {}
    with ExitStack() as undo:
        for name, source in sources.items():
            given = tree is not None and name == "tree"
            staged[name] = tree() if given and tree else mounts.clone_mount(str(source))
            undo.callback(os.close, staged[name])
        undo.pop_all()
    return staged


def _stamp(program: str) -> tuple[int, ...]:
    """Changes when another bubblewrap is installed."""
    path = shutil.which(program)
    if path is None:
        return ()
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


@cache
def _filter(on_the_host: bool) -> bytes:
    policy = seccomp_policy.ON_THE_HOST if on_the_host else seccomp_policy.DEFAULT
    return seccomp_policy.program(policy)


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


def _remedy(message: str) -> str:
    """For the two usual prohibitions."""
    for path, value in (
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ):
        try:
            forbidden = Path(path).read_text().strip() == value
        except OSError:
            continue
        if forbidden:
            wanted = "0" if value == "1" else "1"
            key = path.removeprefix("/proc/sys/").replace("/", ".")
            return f"sudo sysctl -w {key}={wanted}"
    return ""
