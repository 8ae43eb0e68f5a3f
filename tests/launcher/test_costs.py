"""What a hostile sandbox can cost the launcher: never more than its share."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Sandbox
from carrel.launcher.loop import MOST_BYTES, LinePipe, Loop, Workers
from carrel.launcher.messages import told
from carrel.launcher.mounts import BareNamespaces
from carrel.launcher.runs import LEAST_RUNS
from carrel.linux import mounts, processes
from tests.accounts import Account
from tests.conformance.runtime_rig import WAIT_S, Rig, open_rig
from tests.launcher.disks import root_only
from tests.trees.again import run_again

NEWLINES = 200
SLACK = 40
"""Descriptors that come and go with spares and recruits; a leak is nine for each newline."""


@pytest.fixture
async def rig(data: Path) -> AsyncIterator[Rig]:
    async with open_rig(data, "bubblewrap") as opened:
        yield opened


async def _launcher(rig: Rig) -> int:
    """Its number, when it has done all that came before."""
    for _ in range(3):
        reply, _descriptors = await rig.launcher.ask("hello", {}, [])
    return int(reply["pid"])


async def _open_files(rig: Rig) -> int:
    return len(os.listdir(f"/proc/{await _launcher(rig)}/fd"))


def _holding(launcher: int) -> list[int]:
    """The processes below bubblewrap's own, and itself."""
    names: dict[int, str] = {}
    for pid in processes.descendants(launcher):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
    return [pid for pid, name in names.items() if name in ("bwrap", "hold", "cat")]


def _shout(pid: int, number: int) -> bool:
    """Newlines to a descriptor of another process, if it is one that can be written."""
    try:
        target = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        for _ in range(NEWLINES):
            os.write(target, b"\n")
    except OSError:
        return False
    finally:
        os.close(target)
    return True


@root_only
async def test_a_sandbox_is_set_up_where_little_is_mounted(rig: Rig) -> None:
    """Bubblewrap reads the whole mount table for each mount that it makes."""
    sandbox = await rig.start()
    await rig.sh(sandbox, "true")
    record = rig.data / "launcher" / "holders" / f"{sandbox.spec.sandbox_id}.json"
    table = Path(f"/proc/{json.loads(record.read_bytes())['monitor']}/mountinfo").read_text()
    points = [line.split()[4] for line in table.splitlines()]
    assert "/proc" in points and "/dev" in points
    assert not [point for point in points if point.startswith(("/sys", str(rig.data)))]


def _fork(become: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        become()
    os.waitpid(child, 0)
    return child


@root_only
def test_what_is_mounted_at_above_and_below_what_is_kept_stays(tmp_path: Path) -> None:
    above, other = tmp_path / "above", tmp_path / "other"
    kept = above / "kept"
    with contextlib.ExitStack() as undo:
        for folder in (above, kept, kept / "below", above / "kept not", other):
            folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True, timeout=WAIT_S)
            undo.callback(mounts.detach_all, str(folder))
        namespace = BareNamespaces(_fork).get([str(kept), "/proc"])
        assert namespace is not None
        undo.callback(os.close, namespace)
        enter = ["nsenter", f"--mount=/proc/self/fd/{namespace}", "cat", "/proc/self/mountinfo"]
        table = subprocess.check_output(enter, pass_fds=[namespace], text=True, timeout=WAIT_S)
    points = {line.split()[4] for line in table.splitlines()}
    assert {"/", "/proc", *map(str, (above, kept, kept / "below"))} <= points
    assert not [point for point in points if point.startswith((str(other), f"{kept}\\040"))]


@pytest.mark.parametrize("number", [1, 2, 11, 12])
async def test_the_holders_descriptors_lead_nowhere(rig: Rig, number: int) -> None:
    """Whoever gets at them, and be it from outside."""
    sandbox = await rig.start()
    assert (await rig.sh(sandbox, "echo here")).out == "here\n"
    before = await _open_files(rig)
    holding = _holding(await _launcher(rig))
    assert holding
    for pid in holding:
        # Its standard input is a pipe of its own, on which nobody hears it.
        heard = _shout(pid, number)
        assert not heard or number == 12
    assert await _open_files(rig) <= before + SLACK
    if number == 12:
        # It reads that, and ends: so does what is begun in it until then.
        async with asyncio.timeout(WAIT_S):
            while any(os.path.exists(f"/proc/{pid}") for pid in holding):
                await rig.sh(sandbox, "echo here")
    done = await rig.sh(sandbox, "echo here")
    assert done.out == "here\n", done


