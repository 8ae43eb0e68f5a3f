"""A runtime on a data folder of its own, with everything it needs, and gone afterwards."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.ids import dev_id, new_id
from carrel.domain.limits import Limits
from carrel.domain.runs import Stream
from carrel.domain.runtimes import (
    Bind,
    Command,
    Exit,
    LimitHit,
    LimitsChanged,
    LocalRun,
    LocalRuntime,
    Network,
    Sandbox,
    SandboxSpec,
)
from carrel.domain.systems import System
from carrel.domain.trees import TreeMount
from carrel.launcher.client import Launcher
from carrel.runtimes.bubblewrap import BubblewrapRuntime
from carrel.runtimes.containers import FOLDER, ContainerRuntime, DockerRuntime, PodmanRuntime
from carrel.runtimes.engine import LINGER_S, Engine
from carrel.runtimes.landlock import LandlockRuntime
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.runtimes.limits.disk import ProjectQuotas
from carrel.runtimes.limits.enforcement import Enforcement
from carrel.runtimes.process import ProcessRuntime
from carrel.runtimes.proof import Prover
from carrel.runtimes.recordings import FileRecordings, Readers
from carrel.runtimes.sandbox import Identities
from carrel.trees.shared_layers import SharedLayers
from carrel.trees.systems import Systems
from tests.container_engines import docker_socket, forget_podman, missing
from tests.etc import share_etc
from tests.folders import remove_folder
from tests.load.patience import SLOWER

RUNTIMES = ("process", "landlock", "bubblewrap")
IMAGE = "image"
"""bubblewrap, with the system of an image."""
CONTAINERS = ("podman", "docker")
"""With the same system."""
WAIT_S = 30.0 * SLOWER
"""For what takes milliseconds on a quiet machine."""


HOST_PROGRAMS = [path for path in map(Path, ("/usr", "/etc/alternatives")) if path.is_dir()]


def with_systems(*names: str) -> list[Any]:
    """Those that have the system of an image, and containers of these engines; an engine is started
    once for all tests."""
    found: list[Any] = [IMAGE]
    for name in names if os.geteuid() == 0 else ():
        reason = missing(name)
        marks = [pytest.mark.skipif(bool(reason), reason=reason)]
        found.append(pytest.param(name, marks=[*marks, pytest.mark.xdist_group(f"{name}-engine")]))
    return found


def make_host_image(folder: Path) -> None:
    """The files of an image, but for the host's programs, which a sandbox is shown."""
    draft = folder.with_suffix(".new")
    for name in ("etc", "root", "var/tmp"):
        (draft / name).mkdir(parents=True)
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            (draft / path[1:]).symlink_to(os.readlink(path))
    (draft / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (draft / "etc/group").write_text("root:x:0:\n")
    draft.rename(folder)


@dataclass
class Finished:
    """A command that ran to its end."""

    exit: Exit
    out: str
    err: str


@dataclass
class Rig:
    """One runtime, any number of sandboxes."""

    data: Path
    name: str
    launcher: Launcher
    linger_s: float = LINGER_S
    prover: Prover | None = None
    """One that knows what others have proven."""
    events: list[LimitHit] = field(default_factory=list)
    sandboxes: list[Sandbox] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.identities = Identities(self.data)
        self.cgroups = Cgroups()
        self.readers = Readers(self.launcher)
        self.systems = Systems(self.launcher, SharedLayers(self.data / "layers"))
        self.runtime = self.make_runtime()

    def make_runtime(self) -> LocalRuntime:
        """Another one on the same data folder is what a restarted daemon has."""
        enforcement = Enforcement(self.cgroups, ProjectQuotas())
        name = "bubblewrap" if self.name == IMAGE else self.name
        engine = Engine(
            *(name, self.launcher, enforcement, self.heard, self.linger_s),
            self.readers,
        )
        prover = self.prover or Prover(self.data, self.identities)
        if name == "bubblewrap":
            return BubblewrapRuntime(self.data, engine, prover)
        if self.name == "landlock":
            return LandlockRuntime(engine, prover)
        if self.name == "podman":
            return PodmanRuntime(self.data, engine, prover)
        if self.name == "docker":
            return DockerRuntime(self.data, engine, prover, docker_socket())
        return ProcessRuntime(engine)

    def heard(self, event: LimitHit | LimitsChanged) -> None:
        if isinstance(event, LimitHit):
            self.events.append(event)

    async def start(
        self,
        *,
        limits: Limits | None = None,
        network: Network = Network.NONE,
        binds: tuple[Bind, ...] = (),
        env: dict[str, str] | None = None,
        family: str = "",
        account: str = "",
        pod: str = "",
    ) -> Sandbox:
        spec = self.spec(limits or Limits(), network, binds, env or {})
        spec = replace(spec, family=family, account=account, pod=pod)
        if self.name == IMAGE or self.name in CONTAINERS:
            spec = await asyncio.to_thread(self._with_image, spec)
        sandbox = await self.runtime.start(spec, TreeMount(spec.tree))
        self.sandboxes.append(sandbox)
        return sandbox

    def spec(
        self, limits: Limits, network: Network, binds: tuple[Bind, ...], env: dict[str, str]
    ) -> SandboxSpec:
        sandbox_id = new_id("sp")
        folder = self.data / "spaces" / sandbox_id
        folder.parent.mkdir(mode=0o711, exist_ok=True)
        folder.mkdir(mode=0o711)
        owner = self.identities.take(sandbox_id)
        tree = folder / "project"
        tree.mkdir(mode=0o755)
        if os.geteuid() == 0:
            os.chown(tree, owner.uid, owner.gid)
        return SandboxSpec(sandbox_id, folder, tree, owner, network, limits, binds, env)

    def _with_image(self, spec: SandboxSpec) -> SandboxSpec:
        """With one that has the host's programs, and nothing else of it."""
        image = self.data / "image"
        if not image.exists():
            make_host_image(image)
        system = System(
            key=dev_id(spec.sandbox_id),
            beside="",
            image_id="im_host",
            image=image,
            folder=spec.folder / "system",
            owner=spec.owner,
            first_id=self.identities.take_range(spec.sandbox_id),
        )
        self.systems.ensure(system)
        programs = [Bind(path, str(path)) for path in HOST_PROGRAMS]
        return replace(spec, system=system, binds=(*programs, *spec.binds))

    async def begin(self, sandbox: Sandbox, *argv: str, **options: Any) -> LocalRun:
        """`options` are members of `Command`."""
        command = Command(argv, **options)
        return await self.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command)

    async def run(self, sandbox: Sandbox, *argv: str, **options: object) -> Finished:
        """To its end, with its output from the run's files."""
        run = await self.begin(sandbox, *argv, **options)
        return await finish(run)

    async def sh(self, sandbox: Sandbox, script: str, **options: object) -> Finished:
        return await self.run(sandbox, "/bin/sh", "-c", script, **options)

    async def recorded(
        self, sandbox: Sandbox, run_id: str, text: str, stream: Stream = Stream.STDOUT
    ) -> str:
        """Follows a stream until it has this text in it; answers all that came."""
        recordings, seen = FileRecordings(), b""
        follow = recordings.follow(sandbox.spec.folder, run_id, stream, 0, asyncio.Event())
        try:
            async with asyncio.timeout(WAIT_S), aclosing(follow):
                async for piece in follow:
                    seen += piece.data
                    if text.encode() in seen:
                        break
        finally:
            recordings.close()
        return seen.decode()

    async def kill_launcher(self) -> None:
        """As a crash does; whoever asks next starts another."""
        pid = (await self.launcher.ask("hello", {}, []))[0]["pid"]
        end = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            assert await asyncio.to_thread(select.select, [end], [], [], WAIT_S) == ([end], [], [])
        finally:
            os.close(end)

    def tree_of(self, sandbox: Sandbox) -> str:
        """As the sandbox itself calls it."""
        return "/workspace" if self.runtime.capabilities.own_paths else str(sandbox.spec.tree)

    async def close(self) -> None:
        for sandbox in self.sandboxes:
            await self.runtime.stop(sandbox, grace_s=0.2)
            if sandbox.spec.system is not None:
                await asyncio.to_thread(self.systems.drop, sandbox.spec.system)
            self.identities.give_back(sandbox.spec.sandbox_id, sandbox.spec.owner)
        if self.name in CONTAINERS:
            assert isinstance(self.runtime, ContainerRuntime)
            assert await asyncio.to_thread(self.runtime.left) == []


