"""Commands that are forks of a process which has loaded what they need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import (
    CommandInvalid,
    CommandNotExecutable,
    SandboxUnavailable,
    WarmUnavailable,
)
from carrel.domain.ids import new_id
from carrel.domain.runtimes import Call, Command, ExitReason, Output, Sandbox, SandboxSpec, Zygote
from carrel.domain.trees import Owner, TreeMount
from carrel.linux import processes
from carrel.runtimes.bubblewrap import BubblewrapRuntime
from tests.conformance.runtime_rig import WAIT_S, Finished, Rig, finish, open_rig

CALLS = str(Path(__file__).parent / "warm_calls.py")
PYTHON = "/usr/bin/python3"
LARGE = "asyncio,ctypes,decimal,email,http.client,json,logging,sqlite3,ssl,unittest.mock,xml.dom"


class Warm:
    """A zygote, and sandboxes that its forks may enter."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        assert isinstance(rig.runtime, BubblewrapRuntime)
        self.runtime = rig.runtime
        self.owner = rig.identities.take("zygote")
        self.zygote = Zygote("test", PYTHON, self.owner, ("json", "logging"), (CALLS,))

    async def start(self, *, wait: bool = True) -> Sandbox:
        """A sandbox of the zygote's own user."""
        spec = self._spec()
        sandbox = await self.runtime.start(spec, TreeMount(spec.tree), wait=wait)
        self.rig.sandboxes.append(sandbox)
        return sandbox

    def _spec(self) -> SandboxSpec:
        folder = self.rig.data / "spaces" / new_id("sp")
        folder.parent.mkdir(mode=0o711, exist_ok=True)
        folder.mkdir(mode=0o711)
        tree = folder / "project"
        tree.mkdir(mode=0o755)
        if os.geteuid() == 0:
            os.chown(tree, self.owner.uid, self.owner.gid)
        return SandboxSpec(folder.name, folder, tree, self.owner)

    async def run(self, sandbox: Sandbox, function: str, argument: Any = None) -> Finished:
        return await self.finish(sandbox, self.command(function, argument))

    async def finish(self, sandbox: Sandbox, command: Command) -> Finished:
        run = await self.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command)
        return await finish(run)

    def command(self, function: str, argument: Any = None) -> Command:
        call = Call(CALLS, function, argument)
        return Command(("called", "word"), call=call, warm=self.zygote.name)

    async def pid(self) -> int:
        (one,) = await self.list()
        assert one["name"] == "test" and one["state"] == "ready"
        return int(one["pid"])

    async def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.rig.launcher.ask("zygotes", {}, []))[0]["zygotes"]
        return found


@pytest.fixture
async def warm(data: Path) -> AsyncIterator[Warm]:
    async with open_rig(data, "bubblewrap") as rig:
        made = Warm(rig)
        yield made
        rig.identities.give_back("zygote", made.owner)


