"""No confinement at all: for people who ask for it by name, and says so."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.limits import Usage
from carrel.domain.runtimes import (
    Capabilities,
    Command,
    Output,
    Proof,
    Run,
    Sandbox,
    SandboxSpec,
)
from carrel.domain.trees import TreeMount
from carrel.runtimes.engine import Confinement, Engine
from carrel.runtimes.environment import base_environment, environment
from carrel.runtimes.layout import SandboxFolders

NAME = "process"


class ProcessRuntime:
    """Implements `Runtime`: the tree is private, everything else is the host's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        return NAME

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

    def expect(self) -> None:
        self._engine.expect()

    def begin(self, spec: SandboxSpec) -> None:
        """Nothing takes long enough."""

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        return await asyncio.to_thread(self._engine.prepare, spec)

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Run:
        return await self._engine.run(sandbox, command, self._confine(sandbox, tree, command))

    def _confine(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Confinement:
        spec = sandbox.spec
        folders = SandboxFolders(spec.folder)
        places = (str(folders.home), str(folders.tmp), str(folders.hub))
        base = base_environment(spec.sandbox_id, *places)
        own = spec.owner.uid == os.geteuid()
        return Confinement(
            uid=None if own else spec.owner.uid,
            gid=None if own else spec.owner.gid,
            confined=False,
            cwd=host_folder(tree.path, command.cwd),
            env=environment(base, spec.env, command.env, terminal=command.output is Output.PTY),
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
        """There is nothing to prove, so the proof does not hold."""
        return Proof(NAME, ())

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        await self._engine.stop(sandbox, grace_s)


def host_folder(tree: Path, cwd: str) -> str:
    return os.path.normpath(os.path.join(tree, cwd))