async def finish(run: LocalRun) -> Finished:
    async with asyncio.timeout(WAIT_S):
        ended = await run.wait()
    out = run.stdout.read_text(errors="replace") if isinstance(run.stdout, Path) else ""
    err = run.stderr.read_text(errors="replace") if isinstance(run.stderr, Path) else ""
    run.close()
    return Finished(ended, out, err)


@asynccontextmanager
async def open_rig(data: Path, name: str, linger_s: float = LINGER_S) -> AsyncIterator[Rig]:
    """Afterwards the launcher has nothing left to do, which it says itself, and is gone."""
    share_etc(data)
    rig = Rig(data, name, Launcher(data), linger_s)
    try:
        yield rig
    finally:
        await rig.close()
        busy = rig.launcher.shutdown(force=False)
        forget_podman(data / FOLDER / "podman")
        if busy:
            rig.launcher.shutdown(force=True)
        assert busy == 0, f"{busy} things were left running"


class Grounds:
    """Data folders in which the rigs of many tests find the launcher running and the isolation
    proven. What is about either takes one of its own (`open_rig`)."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._provers: dict[str, tuple[Path, Prover]] = {}

    @asynccontextmanager
    async def rig(self, name: str) -> AsyncIterator[Rig]:
        """Afterwards the launcher has nothing left to do."""
        if name not in self._provers:
            data = self._stack.enter_context(_folder())
            self._provers[name] = (data, Prover(data, Identities(data)))
        data, prover = self._provers[name]
        rig = Rig(data, name, Launcher(data), prover=prover)
        try:
            yield rig
        finally:
            await rig.close()
            found = (await rig.launcher.ask("hello", {}, []))[0]
            left = {one: found[one] for one in ("runs", "recordings", "sandboxes", "held")}
            if any(left.values()):
                rig.launcher.shutdown(force=True)
            rig.launcher.close()
            assert not any(left.values()), left


@contextmanager
def _folder() -> Iterator[Path]:
    data = Path(tempfile.mkdtemp(prefix="carrel-"))
    try:
        data.chmod(0o711)
        yield data
        busy = Launcher(data).shutdown(force=False)
        assert busy == 0, f"{busy} things were left running"
    finally:
        Launcher(data).shutdown(force=True)
        forget_podman(data / FOLDER / "podman")
        remove_folder(data)


@contextmanager
def open_grounds() -> Iterator[Grounds]:
    with ExitStack() as stack:
        yield Grounds(stack)


def have(program: str) -> bool:
    return shutil.which(program) is not None
