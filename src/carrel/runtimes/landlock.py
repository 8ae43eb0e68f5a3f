"""For machines that forbid namespaces: Landlock, the filter, limits, a user of its own.

The tree is at its own path on the host; what is out of reach is refused, not hidden.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Bind, Capabilities, Command, Network, Proof, Sandbox, SandboxSpec
from carrel.domain.trees import Owner, TreeMount
from carrel.linux import landlock
from carrel.runtimes.engine import Engine, EngineRuntime
from carrel.runtimes.policy import (
    LandlockSpec,
    program,
    remove_shared_memory,
    rules,
    uncovered,
    unix_sockets_allowed,
    without_namespaces,
)
from carrel.runtimes.process import check_owned, host_folder
from carrel.runtimes.proof import Prover
from carrel.runtimes.requests import Confinement
from carrel.runtimes.sandbox import SandboxFolders, environment


class LandlockRuntime(EngineRuntime):
    """Implements `LocalRuntime` and `ReachableRuntime`."""

    name = "landlock"

    def __init__(self, engine: Engine, prover: Prover) -> None:
        super().__init__(engine)
        self._prover = prover

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            confines=True,
            private_files=True,
            private_processes=False,
            private_network=False,
            own_paths=False,
            uncovered=_gaps(),
        )

    async def probe(self) -> Availability:
        if landlock.abi() == 0:
            return Availability(
                False,
                "This kernel has no Landlock, or it is switched off.",
                "add `lsm=landlock,…` to the kernel's command line (Linux 5.13 or later)",
            )
        try:
            proof = await self._prover.try_out(self)
        except SandboxUnavailable as error:
            return Availability(False, error.message)
        return Availability(True, f"{len(proof.attempts)} attempts to get out were refused.")

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        SandboxFolders(spec.folder).let_pass(spec.owner)
        check_reachable(spec, tree)
        sandbox = await asyncio.to_thread(self._engine.prepare, spec)
        try:
            await self._prover.require(self, sandbox, tree)
        except BaseException:
            await self.stop(sandbox)
            raise
        return sandbox

    def _confine(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Confinement:
        spec = sandbox.spec
        folders = SandboxFolders(spec.folder)
        folders.let_pass(spec.owner)
        own_user = spec.owner.uid != os.geteuid()
        shown = tuple(Bind(path, str(path)) for path in tree.read_only)
        binds = (*without_hidden(spec), *shown)
        allowed = LandlockSpec(
            tree.path,
            folders.home,
            folders.tmp,
            spec.network,
            binds,
            own_user,
            folders.hub,
            shared_memory=own_user,
        )
        if own_user:
            folders.make_shared_memory(spec.owner)
        filters = without_namespaces(
            spec.network,
            unix_sockets=unix_sockets_allowed(allowed, landlock.abi()),
            own_user=own_user,
        )
        places = (str(folders.home), str(folders.tmp), str(folders.hub))
        return Confinement(
            uid=spec.owner.uid if own_user else None,
            gid=spec.owner.gid if own_user else None,
            confined=True,
            cwd=host_folder(tree.path, command.cwd),
            env=environment(spec, command, *places, filtered=True),
            landlock=dict(rules(allowed)),
            shared_memory=str(folders.shared_memory) if own_user else "",
            seccomp=program(filters),
        )

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof:
        run = partial(self._run_probe, sandbox, tree)
        return await self._prover.prove(sandbox, tree, _uncovered_attempts(), run)

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        await super().stop(sandbox, grace_s)
        spec = sandbox.spec
        folder = SandboxFolders(spec.folder).shared_memory
        await asyncio.to_thread(remove_shared_memory, spec.owner.uid, folder)


def without_hidden(spec: SandboxSpec) -> Iterator[Bind]:
    """What it shows, in parts where something in a folder is hidden: rules can only allow. Links
    have no rule of their own, and lead to what has one. No folder is parted, and so closed to `ls`,
    for sockets and pipes: those are refused, or not, whatever may be read there."""
    hidden = {one for one in spec.hidden if os.path.isfile(one) or os.path.isdir(one)}
    waiting = [*reversed(spec.binds)]
    while waiting:
        bind = waiting.pop()
        source = str(bind.source)
        if bind.writable or not any(one.startswith(f"{source}/") for one in hidden):
            yield bind
            continue
        with contextlib.suppress(OSError), os.scandir(source) as entries:
            waiting += [
                Bind(Path(entry.path), entry.path, if_real=True)
                for entry in entries
                if entry.path not in hidden and not entry.is_symlink()
            ]


def _gaps() -> tuple[str, ...]:
    """Of both kinds of network, and what namespaces would give."""
    nowhere = Path("/nonexistent")

    def of(network: Network) -> tuple[str, ...]:
        root = os.geteuid() == 0
        spec = LandlockSpec(nowhere, nowhere, nowhere, network, own_user=root, shared_memory=root)
        return uncovered(spec, landlock.abi())

    alone = of(Network.NONE)
    more = [f"With an open network: {gap}" for gap in of(Network.OPEN) if gap not in alone]
    return (*alone, *more, "Commands of one sandbox cannot signal each other's processes.")


def _uncovered_attempts() -> tuple[str, ...]:
    """Attempts of the probe that an older kernel lets through, as the capabilities say."""
    if landlock.abi() >= landlock.ABI_SCOPE:
        return ()
    return (
        "connect to an abstract socket of the host",
        "signal a process outside",
        "signal a process outside by pidfd",
    )


def check_reachable(spec: SandboxSpec, tree: TreeMount) -> None:
    """The sandbox's user walks to the tree by its path on the host."""
    if tree.namespace is not None:
        raise SandboxUnavailable(
            "This tree is mounted in a namespace, which Landlock does not enter.",
            hint="Make the tree with the driver `copy` or `reflink`.",
        )
    if spec.owner.uid == os.geteuid():
        return
    check_owned(spec, tree)
    for folder in tree.path.parents:
        if not _may_pass(folder.stat(), spec.owner):
            raise SandboxUnavailable(
                f"The sandbox's user cannot pass through {folder}.",
                hint=f"Put the data folder elsewhere, or run: chmod o+x {folder}",
            )


def _may_pass(folder: os.stat_result, owner: Owner) -> bool:
    if folder.st_uid == owner.uid:
        return bool(folder.st_mode & 0o100)
    return bool(folder.st_mode & (0o010 if folder.st_gid == owner.gid else 0o001))
