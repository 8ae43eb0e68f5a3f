"""One suite for every runtime: what a command sees, how it ends, what is left of it.

What only some runtimes promise is asked of those alone, by their capabilities.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.domain.errors import (
    CommandInvalid,
    CommandNotExecutable,
    CommandNotFound,
    RunNotFound,
    SandboxNotFound,
    SandboxUnavailable,
)
from carrel.domain.runtimes import Bind, Command, ExitReason, Network, Output
from carrel.domain.trees import TreeMount
from carrel.linux import processes
from carrel.linux.mounts import kernel_version
from carrel.runtimes.limits.enforcement import (
    COUNTS_IN_NAMESPACES,
    HOLDING_PIDS,
    MOST_PROCESSES,
)
from carrel.runtimes.systems import ONE_ID
from tests.conformance.handles import dump, load
from tests.conformance.runtime_rig import (
    CONTAINERS,
    RUNTIMES,
    WAIT_S,
    Grounds,
    Rig,
    finish,
    with_systems,
)
from tests.load.patience import SLOWER


@pytest.fixture(
    params=[*(name for name in RUNTIMES if name != "process"), *with_systems(*CONTAINERS)]
)
async def confining(request: pytest.FixtureRequest, grounds: Grounds) -> AsyncIterator[Rig]:
    """Runtimes that promise walls."""
    async with grounds.rig(request.param) as opened:
        yield opened


# How a command runs and ends


async def test_output_and_exit_code_are_kept_in_files(rig: Rig) -> None:
    sandbox = await rig.start()
    done = await rig.sh(sandbox, "echo out; echo err >&2; exit 7")
    assert (done.out, done.err) == ("out\n", "err\n")
    assert (done.exit.reason, done.exit.code, done.exit.signal) == (ExitReason.EXITED, 7, None)
    assert done.exit.ended_at >= done.exit.started_at


async def test_a_signal_is_told_as_a_signal(rig: Rig) -> None:
    sandbox = await rig.start()
    done = await rig.sh(sandbox, "kill -9 $$")
    assert (done.exit.reason, done.exit.code, done.exit.signal) == (ExitReason.SIGNALED, None, 9)


async def test_arguments_pass_through_no_shell(rig: Rig) -> None:
    sandbox = await rig.start()
    odd = ["a b", "$HOME", "`id`", "*", "new\nline", "", "ünï", "\udcff"]
    done = await rig.begin(sandbox, "printf", "%s\\0", *odd, output=Output.FILES)
    async with asyncio.timeout(WAIT_S):
        await done.wait()
    assert isinstance(done.stdout, Path)
    assert done.stdout.read_bytes() == b"".join(os.fsencode(word) + b"\0" for word in odd)
    done.close()


async def test_standard_input_is_empty_unless_asked_for(rig: Rig) -> None:
    sandbox = await rig.start()
    assert (await rig.run(sandbox, "wc", "-c")).out.strip() == "0"


async def test_the_environment_is_built_from_nothing(
    fresh: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the launcher hand on what it was started with."""
    rig = fresh
    monkeypatch.setenv("HOST_SECRET", "leaked")
    sandbox = await rig.start(env={"OF_SPACE": "1", "BOTH": "space"})
    done = await rig.run(sandbox, "env", env={"OF_COMMAND": "2", "BOTH": "command"})
    seen = dict(line.split("=", 1) for line in done.out.splitlines())
    assert "HOST_SECRET" not in seen
    assert (seen["OF_SPACE"], seen["OF_COMMAND"], seen["BOTH"]) == ("1", "2", "command")
    assert seen["CARREL_SPACE"] == sandbox.spec.sandbox_id
    assert set(seen) <= {
        *(
            "OF_SPACE",
            "OF_COMMAND",
            "BOTH",
            "CARREL_SPACE",
            "CARREL_HUB",
            "CARREL_RUN",
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
        ),
        *("SHELL", "LANG", "TMPDIR", "PWD"),
        *ONE_ID,
    }