async def _until_gone(pid: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while processes.start_time(pid) is not None:
            await asyncio.sleep(0)


# What a fork is


async def test_a_fork_is_a_command_like_any_other(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    command = replace(warm.command("echo", {"say": "hellö", "code": 7}), env={"WHO": "me"})
    done = await warm.finish(sandbox, command)
    said, pid = done.out.rsplit(maxsplit=1)
    assert said == "hellö ['called', 'word'] /workspace me", done
    assert int(pid) < 100 and done.err == "to stderr\n"
    assert (done.exit.reason, done.exit.code) == (ExitReason.EXITED, 7)
    assert (await warm.rig.sh(sandbox, "echo on")).out == "on\n"


async def test_forking_has_broken_nothing(warm: Warm) -> None:
    await warm.runtime.warm_up(replace(warm.zygote, preload=("random", "asyncio", "threading")))
    sandbox = await warm.start()
    numbers = set()
    for _ in range(2):
        done = await warm.run(sandbox, "state")
        first, second = done.out.splitlines()
        *words, number = first.split()
        assert words == ["child", "True", "0", "True", "True"], done
        assert second == "True True", done
        assert "logged" in done.err
        numbers.add(number)
    assert len(numbers) == 2


async def test_processes_that_it_spawns(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    done = await warm.run(await warm.start(), "spawn")
    assert done.out == "spawned\n0\n", done


async def test_its_program_cannot_be_written(warm: Warm, data: Path) -> None:
    """By /proc/self/exe, which leads out of the sandbox, where the file is the user's own."""
    own = data / "python"
    shutil.copy(PYTHON, own)
    os.chown(own, warm.owner.uid, warm.owner.gid)
    await warm.runtime.warm_up(replace(warm.zygote, python=str(own)))
    done = await warm.run(await warm.start(), "program")
    assert done.out == "OSError /memfd\n" * 2, done  # busy now, and sealed for good


async def test_it_ends_as_a_program_does(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    done = await warm.run(sandbox, "fail")
    assert done.exit.code == 1 and done.err.endswith("ValueError: on purpose\n"), done
    assert "child.py" not in done.err
    done = await warm.run(sandbox, "leave")
    assert (done.exit.code, done.out) == (3, "thread\nat exit\n"), done
    with pytest.raises(CommandNotExecutable):
        await warm.run(sandbox, "no_such_function")


async def test_it_is_killed_with_all_that_came_of_it(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    tree = TreeMount(sandbox.spec.tree)
    run = await warm.runtime.run(sandbox, tree, warm.command("rest"))
    await warm.rig.recorded(sandbox, run.run_id, "resting")
    # By its words: it may be about to become `sleep`.
    assert (await warm.rig.sh(sandbox, "pgrep -f '[s]leep ' | wc -l")).out.strip() == "1"
    await warm.runtime.kill(sandbox, run.run_id)
    assert (await finish(run)).exit.signal == signal.SIGKILL
    assert (await warm.rig.sh(sandbox, "pgrep -f '[s]leep ' | wc -l")).out.strip() == "0"


async def test_it_is_in_the_control_groups_of_its_sandbox(warm: Warm) -> None:
    """Where any other command is, though it cannot join them itself."""
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    tree = TreeMount(sandbox.spec.tree)
    forked = await warm.runtime.run(sandbox, tree, warm.command("rest"))
    other = await warm.runtime.run(sandbox, tree, Command(("sleep", "60")))
    one, two = _groups(forked.pid, sandbox), _groups(other.pid, sandbox)
    assert one == two and (one or os.geteuid() != 0)
    for run in (forked, other):
        await warm.runtime.kill(sandbox, run.run_id)
        await finish(run)


@pytest.fixture
def held_back(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a pipe keeps bubblewrap from beginning, until a line is written to it."""
    # In /tmp it would not be found: mounts for the sandbox are gathered there.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        gate, program = Path(name, "gate"), Path(name, "bwrap")
        wait = f"[ ! -p {gate} ] || read -r _ < {gate}"
        program.write_text(f'#!/bin/sh\n{wait}\nexec bwrap "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(warm.runtime, "_program", str(program))
        yield gate


async def test_a_fork_for_a_sandbox_that_is_being_set_up(warm: Warm, held_back: Path) -> None:
    """Nothing else is made ready in it meanwhile; what comes later gets its own process."""
    await warm.runtime.warm_up(warm.zygote)
    await warm.start()  # The walls are proven, so that the next is not waited for.
    os.mkfifo(held_back)
    held_back.chmod(0o666)
    sandbox = await warm.start(wait=False)
    tree = TreeMount(sandbox.spec.tree)
    starting = asyncio.create_task(warm.runtime.run(sandbox, tree, warm.command("rest")))
    async with asyncio.timeout(WAIT_S):
        while not (made := processes.children(await warm.pid())):
            await asyncio.sleep(0)
        while os.geteuid() == 0 and not _groups(made[0], sandbox):
            await asyncio.sleep(0)
        assert not starting.done()
        await asyncio.to_thread(held_back.write_text, "begin\n")
        run = await starting
    await warm.rig.recorded(sandbox, run.run_id, "resting")
    known = {run.pid, *processes.descendants(run.pid)}
    assert {_program(pid) for pid in _inside(run.pid) if pid not in known} == {"bwrap", "hold"}
    assert (await warm.rig.sh(sandbox, "echo on")).out == "on\n"
    await warm.runtime.kill(sandbox, run.run_id)
    await finish(run)


async def test_a_sandbox_that_cannot_be_set_up(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork for it goes, though it has been made already, and all of its groups with it."""
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    await warm.runtime.stop(sandbox)
    sandbox = warm.runtime._engine.prepare(sandbox.spec)
    monkeypatch.setattr(warm.runtime, "_program", "false")
    with pytest.raises(SandboxUnavailable):
        await warm.finish(sandbox, warm.command("rest"))
    monkeypatch.undo()
    async with asyncio.timeout(WAIT_S):
        while processes.children(await warm.pid()):
            await asyncio.sleep(0)
    assert (await warm.rig.sh(sandbox, "echo on")).out == "on\n"


def _inside(pid: int) -> list[int]:
    """All in the same sandbox."""
    wanted = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                found.append(int(name))
    return found


def _program(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _groups(pid: int, sandbox: Sandbox) -> set[str]:
    """The kinds of those that are its sandbox's."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {line.split(":")[1] for line in lines if sandbox.spec.sandbox_id in line}


async def test_signals_and_interrupts(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        run = await warm.runtime.run(sandbox, TreeMount(sandbox.spec.tree), warm.command("rest"))
        await warm.rig.recorded(sandbox, run.run_id, "resting")
        await warm.runtime.signal(sandbox, run.run_id, number)
        assert (await finish(run)).exit.signal == number


@pytest.mark.parametrize("output", [Output.FILES, Output.PTY])
async def test_descriptors_are_given_and_no_others(warm: Warm, output: Output) -> None:
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = replace(
            warm.command("accept"), descriptors=(listener.fileno(),), output=output, stdin=True
        )
        run = await warm.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command)
        with socket.create_connection(listener.getsockname(), timeout=WAIT_S) as connection:
            connection.settimeout(WAIT_S)
            said = await asyncio.to_thread(connection.recv, 100)
    assert said == b"[0, 1, 2, 3, 4, 5]"  # 4 is the connection, 5 the folder
    assert (await finish(run)).exit.code == 0


async def test_a_fork_sees_only_its_sandbox(warm: Warm) -> None:
    """The proof that every sandbox passes, made by a fork."""
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    tree = TreeMount(sandbox.spec.tree)
    runtime = warm.runtime

    async def execute(targets: dict[str, Any], command: Command) -> Any:
        forked = replace(command, warm=warm.zygote.name)
        return await runtime._run_probe(sandbox, tree, targets, forked)

    proof = await runtime._prover.prove(sandbox, tree, (), execute)
    assert proof.holds and len(proof.attempts) >= 30, proof


async def test_its_memory_is_shared(warm: Warm) -> None:
    await warm.runtime.warm_up(replace(warm.zygote, preload=tuple(LARGE.split(","))))
    sandbox = await warm.start()
    forked = int((await warm.run(sandbox, "private")).out)
    code = Path(CALLS).read_text()
    cold = await warm.rig.run(sandbox, PYTHON, "-I", "-c", code, LARGE)
    assert forked < int(cold.out) / 2, (forked, cold.out)


async def test_a_function_without_a_zygote(warm: Warm, data: Path) -> None:
    """The launcher's own interpreter calls it, and nobody in the sandbox can trace it."""
    sandbox = await warm.start()
    # What it imports is built in: the sandbox may have no file of the launcher's interpreter.
    code = "import time\ndef rest(_):\n    print('resting', flush=True)\n    time.sleep(600)\n"
    (sandbox.spec.tree / "calls.py").write_text(code)
    (sandbox.spec.tree / "calls.py").chmod(0o644)
    call = Call("/workspace/calls.py", "rest")
    command = Command(("called",), call=call)
    run = await warm.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command)
    await warm.rig.recorded(sandbox, run.run_id, "resting")
    inside = (
        Path(f"/proc/{run.pid}/status").read_text().split("NSpid:")[1].splitlines()[0].split()[-1]
    )
    seen = await warm.rig.sh(sandbox, f"cat /proc/{inside}/comm; cat /proc/{inside}/environ")
    assert seen.out == "called\n" and seen.exit.code != 0
    await warm.runtime.kill(sandbox, run.run_id)
    await finish(run)


# Whom it can be had from


async def test_it_has_no_rights_and_nothing_of_ours(warm: Warm) -> None:
    await warm.runtime.warm_up(replace(warm.zygote, env={"ONLY": "this"}))
    pid = await warm.pid()
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    assert status["CapPrm"] == status["CapEff"] == status["CapInh"] == "0" * 16
    assert status["NoNewPrivs"] == "1" and status["Threads"] == "1"
    assert set(status["Uid"].split()) == {str(warm.owner.uid)}
    if os.geteuid() == 0:
        assert status["Groups"].strip() == "" and warm.owner.uid != 0
        assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2", "3"]
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert set(filter(None, environ)) == {b"LANG=C.UTF-8", b"ONLY=this"}
    else:
        with pytest.raises(PermissionError):
            Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_dead_one_is_told_and_replaced(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.start()
    run = await warm.runtime.run(sandbox, TreeMount(sandbox.spec.tree), warm.command("rest"))
    await warm.rig.recorded(sandbox, run.run_id, "resting")
    pid = await warm.pid()
    os.kill(pid, signal.SIGKILL)
    await _until_gone(pid)
    with pytest.raises(WarmUnavailable):
        await warm.run(sandbox, "echo", {"say": "no"})
    await warm.runtime.warm_up(warm.zygote)
    assert (await warm.run(sandbox, "echo", {"say": "again"})).out.startswith("again ")
    assert processes.start_time(run.pid) is not None
    await warm.runtime.kill(sandbox, run.run_id)
    await finish(run)


async def test_it_ends_with_the_launcher(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    pid = await warm.pid()
    await warm.rig.kill_launcher()
    await _until_gone(pid)
    assert await warm.list() == []


async def test_warming_up_and_cooling_down_again(warm: Warm) -> None:
    await asyncio.gather(*(warm.runtime.warm_up(warm.zygote) for _ in range(3)))
    pid = await warm.pid()
    await warm.runtime.warm_up(warm.zygote)
    assert await warm.pid() == pid
    await warm.runtime.warm_up(replace(warm.zygote, preload=("json",)))
    assert await warm.pid() != pid and processes.start_time(pid) is None
    await warm.runtime.cool_down("test")
    assert await warm.list() == []
    await warm.runtime.cool_down("test")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"preload": ("no_such_module",)}, "no_such_module"),
        ({"python": "/nonexistent/python"}, "python"),
        ({"load": ("/nonexistent.py",)}, "nonexistent"),
        ({"python": "/usr/bin/false"}, "died"),
    ],
)
async def test_what_is_wrong_with_it_is_told(warm: Warm, change: dict[str, Any], why: str) -> None:
    with pytest.raises(WarmUnavailable, match=why):
        await warm.runtime.warm_up(replace(warm.zygote, **change))
    assert await warm.list() == []


async def test_one_with_threads_is_not_used(warm: Warm, data: Path) -> None:
    threads = data / "threads.py"
    threads.write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    )
    threads.chmod(0o644)
    with pytest.raises(WarmUnavailable, match="1 threads"):
        await warm.runtime.warm_up(replace(warm.zygote, load=(str(threads),)))


async def test_bad_names_and_root_are_refused(warm: Warm) -> None:
    with pytest.raises(CommandInvalid):
        await warm.runtime.warm_up(replace(warm.zygote, name="../x"))
    if os.geteuid() == 0:
        with pytest.raises(CommandInvalid):
            await warm.runtime.warm_up(replace(warm.zygote, owner=Owner(0, 0)))


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one identity only")
async def test_a_sandbox_of_another_user_is_not_entered(warm: Warm) -> None:
    await warm.runtime.warm_up(warm.zygote)
    sandbox = await warm.rig.start()
    assert sandbox.spec.owner != warm.owner
    with pytest.raises(WarmUnavailable):
        await warm.run(sandbox, "echo", {"say": "no"})
    assert (await warm.rig.sh(sandbox, "echo on")).out == "on\n"
