"""Carrel's sandboxes, for the benchmarks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.sandbox_rivals import SAID, WORDS
from carrel.app import App, open_app
from carrel.config import Settings
from carrel.domain.ids import new_id
from carrel.domain.runtimes import Command, LocalRuntime, Sandbox, SandboxSpec
from carrel.domain.trees import TreeMount
from carrel.linux import processes
from carrel.trees.removal import remove_tree

GRACE_S = 0.2
"""Nothing here runs on when it is stopped."""


@dataclass
class Sandboxes:
    """One data folder, and the sandboxes that are started now."""

    app: App
    started: list[tuple[LocalRuntime, Sandbox]] = field(default_factory=list)

    def spec(self) -> SandboxSpec:
        """With an empty tree of its owner's."""
        sandbox_id = new_id("sp")
        folder = self.app.settings.data / "spaces" / sandbox_id
        folder.mkdir(mode=0o711)
        owner = self.app.identities.take(sandbox_id)
        tree = folder / "project"
        tree.mkdir(mode=0o755)
        if os.geteuid() == 0:
            os.chown(tree, owner.uid, owner.gid)
        return SandboxSpec(sandbox_id, folder, tree, owner)

    async def start(self, runtime: LocalRuntime, spec: SandboxSpec) -> Sandbox:
        sandbox = await runtime.start(spec, TreeMount(spec.tree))
        self.started.append((runtime, sandbox))
        return sandbox

    async def run(self, runtime: LocalRuntime, sandbox: Sandbox) -> None:
        """The command that all subjects run, to its end, and its output."""
        run = await runtime.run(sandbox, TreeMount(sandbox.spec.tree), Command(WORDS))
        try:
            ended = await run.wait()
            assert isinstance(run.stdout, Path)
            if ended.code != 0 or run.stdout.read_text() != SAID:
                raise RuntimeError(f"{runtime.name}: the command ended with {ended}")
        finally:
            run.close()

    async def stop(self, runtime: LocalRuntime, sandbox: Sandbox) -> None:
        await runtime.stop(sandbox, GRACE_S)
        self.started.remove((runtime, sandbox))
        self.app.identities.give_back(sandbox.spec.sandbox_id, sandbox.spec.owner)
        remove_tree(sandbox.spec.folder)

    async def stop_all(self) -> None:
        for runtime, sandbox in list(self.started):
            await self.stop(runtime, sandbox)

    def launcher_pid(self) -> int:
        reply, _ = self.app.launcher.call("hello", {}, [])
        return int(reply["pid"])


@asynccontextmanager
async def open_sandboxes(data: Path) -> AsyncIterator[Sandboxes]:
    """Afterwards all are stopped and the launcher has ended."""
    async with open_app(Settings(data=data)) as app:
        sandboxes = Sandboxes(app)
        try:
            yield sandboxes
        finally:
            await sandboxes.stop_all()
            app.launcher.shutdown(force=True)


@dataclass(frozen=True)
class Footprint:
    """Of a process and all below it: what each has for itself, and its part of what it
    shares."""

    processes: int
    mebibytes: float


def footprint(pid: int) -> Footprint:
    """Raises PermissionError where processes may not be looked at."""
    family = [pid, *processes.descendants(pid)]
    return Footprint(len(family), sum(map(_proportional, family)))


def _proportional(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return sum(sizes) / 1024
