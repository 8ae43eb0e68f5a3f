"""The contract of a runtime is small, and a back end need not be of this machine."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from carrel.domain.availability import Availability
from carrel.domain.errors import CommandError, RunNotFound, SandboxUnavailable
from carrel.domain.limits import ResourceUsage
from carrel.domain.runtimes import (
    Capabilities,
    Command,
    EagerRuntime,
    Exit,
    ExitReason,
    LocalRun,
    LocalRuntime,
    Proof,
    Run,
    Runtime,
    Sandbox,
    SandboxSpec,
    WarmRuntime,
    host_pid,
)
from carrel.domain.trees import Owner, TreeMount
from carrel.runtimes.proof import choose_runtime
from tests.conformance.runtime_rig import CONTAINERS, IMAGE, WAIT_S, Rig

MOST_METHODS = 10


class RemoteRun:
    """A command elsewhere: it has no process, descriptor or file here."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.input_bytes: int | None = 0

    async def give(self, data: bytes | memoryview) -> int:
        assert self.input_bytes is not None
        self.input_bytes += len(data)
        return len(data)

    async def writable(self) -> None: ...

    async def wait(self) -> Exit:
        return Exit(ExitReason.EXITED, 0, None, 0.0, 0.0, 0.0, 0)

    async def close_input(self) -> None: ...

    def resize(self, rows: int, cols: int) -> None: ...

    def close(self) -> None: ...


class RemoteRuntime:
    """As little as a back end has to have."""

    name = "remote"
    capabilities = Capabilities(True, True, True, True, True)

    async def probe(self) -> Availability:
        return Availability(True, "")

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        return Sandbox(self.name, spec)

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Run:
        return RemoteRun(command.run_id)

    async def attach(self, sandbox: Sandbox, run_id: str) -> Run:
        raise RunNotFound("There is none.")

    async def signal(self, sandbox: Sandbox, run_id: str, signal: int) -> None: ...

    async def kill(self, sandbox: Sandbox, run_id: str) -> None: ...

    async def usage(self, sandbox: Sandbox) -> ResourceUsage:
        return ResourceUsage(None, None, None, None)

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof:
        return Proof(self.name, ())

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None: ...


@pytest.mark.parametrize("contract", [Runtime, Run, LocalRuntime, EagerRuntime, WarmRuntime])
def test_a_contract_has_few_methods_and_each_is_told(contract: type) -> None:
    """What a method of `LocalRuntime` narrows is told where it comes from."""
    methods = {name: one for name, one in vars(contract).items() if inspect.isfunction(one)}
    methods = {name: one for name, one in methods.items() if not name.startswith("_")}
    assert 0 < len(methods) <= MOST_METHODS
    for name, method in methods.items():
        assert method.__doc__ or hasattr(Runtime, name), name


async def test_a_back_end_elsewhere_pretends_nothing(tmp_path: Path) -> None:
    remote: Runtime = RemoteRuntime()
    kinds = (LocalRuntime, EagerRuntime, WarmRuntime)
    assert not any(isinstance(remote, kind) for kind in kinds)
    assert (await choose_runtime([remote]))[0] is remote
    spec = SandboxSpec("sp_1", tmp_path, tmp_path, Owner(1, 1))
    mount = TreeMount(tmp_path)
    run = await remote.run(await remote.start(spec, mount), mount, Command(("true",), run_id="x"))
    assert not isinstance(run, LocalRun) and host_pid(run) == 0
    assert await run.give(b"abc") == 3 and (await run.wait()).code == 0


async def test_what_each_of_this_machine_can_do(rig: Rig) -> None:
    assert isinstance(rig.runtime, LocalRuntime)
    eager = rig.name in ("bubblewrap", IMAGE)
    assert isinstance(rig.runtime, EagerRuntime) == eager
    assert isinstance(rig.runtime, WarmRuntime) == (eager or rig.name in CONTAINERS)
    run = await rig.begin(await rig.start(), "sh", "-c", "sleep 1; exec cat", stdin=True)
    assert host_pid(run) == run.pid > 0
    with pytest.raises(BlockingIOError):
        while True:
            await run.give(bytes(1 << 16))
    async with asyncio.timeout(WAIT_S):
        await run.writable()
    await run.close_input()
    assert (await run.wait()).code == 0
    run.close()


def test_errors_say_whose_fault_it_is() -> None:
    """The command's or the sandbox's, never both."""
    assert not issubclass(CommandError, SandboxUnavailable)
    assert not issubclass(SandboxUnavailable, CommandError)