async def test_files_with_set_id_bits_are_no_obstacle(rig: Rig) -> None:
    """Only sandboxes with ids of their own make one, and yet archives are unpacked, programs
    copied, and repositories used that a group shares."""
    sandbox = await rig.start()
    script = """
        set -e
        echo x > f; tar --mode=6755 -cf a.tar f; rm f; tar -xf a.tar; cat f
        cp $KEEP /usr/bin/passwd copied
        git init -q r; git -C r config core.sharedRepository group
        cd r; echo a > a; git add a; git -c user.name=x -c user.email=x@y.z commit -qm one
        git log --oneline | wc -l
    """
    system = sandbox.spec.system
    # With one id, neither another owner nor such a bit can be kept.
    one_id = system is not None and system.first_id is None
    keep = "--force" if one_id else "-p"
    done = await rig.sh(sandbox, script, env={"KEEP": keep})
    assert (done.exit.code, done.out.split()) == (0, ["x", "1"]), done.err
    made = [path.stat().st_mode for path in (sandbox.spec.tree / "f", sandbox.spec.tree / "copied")]
    may = rig.name == "process" or (system is not None and system.first_id is not None)
    assert may or not [mode for mode in made if mode & 0o6000]


async def test_a_large_environment_and_argument_list(rig: Rig) -> None:
    sandbox = await rig.start()
    words = ["x" * 1000] * 200
    done = await rig.run(
        sandbox, "sh", "-c", "echo $# ${#BIG}", "sh", *words, env={"BIG": "y" * 100_000}
    )
    assert done.out.split() == ["200", "100000"]


async def test_the_working_folder_is_the_tree(rig: Rig) -> None:
    sandbox = await rig.start()
    assert (await rig.run(sandbox, "pwd")).out.strip() == rig.tree_of(sandbox)
    await rig.run(sandbox, "mkdir", "-p", "deep/er")
    done = await rig.run(sandbox, "pwd", cwd="deep/er")
    assert done.out.strip() == f"{rig.tree_of(sandbox)}/deep/er"


async def test_only_the_standard_descriptors_are_open(rig: Rig) -> None:
    sandbox = await rig.start()
    done = await rig.sh(sandbox, "ls /proc/self/fd | wc -l")
    assert int(done.out) <= 4  # 0, 1, 2 and the folder that ls reads


async def test_time_runs_out(rig: Rig) -> None:
    sandbox = await rig.start()
    done = await rig.sh(sandbox, "trap '' TERM; sleep 60 & wait; sleep 60", timeout_s=0.2)
    assert done.exit.reason is ExitReason.TIMEOUT
    assert (await rig.sh(sandbox, "pgrep -x sleep | wc -l; true")).exit.code == 0


