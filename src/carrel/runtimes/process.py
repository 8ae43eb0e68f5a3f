"""No confinement at all: for people who ask for it by name, and says so."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Capabilities, Command, Proof, Sandbox, SandboxSpec
from carrel.domain.trees import TreeMount
from carrel.runtimes.engine import EngineRuntime
from carrel.runtimes.requests import Confinement
from carrel.runtimes.sandbox import SandboxFolders, environment


class ProcessRuntime(EngineRuntime):
    """Implements `LocalRuntime` and `ReachableRuntime`: the tree is private, everything else is
    the host's."""

    name = "process"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            confines=False,
            private_files=False,
            private_processes=False,
            private_network=False,
            own_paths=False,
            uncovered=(
                "Nothing is confined: commands can read and write whatever your account can.",
            ),
        )

    async def probe(self) -> Availability:
        return Availability(True, "Needs nothing, and confines nothing.")

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        if spec.owner.uid != os.geteuid():
            check_owned(spec, tree)
        return await asyncio.to_thread(self._engine.prepare, spec)

    def _confine(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Confinement:
        spec = sandbox.spec
        folders = SandboxFolders(spec.folder)
        folders.let_pass(spec.owner)
        places = (str(folders.home), str(folders.tmp), str(folders.hub))
        own = spec.owner.uid == os.geteuid()
        return Confinement(
            uid=None if own else spec.owner.uid,
            gid=None if own else spec.owner.gid,
            confined=False,
            cwd=host_folder(tree.path, command.cwd),
            env=environment(spec, command, *places, filtered=False),
        )

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof:
        """There is nothing to prove, so the proof does not hold."""
        return Proof(self.name, ())


def check_owned(spec: SandboxSpec, tree: TreeMount) -> None:
    """Only a mount of the sandbox's own gives it a tree of btrfs, which is another user's."""
    if tree.path.stat().st_uid != spec.owner.uid:
        raise SandboxUnavailable(
            "On the host this tree does not belong to the sandbox's user, and this runtime shows "
            "it as it is there.",
            hint="Use the runtime bubblewrap, or a data folder that is not on btrfs.",
        )


def host_folder(tree: Path, cwd: str) -> str:
    return os.path.normpath(os.path.join(tree, cwd))
