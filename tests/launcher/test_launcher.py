"""The launcher under misuse, and after its own death."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import LauncherUnavailable, SandboxUnavailable
from carrel.domain.runtimes import ExitReason, Output
from carrel.domain.trees import TreeMount
from carrel.launcher import wire
from carrel.launcher.client import Launcher
from carrel.linux import libc, processes
from carrel.runtimes.bubblewrap import BubblewrapRuntime
from tests.conformance.runtime_rig import WAIT_S, Rig, finish, open_rig

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
async def rig(data: Path) -> AsyncIterator[Rig]:
    async with open_rig(data, "bubblewrap") as opened:
        yield opened


def _connect(data: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(WAIT_S)
    connection.connect(str(data / "launcher" / "socket"))
    return connection


def _pid(launcher: Launcher) -> int:
    return int(launcher.call("hello", {}, [])[0]["pid"])


def test_it_loads_little() -> None:
    """Each command is a fork of it: a page more of memory is one more to be copied each time."""
    package = str(Path(wire.__file__).parents[2])
    script = "import sys; sys.path.insert(0, sys.argv[1]); import carrel.launcher.start\n"
    script += "print(*sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", script, package]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert not {"dataclasses", "inspect", "pathlib", "urllib"} & set(loaded.stdout.split())


def test_many_starts_at_once_make_one_launcher(data: Path) -> None:
    launchers = [Launcher(data) for _ in range(8)]
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(_pid(one))) for one in launchers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(found) == 8 and len(set(found)) == 1
    for launcher in launchers[1:]:
        launcher.close()
    assert launchers[0].shutdown() == 0
    assert processes.start_time(found[0]) is None


def test_the_launcher_is_nobodys_child(data: Path) -> None:
    launcher = Launcher(data)
    pid = _pid(launcher)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[1]) != os.getpid()
    assert int(fields[3]) != os.getsid(0)
    assert launcher.shutdown() == 0


def test_whoever_is_told_to_end_starts_none(data: Path) -> None:
    launcher = Launcher(data)
    pid = _pid(launcher)
    launcher.retire()
    assert _pid(launcher) == pid
    assert launcher.shutdown() == 0
    with pytest.raises(LauncherUnavailable):
        _pid(launcher)
    assert not (data / "launcher" / "socket").exists()


def test_a_long_path_is_no_obstacle(data: Path) -> None:
    deep = data / ("long" * 30) / ("longer" * 20)
    deep.mkdir(parents=True)
    launcher = Launcher(deep)
    assert _pid(launcher) > 0
    assert launcher.shutdown() == 0


@pytest.mark.parametrize(
    "packet",
    [b"{", b"[]", b"\xff", b"3", b'{"memory":true}', b'"x"', b"{}" * 30_000, b"[" * 60_000],
)
def test_what_is_no_message_ends_the_connection_only(data: Path, packet: bytes) -> None:
    launcher = Launcher(data)
    pid = _pid(launcher)
    with _connect(data) as connection:
        connection.send(packet)
        assert connection.recv(100) == b""
    assert _pid(launcher) == pid
    assert "Traceback" not in (data / "launcher" / "log").read_text()
    assert launcher.shutdown() == 0


@pytest.mark.parametrize(
    "message",
    [
        {"op": "hello"},
        {"op": "held"},
        {"op": "hold", "key": "k"},
        {"op": ["x"]},
        {"op": "signal", "run_id": [], "signal": 9},
        {"op": "place", "sandbox_id": "none"},
        {"op": "warm", "holder": {"stage": []}, "linger": 0, "sandbox_id": "none"},
        {"op": "attach", "run_id": "none", "folder": "/", "given": False},
        {"memory": True},
    ],
    ids=str,
)
def test_what_is_sent_with_a_wrong_request_is_closed(data: Path, message: dict[str, Any]) -> None:
    launcher = Launcher(data)
    _pid(launcher)
    ours, theirs = os.pipe()
    with _connect(data) as connection:
        folder = os.open("/", os.O_RDONLY)
        socket.send_fds(connection, [json.dumps({"id": 1, **message}).encode()], [theirs, folder])
        os.close(theirs)
        os.close(folder)
        assert b"problem" in connection.recv(10_000) or "memory" in message
    assert select.select([ours], [], [], 30)[0] and os.read(ours, 1) == b""
    os.close(ours)
    assert launcher.shutdown() == 0


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("nonsense", {}),
        ("run", {}),
        ("run", {"sandbox_id": 3, "run_id": [], "plan": None}),
        ("attach", {"run_id": "x"}),
        ("signal", {"run_id": "x"}),
        ("stop", {}),
        ("hold", {}),
        ("open", {"key": "none"}),
    ],
)
def test_wrong_requests_are_answered(data: Path, op: str, fields: dict[str, object]) -> None:
    launcher = Launcher(data)
    reply, _ = launcher.call(op, fields, [])
    assert reply["problem"]["text"]
    assert launcher.shutdown() == 0


def test_a_large_request_travels_in_memory(data: Path) -> None:
    launcher = Launcher(data)
    reply, _ = launcher.call("nonsense", {"more": "x" * 500_000}, [])
    assert "nonsense" in reply["problem"]["text"]
    assert launcher.shutdown() == 0


def test_strangers_are_not_heard(data: Path) -> None:
    """The socket is its owner's alone, by mode and by who the peer says it is."""
    launcher = Launcher(data)
    _pid(launcher)
    assert (data / "launcher" / "socket").stat().st_mode & 0o077 == 0
    assert (data / "launcher").stat().st_mode & 0o077 == 0
    assert launcher.shutdown() == 0