async def test_signals_reach_the_process_group(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(
        sandbox,
        "sh",
        "-c",
        "trap 'echo got; exit 3' INT; echo ready; while :; do sleep 0.01; done",
        output=Output.PIPES,
    )
    assert isinstance(run.stdout, int)
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.to_thread(os.read, run.stdout, 100) == b"ready\n"
        await rig.runtime.signal(sandbox, run.run_id, signal.SIGINT)
        assert await asyncio.to_thread(os.read, run.stdout, 100) == b"got\n"
        assert (await run.wait()).code == 3
        await rig.runtime.signal(sandbox, run.run_id, signal.SIGINT)
    run.close()


# Whose fault it is

SOON_S = 20.0 * SLOWER
"""Less than the launcher is waited for."""


async def test_a_missing_command_is_the_commands_fault(rig: Rig) -> None:
    sandbox = await rig.start()
    with pytest.raises(CommandNotFound):
        await rig.run(sandbox, "no-such-program")
    with pytest.raises(CommandNotFound):
        await rig.run(sandbox, "./no-such-program")
    assert (await rig.run(sandbox, "true")).exit.code == 0
    assert len(list((sandbox.spec.folder / "runs").iterdir())) <= 2  # the proof's and this one


async def test_what_cannot_be_executed(rig: Rig) -> None:
    sandbox = await rig.start()
    await rig.sh(
        sandbox, "echo hello > text; mkdir folder; printf '\\1\\2' > broken; chmod +x broken"
    )
    for name in ("./text", "./folder", "./broken"):
        with pytest.raises(CommandNotExecutable):
            await rig.run(sandbox, name)


@pytest.mark.parametrize("length", [300, 100_000])
async def test_a_name_that_is_a_whole_script(rig: Rig, length: int) -> None:
    """However long it is: it is told at once, and nothing of it stays in the sandbox."""
    sandbox = await rig.start()
    for name in ("/" + "x" * length, "./" + "ü" * (length // 2)):
        async with asyncio.timeout(SOON_S):
            with pytest.raises((CommandNotFound, CommandNotExecutable)) as refused:
                await rig.run(sandbox, name)
        assert len(str(refused.value)) < 500
    assert (await rig.run(sandbox, "true")).exit.code == 0
    await rig.runtime.stop(sandbox, 0.0)


BAD_COMMANDS = (
    Command(()),
    Command(("",)),
    Command(("a\0b",)),
    Command(("true",), {"A": "\0"}),
    Command(("true",), {"A=B": "c"}),
    Command(("true",), {"": "c"}),
    Command(("true",), cwd="no/such/folder"),
    Command(("true",), cwd="a\0b"),
    Command(("true",), timeout_s=0),
    Command(("true",), keep_bytes=0),
    Command(("true",), run_id="../../etc"),
    Command(("true",), run_id="sp_aaaaaaaaaaaa"),
    Command(("true", "x" * (3 << 20))),
)


async def test_bad_commands_are_refused(rig: Rig) -> None:
    """And the sandbox is as good as before, after each."""
    sandbox = await rig.start()
    for command in BAD_COMMANDS:
        with pytest.raises(CommandInvalid):
            await rig.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command)
            pytest.fail(f"{command!r:.80} was not refused")
        assert (await rig.run(sandbox, "true")).exit.code == 0, f"{command!r:.80}"


async def test_a_bad_id_is_refused(rig: Rig) -> None:
    from dataclasses import replace

    sandbox = await rig.start()
    with pytest.raises(SandboxUnavailable):
        await rig.runtime.start(
            replace(sandbox.spec, sandbox_id="../../etc"), TreeMount(sandbox.spec.tree)
        )
    with pytest.raises(RunNotFound):
        await rig.runtime.attach(sandbox, "../../etc")
    with pytest.raises(RunNotFound):
        await rig.runtime.attach(sandbox, "ru_aaaaaaaaaaaa")
    with pytest.raises(SandboxNotFound):
        load(b'{"runtime": 3}')


# One sandbox, many commands


async def test_commands_share_files_processes_and_tmp(rig: Rig) -> None:
    sandbox = await rig.start()
    server = await rig.begin(sandbox, "sh", "-c", 'echo mark > "$TMPDIR/shared"; exec sleep 60')
    done = await rig.sh(
        sandbox,
        'until [ -s "$TMPDIR/shared" ]; do :; done; cat "$TMPDIR/shared"; pgrep -x sleep',
        timeout_s=WAIT_S,
    )
    assert done.out.splitlines()[0] == "mark"
    assert len(done.out.splitlines()) >= 2
    await rig.runtime.signal(sandbox, server.run_id, signal.SIGKILL)
    assert (await finish(server)).exit.signal == 9


_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
connection.sendall(b"from inside")
"""


async def test_a_server_is_reachable_by_the_next_command(rig: Rig) -> None:
    # Known gap: without namespaces there is no loopback to oneself under `none`.
    network = Network.OPEN if rig.name == "landlock" else Network.NONE
    sandbox = await rig.start(network=network)
    server = await rig.begin(sandbox, "/usr/bin/python3", "-c", _SERVER, output=Output.PIPES)
    assert isinstance(server.stdout, int)
    async with asyncio.timeout(WAIT_S):
        port = int(await asyncio.to_thread(os.read, server.stdout, 100))
    client = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(99))"
    if rig.runtime.capabilities.private_network:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    assert "from inside" in (await rig.run(sandbox, "/usr/bin/python3", "-c", client)).out
    async with asyncio.timeout(WAIT_S):
        await server.wait()
    server.close()


async def test_what_a_command_leaves_running_goes_on(rig: Rig) -> None:
    sandbox = await rig.start()
    left = "setsid sh -c 'echo $$ > left; exec sleep 61' >/dev/null 2>&1 &"
    script = f"{left} until [ -s left ]; do :; done"
    assert (await rig.sh(sandbox, script, timeout_s=WAIT_S)).exit.code == 0
    assert (await rig.sh(sandbox, "[ -d /proc/$(cat left) ] && echo alive")).out == "alive\n"
    assert _marked(sandbox.spec.sandbox_id)
    await rig.runtime.stop(sandbox, grace_s=0.2)
    assert not _marked(sandbox.spec.sandbox_id)


async def test_files_belong_to_the_sandboxs_user(rig: Rig) -> None:
    sandbox = await rig.start()
    await rig.sh(sandbox, "echo x > made")
    found = (sandbox.spec.tree / "made").stat()
    assert (found.st_uid, found.st_gid) == (sandbox.spec.owner.uid, sandbox.spec.owner.gid)
    seen = (await rig.run(sandbox, "stat", "-c", "%u", "made")).out.strip()
    assert seen == (await rig.run(sandbox, "id", "-u")).out.strip()
    if os.geteuid() == 0:
        assert found.st_uid != 0


async def test_home_is_kept_between_commands(rig: Rig) -> None:
    sandbox = await rig.start()
    await rig.sh(sandbox, "echo kept > ~/note")
    await rig.runtime.stop(sandbox)
    again = await rig.runtime.start(sandbox.spec, TreeMount(sandbox.spec.tree))
    assert (await rig.sh(again, "cat ~/note")).out == "kept\n"


async def test_binds_are_shown(rig: Rig, data: Path) -> None:
    shown = data / "shown"
    shown.mkdir(mode=0o755)
    (shown / "file").write_text("hello")
    (shown / "file").chmod(0o644)
    target = "/mnt/shown" if rig.runtime.capabilities.own_paths else str(shown)
    sandbox = await rig.start(binds=(Bind(shown, target),))
    assert (await rig.run(sandbox, "cat", f"{target}/file")).out == "hello"
    if rig.runtime.capabilities.confines:
        assert (await rig.sh(sandbox, f"echo x > {target}/file")).exit.code != 0
        assert (shown / "file").read_text() == "hello"


# Others


async def test_two_sandboxes_do_not_meet(confining: Rig) -> None:
    rig = confining
    one, two = await rig.start(), await rig.start()
    await rig.sh(one, 'echo secret > file; echo secret > ~/file; echo secret > "$TMPDIR/file"')
    sleeper = await rig.begin(one, "sleep", "60")
    folder = one.spec.folder
    for name in ("project", "home", "tmp"):
        done = await rig.sh(two, f"cat {folder}/{name}/file")
        assert done.exit.code != 0 and "secret" not in done.out
        assert (await rig.sh(two, f"echo x > {folder}/{name}/new")).exit.code != 0
    assert (await rig.sh(two, f"kill -9 {sleeper.pid}")).exit.code != 0
    assert processes.start_time(sleeper.pid) is not None
    if rig.runtime.capabilities.private_processes:
        assert (await rig.sh(two, "pgrep -x sleep")).out == ""
    await rig.runtime.signal(one, sleeper.run_id, signal.SIGKILL)
    await finish(sleeper)


async def test_the_proof_holds_where_something_is_confined(fresh: Rig) -> None:
    rig = fresh
    sandbox = await rig.start()
    proof = await rig.runtime.verify(sandbox, TreeMount(sandbox.spec.tree))
    assert proof.holds is rig.runtime.capabilities.confines, proof
    found = await rig.runtime.probe()
    assert found.available, found.reason
    if rig.runtime.capabilities.confines:
        assert len(proof.attempts) >= 30
    else:
        assert rig.runtime.capabilities.uncovered


async def test_an_open_network_is_the_hosts(rig: Rig) -> None:
    sandbox = await rig.start(network=Network.OPEN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = f"import socket; socket.create_connection(('127.0.0.1', {port})).sendall(b'x')"
        assert (await rig.run(sandbox, "/usr/bin/python3", "-c", client)).exit.code == 0


async def test_without_network_the_host_is_out_of_reach(confining: Rig) -> None:
    rig = confining
    sandbox = await rig.start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
        assert (await rig.run(sandbox, "/usr/bin/python3", "-c", client)).exit.code != 0


# Ending


_STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pids = []
for kind in range(4):
    r, w = os.pipe()
    if os.fork() == 0:
        if kind >= 1: os.setsid()
        if kind >= 2 and os.fork(): os._exit(0)
        if kind == 3: os.write(w, b"%d\\n" % os.getpid()); os.kill(os.getpid(), signal.SIGSTOP)
        else: os.write(w, b"%d\\n" % os.getpid())
        while True: time.sleep(60)
    os.read(r, 100)
print("ready", flush=True)
time.sleep(60)
"""


async def test_stop_ends_everything(rig: Rig) -> None:
    """Detached, in sessions of their own, deaf to signals, and stopped ones."""
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "/usr/bin/python3", "-c", _STUBBORN, output=Output.PIPES)
    assert isinstance(run.stdout, int)
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.to_thread(os.read, run.stdout, 100) == b"ready\n"
    marked = _marked(sandbox.spec.sandbox_id)
    assert len(marked) >= 5
    await rig.runtime.stop(sandbox, grace_s=0.2)
    assert _marked(sandbox.spec.sandbox_id) == set()
    assert all(processes.start_time(pid) is None for pid in marked)
    async with asyncio.timeout(WAIT_S):
        assert (await run.wait()).reason is ExitReason.STOPPED
    run.close()
    await rig.runtime.stop(sandbox)


def _marked(sandbox_id: str) -> set[int]:
    """Processes of the sandbox, by a variable that all of them were given."""
    wanted = f"CARREL_SPACE={sandbox_id}\0".encode()
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if wanted in environment + b"\0":
                found.add(int(name))
    return found


async def test_an_orderly_command_may_end_by_itself(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(
        sandbox,
        "sh",
        "-c",
        "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done",
        output=Output.PIPES,
    )
    assert isinstance(run.stdout, int)
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.to_thread(os.read, run.stdout, 100) == b"ready\n"
        await rig.runtime.stop(sandbox, grace_s=WAIT_S)
        assert await asyncio.to_thread(os.read, run.stdout, 100) == b"bye\n"
        ended = await run.wait()
    assert (ended.reason, ended.code) == (ExitReason.STOPPED, 0)
    run.close()


async def test_stop_leaves_no_group_and_is_idempotent(rig: Rig) -> None:
    sandbox = await rig.start()
    await rig.run(sandbox, "true")
    await rig.runtime.stop(sandbox)
    assert sandbox.spec.sandbox_id not in rig.cgroups.known()
    await rig.runtime.stop(sandbox)


async def test_an_idle_sandbox_holds_no_process(rig: Rig) -> None:
    rig.linger_s = 0.0
    rig.runtime = rig.make_runtime()
    sandbox = await rig.start()
    assert (await rig.run(sandbox, "true")).exit.code == 0
    async with asyncio.timeout(WAIT_S):
        while (await rig.launcher.ask("hello", {}, []))[0]["sandboxes"]:
            await asyncio.sleep(0)
    assert (await rig.sh(sandbox, "echo again")).out == "again\n"


FORKS = (
    "import os, resource, signal, time\n"
    "most = resource.getrlimit(resource.RLIMIT_NPROC)[1]\n"
    "resource.setrlimit(resource.RLIMIT_NPROC, (20, most))\n"
    "made = []\n"
    "try:\n"
    "    while len(made) < 40:\n"
    "        made.append(os.fork())\n"
    "        if made[-1] == 0: signal.pause()\n"
    "except OSError as error: print(most, len(made), error.errno)\n"
    "for child in made: os.kill(child, signal.SIGKILL)\n"
)


async def test_processes_have_a_bound_that_nobody_asked_for(rig: Rig) -> None:
    """Where the kernel counts those of the sandbox apart from all others."""
    sandbox = await rig.start()
    own_user = sandbox.spec.owner.uid != os.geteuid()
    apart = rig.runtime.capabilities.private_processes
    if not own_user and not (apart and kernel_version() >= COUNTS_IN_NAMESPACES):
        return
    done = await rig.run(sandbox, "/usr/bin/python3", "-c", FORKS)
    most, made, number = map(int, done.out.split())
    assert 0 < most <= MOST_PROCESSES + HOLDING_PIDS
    assert 10 <= made <= 20 and number == errno.EAGAIN


# Taking up again


async def test_a_written_handle_finds_the_run_again(rig: Rig) -> None:
    sandbox = await rig.start()
    await rig.run(sandbox, "mkfifo", "gate")
    run = await rig.begin(sandbox, "sh", "-c", "echo one; read x < gate; echo two; exit 5")
    again = load(dump(sandbox))
    assert again == sandbox
    run.close()
    runtime = rig.make_runtime()
    taken_up = await runtime.attach(again, run.run_id)
    assert taken_up.pid == run.pid
    await rig.sh(sandbox, "echo > gate", timeout_s=WAIT_S)
    done = await finish(taken_up)
    assert (done.out, done.exit.code) == ("one\ntwo\n", 5)
    late = await finish(await runtime.attach(again, run.run_id))
    assert late.exit == done.exit


_DAEMON = """
import asyncio, os, sys
from pathlib import Path
from tests.conformance.runtime_rig import Rig
from carrel.launcher.client import Launcher
from tests.conformance.handles import dump

async def main(data, name):
    rig = Rig(Path(data), name, Launcher(Path(data)))
    sandbox = await rig.start()
    await rig.sh(sandbox, "mkfifo gate")
    script = "echo before; cat gate >/dev/null; echo after; exit 9"
    run = await rig.begin(sandbox, "sh", "-c", script)
    print(run.run_id, dump(sandbox).decode(), sep="\\n", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_killing_the_daemon_loses_nothing(fresh: Rig) -> None:
    """A process that started launcher, sandbox and command dies at once; all go on."""
    rig = fresh
    root = Path(__file__).resolve().parent.parent.parent
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _DAEMON,
        str(rig.data),
        rig.name,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
    )
    assert daemon.stdout is not None
    async with asyncio.timeout(WAIT_S):
        run_id = (await daemon.stdout.readline()).decode().strip()
        sandbox = load(await daemon.stdout.readline())
        daemon.kill()
        await daemon.wait()
    rig.sandboxes.append(sandbox)
    run = await rig.runtime.attach(sandbox, run_id)
    assert processes.start_time(run.pid) is not None
    await rig.sh(sandbox, "echo > gate", timeout_s=WAIT_S)
    done = await finish(run)
    assert (done.out, done.exit.code) == ("before\nafter\n", 9)


async def test_one_that_asks_to_be_traced_is_killed(rig: Rig) -> None:
    """By us, who trace nothing. It stops then, which was taken for its end while it lived on."""
    sandbox = await rig.start()
    code = (
        "import ctypes, os, signal\n"
        "assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0\n"
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTRAP)\n"
        "print('goes on')\n"
    )
    done = await rig.run(sandbox, "/usr/bin/python3", "-c", code)
    assert (done.exit.code, done.exit.signal) == (None, 9), done
    assert "goes on" not in done.out
