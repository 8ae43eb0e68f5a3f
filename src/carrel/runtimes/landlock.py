"""For machines that forbid namespaces: Landlock, the filter, limits, a user of its own.

The tree is at its own path on the host; what is out of reach is refused, not hidden.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from carrel.domain.availability import Availability
from carrel.domain.errors import SandboxUnavailable
from carrel.domain.limits import Usage
from carrel.domain.runtimes import (
    Bind,
    Capabilities,
    Command,
    Network,
    Output,
    Proof,
    Run,
    Sandbox,
    SandboxSpec,
)
from carrel.domain.trees import TreeMount
from carrel.linux import landlock
from carrel.runtimes import seccomp_policy
from carrel.runtimes.engine import Confinement, Engine
from carrel.runtimes.environment import base_environment, environment
from carrel.runtimes.landlock_policy import (
    LandlockSpec,
    remove_shared_memory,
    rules,
    uncovered,
    unix_sockets_allowed,
)
from carrel.runtimes.layout import SandboxFolders
from carrel.runtimes.process import host_folder
from carrel.runtimes.proof import Prover

NAME = "landlock"


class LandlockRuntime:
    """Implements `Runtime`."""

    def __init__(self, engine: Engine, prover: Prover) -> None:
        self._engine = engine
        self._prover = prover

    @property
    def name(self) -> str:
        return NAME

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

    def expect(self) -> None:
        self._engine.expect()

    def begin(self, spec: SandboxSpec) -> None:
        """Nothing takes long enough."""

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        check_reachable(spec, tree)
        sandbox = await asyncio.to_thread(self._engine.prepare, spec)
        try:
            await self._prover.require(self, sandbox, tree)
        except BaseException:
            await self.stop(sandbox)
            raise
        return sandbox

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Run:
        return await self._engine.run(sandbox, command, self._confine(sandbox, tree, command))

    def _confine(
        self,
        sandbox: Sandbox,
        tree: TreeMount,
        command: Command,
        probe: dict[str, Any] | None = None,
    ) -> Confinement:
        spec = sandbox.spec
        folders = SandboxFolders(spec.folder)
        own_user = spec.owner.uid != os.geteuid()
        shown = tuple(Bind(path, str(path)) for path in tree.read_only)
        binds = (*spec.binds, *shown)
        policy = LandlockSpec(
            tree.path, folders.home, folders.tmp, spec.network, binds, own_user, folders.hub
        )
        filters = seccomp_policy.without_namespaces(
            spec.network,
            unix_sockets=unix_sockets_allowed(policy, landlock.abi()),
            on_the_host=spec.on_the_host,
        )
        places = (str(folders.home), str(folders.tmp), str(folders.hub))
        base = base_environment(spec.sandbox_id, *places)
        return Confinement(
            uid=spec.owner.uid if own_user else None,
            gid=spec.owner.gid if own_user else None,
            confined=True,
            cwd=host_folder(tree.path, command.cwd),
            env=environment(base, spec.env, command.env, terminal=command.output is Output.PTY),
            landlock=dict(rules(policy)),
            seccomp=seccomp_policy.program(filters),
            probe=probe,
        )

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
            _uncovered_attempts(),
            lambda targets, command: self._engine.run(
                sandbox, command, self._confine(sandbox, tree, command, targets)
            ),
        )

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        await self._engine.stop(sandbox, grace_s)
        owner = sandbox.spec.owner.uid
        if os.geteuid() == 0 and owner != 0:
            await asyncio.to_thread(remove_shared_memory, owner)


def _gaps() -> tuple[str, ...]:
    """Of both kinds of network, and what namespaces would give."""
    nowhere = Path("/nonexistent")

    def of(network: Network) -> tuple[str, ...]:
        spec = LandlockSpec(nowhere, nowhere, nowhere, network, own_user=os.geteuid() == 0)
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
    if tree.path.stat().st_uid != spec.owner.uid:
        raise SandboxUnavailable(
            "On the host this tree does not belong to the sandbox's user, and Landlock shows it "
            "as it is there.",
            hint="Make the tree with the driver `copy` or `reflink`.",
        )
    for folder in tree.path.parents:
        if not folder.stat().st_mode & 0o001 and folder.stat().st_uid != spec.owner.uid:
            raise SandboxUnavailable(
                f"The sandbox's user cannot pass through {folder}.",
                hint=f"Put the data folder elsewhere, or run: chmod o+x {folder}",
            )