INSIDE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
own, got, open_ = {os.getpid(), os.getppid()}, [], []
for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
    if pid in own:
        continue
    try:
        name, handle = open(f'/proc/{pid}/comm').read().strip(), os.pidfd_open(pid)
    except OSError:
        continue
    for number in range(64):
        taken = libc.syscall(438, handle, number, 0)
        if taken >= 0:
            got.append(f'{name}:taken')
        else:
            try:
                taken = os.open(f'/proc/{pid}/fd/{number}', os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            if name not in ('bwrap', 'hold', 'cat'):
                got.append(f'{name}:{number}')
        open_.append(taken)
    # Tracing: PTRACE_SEIZE stops nothing, and lets go when we end.
    if name not in ('bwrap', 'hold', 'cat') and libc.ptrace(0x4206, pid, None, None) == 0:
        got.append(f'{name}:traced')
print(*got, flush=True)
for taken in open_:
    try:
        for _ in range(200):
            os.write(taken, b'\\n{"pid": 1}\\n')
    except OSError:
        pass
"""


async def test_what_of_ours_is_inside_gives_nothing_away(rig: Rig) -> None:
    sandbox = await rig.start()
    await rig.sh(sandbox, "true")
    before = await _open_files(rig)
    for _ in range(3):
        done = await rig.run(sandbox, "/usr/bin/python3", "-I", "-c", INSIDE)
        assert done.out == "\n", done
        # By what it wrote to the holder's input it may have ended its own sandbox, and with it
        # what is begun at this moment.
        await rig.sh(sandbox, "true")
    assert await _open_files(rig) <= before + SLACK
    other = await rig.start()
    assert (await rig.sh(other, "echo here")).out == "here\n"
    assert (await rig.sh(sandbox, "echo here")).out == "here\n"


async def test_one_account_has_a_share_of_the_commands(rig: Rig) -> None:
    """However many sandboxes it has."""
    greedy, twin = [await rig.start(account="team=blue") for _ in range(2)]
    modest = await rig.start()
    pid = await _launcher(rig)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        # Half of them have ended, and left something that could still write.
        await _fill(rig, greedy, LEAST_RUNS // 2, "sleep 60 &")
        await _fill(rig, twin, LEAST_RUNS - LEAST_RUNS // 2, "sleep 60")
        for sandbox in (greedy, twin):
            with pytest.raises(SandboxUnavailable, match="as many commands as it may"):
                await rig.sh(sandbox, "true")
        assert (await rig.sh(modest, "echo here")).out == "here\n"
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    for sandbox in (greedy, twin):
        await rig.runtime.stop(sandbox, grace_s=0.1)
    again = await rig.start(account="team=blue")
    assert (await rig.sh(again, "echo here")).out == "here\n"


async def _fill(rig: Rig, sandbox: Sandbox, count: int, script: str) -> None:
    for _ in range(count):
        run = await rig.begin(sandbox, "sh", "-c", script)
        if script.endswith("&"):
            async with asyncio.timeout(WAIT_S):
                await run.wait()
        run.close()


HOLDS_OUTPUT = """
import ctypes, os, signal, socket
here, there = socket.socketpair()
told, tell = os.pipe()
os.write(1, b'said\\n')
child = os.fork()
if child == 0:
    signal.alarm(30)
    os.write(tell, b'x')
    ctypes.CDLL(None).splice(here.fileno(), None, 1, None, ctypes.c_size_t(1), 0)
    os._exit(0)
os.read(told, 1)
while open(f'/proc/{child}/stat').read().split()[2] != 'S':
    pass
"""
"""Ends, and leaves a process that waits for a socket with the lock of the standard output."""

HOLDS_INPUT = """
import ctypes, signal, socket
signal.alarm(30)
here, there = socket.socketpair()
here.setblocking(False)
try:
    while True:
        here.send(bytes(4096))
except BlockingIOError:
    here.setblocking(True)
while ctypes.CDLL(None).splice(0, None, here.fileno(), None, ctypes.c_size_t(1), 0) > 0:
    pass
"""
"""Waits for room in a socket with the lock of the standard input."""


async def test_who_holds_a_pipe_keeps_nobody_else_waiting(rig: Rig) -> None:
    sandbox, other = await rig.start(), await rig.start()
    run = await rig.begin(sandbox, "/usr/bin/python3", "-I", "-c", HOLDS_OUTPUT)
    async with asyncio.timeout(WAIT_S):
        while processes.start_time(run.pid) is not None:
            await asyncio.sleep(0.01)
        for _ in range(3):
            assert (await rig.sh(other, "echo here")).out == "here\n"
            assert (await rig.sh(sandbox, "echo here")).out == "here\n"
        await rig.runtime.stop(sandbox, grace_s=0.1)
        ended = await run.wait()
    assert ended.code == 0
    assert isinstance(run.stdout, Path) and run.stdout.read_text() == "said\n"
    run.close()


async def test_who_holds_its_input_keeps_nobody_waiting(rig: Rig) -> None:
    """Who writes goes on with something else, and the launcher closes its end all the same."""
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "/usr/bin/python3", "-I", "-c", HOLDS_INPUT, stdin=True)
    async with asyncio.timeout(WAIT_S):
        while True:
            giving = asyncio.ensure_future(run.give(b"x"))
            if not (await asyncio.wait({giving}, timeout=0.5))[0]:
                break
        await run.close_input()
        assert (await rig.sh(sandbox, "echo here")).out == "here\n"
        await rig.runtime.stop(sandbox, grace_s=0.1)
        await run.wait()
        assert await giving == 1
    run.close()


class _Turns(Loop):
    """Of one descriptor, and without the signals of a whole process."""

    def __init__(self) -> None:
        self._actions: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, action: Callable[[], None]) -> None:
        self._actions[descriptor] = action

    def unwatch(self, descriptor: int) -> None:
        del self._actions[descriptor]

    def run(self) -> None:
        for action in list(self._actions.values()):
            action()


class _Heard:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("piece", [b"\n", b"x", b'{"pid": 1}\n'])
def test_a_pipe_of_lines_is_heard_so_far(piece: bytes) -> None:
    """Neither many lines nor one that never ends."""
    loop, heard = _Turns(), _Heard()
    pipe = LinePipe(loop, heard.lines.append, heard.end)
    os.set_blocking(pipe.write, False)
    said = 0
    with contextlib.suppress(BrokenPipeError):
        while said < 10 * MOST_BYTES:
            said += os.write(pipe.write, piece * (4096 // len(piece)))
            loop.run()
    assert said <= MOST_BYTES + 2 * 4096
    assert heard.ends == 1
    assert sum(map(len, heard.lines)) <= MOST_BYTES
    pipe.parent_side()


@pytest.mark.parametrize("said", [b"what\n", b"what", b"what\n" * 3])
def test_the_end_of_a_pipe_is_told_whatever_was_said(said: bytes) -> None:
    loop, heard = _Turns(), _Heard()

    def fail(_line: bytes) -> None:
        raise ValueError("this makes no sense")

    pipe = LinePipe(loop, fail, heard.end)
    os.write(pipe.write, said)
    pipe.parent_side()
    while heard.ends == 0:
        with contextlib.suppress(ValueError):
            loop.run()
    assert heard.ends == 1


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"[]", b"7", b'"pid"', b"[" * 10_000, b"{}", b'{"pid": "7"}'),
        *(b'{"pid": true}', b'{"pid": null}', b'{"step": 7}', b'{"text": "x"}'),
        b'{"step": "x", "errno": "y"}',
    ],
)
def test_what_a_child_says_is_a_number_or_a_problem(line: bytes) -> None:
    assert told(line, "pid")["step"] == "ending"
    assert told(b'{"pid": 7}', "pid") == {"pid": 7}
    problem = {"step": "exec", "errno": 2, "text": "no"}
    assert told(json.dumps(problem).encode(), "pid") == problem


def test_a_closed_pipe_of_lines_tells_nothing_more() -> None:
    loop, heard = _Turns(), _Heard()

    def close(line: bytes) -> None:
        heard.lines.append(line)
        pipe.close()

    pipe = LinePipe(loop, close, heard.end)
    os.write(pipe.write, b"one\ntwo\nthree")
    loop.run()
    with pytest.raises(BrokenPipeError):
        os.write(pipe.write, b"four\n")
    pipe.close()
    pipe.parent_side()
    assert (heard.lines, heard.ends) == ([b"one"], 0)


def test_who_takes_long_is_not_waited_for_again() -> None:
    """What was not waited for is told, or undone, when it is done."""
    loop = _Turns()
    workers = Workers(loop)
    go, told, undone = threading.Event(), list[int](), list[int]()

    def work() -> int:
        assert go.wait(WAIT_S)
        return 7

    assert workers.within("blue", WAIT_S, lambda: 5, undone.append) == 5
    assert not workers.do("blue", work, lambda answer: told.append(answer()))
    assert workers.within("blue", 0.01, work, undone.append) is None
    began = time.monotonic()
    assert workers.within("blue", WAIT_S, work, undone.append) is None
    assert time.monotonic() < began + WAIT_S / 2
    assert workers.within("red", WAIT_S, lambda: 6, undone.append) == 6
    go.set()
    while len(told + undone) < 3:
        assert time.monotonic() < began + WAIT_S
        loop.run()
    assert (told, undone) == ([7], [7, 7])


def test_nothing_is_done_by_the_loop_when_there_is_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could wait for ever for a pipe's lock, and all others for it."""
    loop, later = _Turns(), list[Callable[[], None]]()
    monkeypatch.setattr(loop, "after", lambda _seconds, action: later.append(action))
    workers, ours, told = Workers(loop), threading.get_ident(), list[bool]()
    started = _thread.start_new_thread

    def none_left(*_thread: object) -> int:
        raise RuntimeError("can't start new thread")

    def elsewhere() -> bool:
        return threading.get_ident() != ours

    monkeypatch.setattr(_thread, "start_new_thread", none_left)
    assert not workers.do("blue", elsewhere, lambda answer: told.append(answer()))
    later.pop()()
    assert told == [] and len(later) == 1, "there is none yet"
    monkeypatch.setattr(_thread, "start_new_thread", started)
    later.pop()()
    until = time.monotonic() + WAIT_S
    while not told:
        assert time.monotonic() < until
        loop.run()
    assert told == [True]


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "descriptors or inside or share or holds")