def test_a_launcher_that_cannot_start_is_told(data: Path) -> None:
    (data / "launcher").write_text("in the way")
    with pytest.raises((LauncherUnavailable, FileExistsError)):
        Launcher(data).call("hello", {}, [])
    with pytest.raises(LauncherUnavailable):
        Launcher(data / "other", python="/nonexistent").call("hello", {}, [])


def test_a_launcher_is_started_by_who_has_many_descriptors(data: Path) -> None:
    """As a daemon of many spaces; it could not wait for one whose number is 1024 or more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    many = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    launcher = Launcher(data)
    try:
        assert max(many) > 1024 and _pid(launcher)
        assert launcher.shutdown() == 0
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptors_are_not_inherited(data: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        wire.send(ours, {"x": 1}, [0, 1])
        received = wire.receive(theirs)
        assert received is not None
        message, descriptors = received
        assert message == {"x": 1} and len(descriptors) == 2
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        wire.close_all(descriptors)


async def test_a_sandbox_outlives_its_launcher(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "sh", "-c", "echo on > mark; exec sleep 60")
    await rig.sh(sandbox, "until [ -s mark ]; do :; done", timeout_s=WAIT_S)
    await rig.kill_launcher()
    rig.launcher.close()
    rig.launcher = Launcher(rig.data)
    rig.runtime = rig.make_runtime()
    taken_up = await rig.runtime.attach(sandbox, run.run_id)
    assert taken_up.pid == run.pid and processes.start_time(run.pid) is not None
    assert (await rig.sh(sandbox, "pgrep -x sleep | wc -l")).out.strip() == "1"
    await rig.runtime.stop(sandbox, grace_s=0.1)
    async with asyncio.timeout(WAIT_S):
        ended = await taken_up.wait()
    assert ended.reason is ExitReason.LOST and ended.code is None and ended.signal is None
    assert processes.start_time(run.pid) is None
    taken_up.close()
    run.close()


@pytest.fixture
def nobody_waits() -> Iterator[None]:
    """Whatever is left alone below us becomes our child, as that of the first process of many
    containers: nobody waits for it until the test is over."""
    mine = set(processes.children(os.getpid()))
    _adopt_orphans(True)
    yield
    _adopt_orphans(False)
    for pid in set(processes.children(os.getpid())) - mine:
        if processes.start_time(pid) is None:
            os.waitpid(pid, 0)


def _adopt_orphans(adopt: bool) -> None:
    libc.call("prctl", PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (int(adopt), 0, 0, 0)))


async def test_what_nobody_waits_for_keeps_no_sandbox(nobody_waits: None, rig: Rig) -> None:
    """The first process of a sandbox stays until somebody has waited for each of the others. Those
    of a launcher that died are left to whoever is above it."""
    sandbox = await rig.start()
    for _ in range(2):
        run = await rig.begin(sandbox, "sh", "-c", "echo on > mark; exec sleep 60")
        await rig.sh(sandbox, "until [ -s mark ]; do :; done; rm mark", timeout_s=WAIT_S)
        await rig.kill_launcher()
        rig.launcher.close()
        rig.launcher = Launcher(rig.data)
        rig.runtime = rig.make_runtime()
        taken_up = await rig.runtime.attach(sandbox, run.run_id)
        async with asyncio.timeout(WAIT_S):
            await rig.runtime.stop(sandbox, grace_s=0.1)
            assert (await taken_up.wait()).reason is ExitReason.LOST
        assert processes.start_time(run.pid) is None
        assert run.pid in processes.children(os.getpid()), "nobody has waited for it"
        sandbox = await rig.runtime.start(sandbox.spec, TreeMount(sandbox.spec.tree))
        assert (await rig.sh(sandbox, "echo again", timeout_s=WAIT_S)).out == "again\n"
        taken_up.close()
        run.close()
    rig.sandboxes[:] = [sandbox]


async def test_a_stop_that_was_given_up_ends_nothing_later(rig: Rig) -> None:
    """Somebody asks for it again, more impatiently, and goes on as soon as that is answered."""
    assert isinstance(rig.runtime, BubblewrapRuntime)
    sandbox = await rig.start()
    for _ in range(5):
        run = await rig.begin(sandbox, "sh", "-c", "trap '' TERM; echo on > mark; sleep 60; :")
        await rig.sh(sandbox, "until [ -s mark ]; do :; done; rm mark", timeout_s=WAIT_S)
        group = rig.runtime._engine._enforcement.group(sandbox)
        runs = str(sandbox.spec.folder / "runs")
        about = {"sandbox_id": sandbox.spec.sandbox_id, "groups": list(group.folders), "runs": runs}
        given_up = asyncio.create_task(rig.launcher.ask("stop", {**about, "grace": WAIT_S}, []))
        await rig.launcher.ask("hello", {}, [])
        await rig.runtime.stop(sandbox, grace_s=0.05)
        assert given_up.done(), "they are answered together"
        sandbox = await rig.runtime.start(sandbox.spec, TreeMount(sandbox.spec.tree))
        assert (await rig.sh(sandbox, "echo again")).out == "again\n"
        async with asyncio.timeout(WAIT_S):
            assert (await given_up)[0]["gone"]
            assert (await run.wait()).signal == signal.SIGKILL
        run.close()
    rig.sandboxes[:] = [sandbox]


async def test_killing_what_waits_inside_costs_nothing(rig: Rig) -> None:
    """A sandbox may kill or stop the process that would become its next command."""
    sandbox = await rig.start()
    for number in ("KILL", "STOP", "TERM"):
        others = "[ $p -gt 2 ] && [ $p != $$ ]"
        script = f"for p in /proc/[0-9]*; do p=${{p#/proc/}}; {others} && kill -{number} $p; done"
        await rig.sh(sandbox, script)
        assert (await rig.sh(sandbox, "echo still here")).out == "still here\n"


async def test_losing_those_that_wait_to_be_used_costs_nothing(rig: Rig) -> None:
    """And the process that makes them."""
    pid = (await rig.launcher.ask("hello", {}, []))[0]["pid"]
    for _ in range(3):
        async with asyncio.timeout(WAIT_S):
            while len(waiting := processes.children(pid)) < 2:
                await asyncio.sleep(0)
        for one in waiting:
            os.kill(one, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            while any(processes.start_time(one) is not None for one in waiting):
                await asyncio.sleep(0)
        sandbox = await rig.start()
        assert (await rig.sh(sandbox, "echo here")).out == "here\n"
        await rig.runtime.stop(sandbox)
        async with asyncio.timeout(WAIT_S):
            # Bubblewrap is gone when these are all that there is again.
            while len(processes.children(pid)) > 4:
                await asyncio.sleep(0)


async def test_the_limit_of_open_files_is_the_callers(rig: Rig) -> None:
    """Whatever the launcher allows itself."""
    sandbox = await rig.start()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert (await rig.sh(sandbox, "ulimit -Sn")).out.strip() == str(soft)


async def test_killing_what_holds_the_sandbox_ends_it_and_the_next_command_starts_it(
    rig: Rig,
) -> None:
    sandbox = await rig.start()
    await rig.sh(sandbox, "echo kept > file")
    done = await rig.sh(sandbox, "kill -9 2; sleep 60", timeout_s=WAIT_S)
    assert done.exit.signal == 9
    assert (await rig.run(sandbox, "cat", "file")).out == "kept\n"


async def test_an_exit_that_cannot_be_written_is_told(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "sh", "-c", "read x; exit 4", stdin=True, output=Output.PIPES)
    folder = sandbox.spec.folder / "runs" / run.run_id
    (folder / "exit.json.partial").mkdir()
    assert run.stdin is not None
    os.write(run.stdin, b"\n")
    done = await finish(run)
    assert done.exit.code == 4
    assert (await rig.run(sandbox, "true")).exit.code == 0


async def test_a_sandbox_for_which_there_are_no_descriptors(rig: Rig) -> None:
    """Whoever asked is told, and later it works: nobody waits for what was never begun."""
    await rig.start()
    pid = (await rig.launcher.ask("hello", {}, []))[0]["pid"]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = [number for number in range(max(used) + 20) if number not in used]
    # Enough to take the request, and not to set the sandbox up.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[7], before[1]))
    try:
        with pytest.raises(SandboxUnavailable):
            await rig.start()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    sandbox = await rig.start()
    assert (await rig.sh(sandbox, "echo on")).out == "on\n"


_WITHOUT_FILES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from carrel.launcher import child
# What startup has loaded differs by version; inside a sandbox there may be no file of it.
for name in ("warnings", "contextlib"):
    sys.modules.pop(name, None)
sys.path.clear()
child.execute(sys.argv[2:], {"PATH": "/nowhere:/etc/passwd:/bin", "A": "b"})
"""


def test_becoming_a_command_imports_nothing() -> None:
    package = str(Path(wire.__file__).parent.parent.parent)
    argv = [sys.executable, "-I", "-S", "-c", _WITHOUT_FILES, package]
    words = ["sh", "-c", 'echo "$0 $A"', "zero"]
    ended = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=WAIT_S)
    assert (ended.returncode, ended.stdout) == (0, "zero b\n"), ended.stderr
    ended = subprocess.run([*argv, "no-such"], capture_output=True, text=True, timeout=WAIT_S)
    # That one folder of the PATH is a file hides nothing.
    assert "FileNotFoundError" in ended.stderr
    ended = subprocess.run([*argv, "/etc/passwd"], capture_output=True, text=True, timeout=WAIT_S)
    assert "PermissionError" in ended.stderr
