"""Commands in spaces: exit codes, streams, input, signals."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.cli.program import TIMEOUT_S, Program
from tests.client.killing import COUNT, COUNTING, kill
from tests.daemon.rig import LOOK_S, Daemon
from tests.sampling import examples

MUCH = examples(30_000_000, exhaustive=200_000_000)
"""More than anything on its way keeps."""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 77"], 77),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["no-such-command"], 127),
        (["./README.md"], 126),
    ],
)
def test_the_exit_code_is_the_commands(
    carrel: Program, space: str, words: list[str], code: int
) -> None:
    assert carrel("exec", space, "--", *words).code == code


def test_own_errors_are_told_apart(carrel: Program, space: str) -> None:
    assert "no space 'nobody'" in carrel.bad(125, "exec", "nobody", "true")
    assert "no command" in carrel.bad(127, "exec", space, "no-such-command")
    done = carrel("exec", "--timeout", "200ms", space, "--", "sleep", "60")
    assert done.code == 124 and "its time was over" in done.err
    assert carrel("exec", space).code == 2


def test_streams_are_apart_and_bytes_are_bytes(carrel: Program, space: str) -> None:
    done = carrel("exec", space, "--", "sh", "-c", r"printf 'a\377\000'; echo err >&2; exit 4")
    assert (done.bytes, done.err, done.code) == (b"a\xff\0", "err\n", 4)


def test_much_comes_through_whole(carrel: Program, space: str) -> None:
    done = carrel("exec", space, "--", "sh", "-c", "seq 1000000")
    lines = done.out.split()
    assert len(lines) == 1_000_000 and lines[-1] == "1000000"


def test_output_comes_as_it_is_written(carrel: Program, space: str) -> None:
    script = "echo one; cat >/dev/null; echo two"
    process = carrel.start(
        "exec", "-i", space, "--", "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == b"one\n"
        process.stdin.close()
        assert process.stdout.read() == b"two\n"
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("size", [0, 10, 2_000_000])
def test_input_is_passed_on_when_asked_for(carrel: Program, space: str, size: int) -> None:
    data = os.urandom(size)
    assert carrel("exec", "-i", space, "cat", stdin=data).bytes == data
    assert carrel("exec", space, "cat", stdin=data).bytes == b""


def test_more_input_than_it_wants(carrel: Program, space: str) -> None:
    done = carrel("exec", "-i", space, "--", "head", "-c", "3", stdin=b"abc" * 3_000_000)
    assert (done.out, done.code, done.err) == ("abc", 0, "")


def test_environment_and_folder(carrel: Program, space: str) -> None:
    carrel.good("exec", space, "mkdir", "sub dir")
    words = ["--env", "A=1", "-e", "B=x y", "--cwd", "sub dir"]
    text = carrel.good("exec", *words, space, "--", "sh", "-c", "echo $A $B; pwd")
    assert text.startswith("1 x y\n") and text.strip().endswith("/sub dir")


def test_arguments_are_arguments(carrel: Program, space: str) -> None:
    words = ["a b", "$HOME", "*", "--", "-x", os.fsdecode(b"\xff")]
    done = carrel("exec", space, "--", "printf", r"%s\n", *words)
    assert done.bytes == b"".join(os.fsencode(word) + b"\n" for word in words)


def started(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_go_to_the_command(carrel: Program, space: str, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done"
    process = carrel.start("exec", space, "--", "sh", "-c", script, stdout=subprocess.PIPE)
    with process:
        started(process)
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.read() == f"got {name}\n".encode()
        assert process.wait(TIMEOUT_S) == 9


def test_three_interrupts_leave_a_command_that_does_not_heed(carrel: Program, space: str) -> None:
    script = "trap 'echo no' INT; echo ready; while :; do sleep 0.1; done"
    process = carrel.start(
        "exec", space, "--", "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        started(process)
        assert process.stdout is not None and process.stderr is not None
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        said = process.stderr.read().decode()
    run = said.split()[-1]
    assert "goes on" in said and carrel.json("run", "show", run)["state"] == "running"
    carrel.good("run", "signal", run, "KILL")
    assert carrel("run", "wait", run).code == 137


def test_a_reader_that_goes_away_ends_it(carrel: Program, space: str) -> None:
    process = carrel.start("exec", space, "yes", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(TIMEOUT_S) == 141
    run = carrel.json("runs", space)["runs"][0]["id"]
    assert carrel("run", "wait", run, "--timeout", "30").code == 143


class TestRuns:
    def test_detached(self, carrel: Program, space: str) -> None:
        script = "echo out; echo err >&2; sleep 0.2; exit 6"
        run = carrel.good("exec", "--detach", space, "--", "sh", "-c", script).strip()
        assert run.startswith("ru_")
        assert "detached" in carrel.bad(125, "exec", "-d", "-t", space, "sh")
        assert carrel("run", "wait", run).code == 6
        done = carrel("run", "attach", run)
        assert (done.out, done.err, done.code) == ("out\n", "err\n", 6)
        assert carrel("run", "attach", "--new", run).out == ""
        done = carrel("logs", space)
        assert (done.out, done.err, done.code) == ("out\n", "err\n", 0)
        assert carrel.good("logs", space, "--run", run, "-f") == "out\n"
        found = carrel.json("logs", space)
        assert (found["stdout"], found["stderr"], found["run"]["id"]) == ("out\n", "err\n", run)
        shown = carrel.good("run", "show", run)
        assert "exit     6" in shown and "sleep 0.2" in shown
        assert carrel.json("run", "show", run)["exit"]["code"] == 6
        assert run in carrel.good("runs", space)

    def test_waiting_has_an_end(self, carrel: Program, space: str) -> None:
        run = carrel.good("exec", "-d", space, "sleep", "60").strip()
        assert carrel("run", "wait", "--timeout", "0.2", run).code == 124
        carrel.good("run", "signal", run)
        assert carrel("run", "wait", run).code == 143
        assert "no run" in carrel.bad(125, "run", "wait", "ru_aaaaaaaaaaaa")
        assert "no run" in carrel.bad(3, "run", "show", "ru_aaaaaaaaaaaa")

    def test_logs_follow_to_the_end(self, carrel: Program, space: str) -> None:
        script = "echo 1; sleep 0.3; echo 2"
        carrel.good("exec", "-d", space, "--", "sh", "-c", script)
        assert carrel.good("logs", "-f", space) == "1\n2\n"

    def test_nothing_has_run_yet(self, carrel: Program, space: str) -> None:
        assert "Nothing has run" in carrel("logs", space).err
        assert "Nothing has run" in carrel("runs", space).err

    def test_a_record_instead_of_text(self, carrel: Program, space: str) -> None:
        done = carrel("exec", "--json", space, "false")
        assert done.code == 1 and json.loads(done.out)["exit"]["code"] == 1


def test_output_is_complete_when_the_daemon_is_killed(own_daemon: Daemon, tmp_path: Path) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", "--empty").strip()
    timers = [threading.Timer(delay, kill, [own_daemon]) for delay in (0.5,)]
    for timer in timers:
        timer.start()
    done = carrel("exec", space, "--", "sh", "-c", COUNTING)
    for timer in timers:
        timer.join()
    assert done.out.split() == [str(number) for number in range(COUNT)]
    assert done.err.split() == [f"e{number}" for number in range(COUNT)]
    assert done.code == 0


def test_much_comes_through_whole_to_a_slow_reader_while_the_daemon_is_killed(
    own_daemon: Daemon, tmp_path: Path
) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", "--empty").strip()
    script = f"head -c {MUCH} /dev/urandom > f; sha256sum f"
    wanted = carrel.good("exec", space, "--", "sh", "-c", script).split()[0]
    process = carrel.start("exec", space, "--", "cat", "f", stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        head = process.stdout.read(1 << 20)
        # Nobody reads: it cannot be done.
        (run,) = [one for one in carrel.json("runs", space)["runs"] if one["argv"][0] == "cat"]
        assert carrel("run", "wait", "--timeout", "2", run["id"]).code == 124
        kill(own_daemon)
        seen = hashlib.sha256(head)
        size = len(head)
        while piece := process.stdout.read(1 << 20):
            seen.update(piece)
            size += len(piece)
        assert process.wait(TIMEOUT_S) == 0
    assert (seen.hexdigest(), size) == (wanted, MUCH)


def test_what_is_missing_is_said(carrel: Program, space: str) -> None:
    """Nobody was attached: the newest part is there."""
    script = "seq 3000000; seq 100 >&2"
    run = carrel.good("exec", "-d", space, "--", "sh", "-c", script).strip()
    assert carrel("run", "wait", run).code == 0
    whole = b"".join(b"%d\n" % number for number in range(1, 3_000_001))
    found = carrel("logs", space)
    lost = len(whole) - len(found.bytes)
    assert found.code == 0 and lost > 0 and whole.endswith(found.bytes)
    assert f"carrel: {lost} bytes of the output are missing here" in found.err
    assert carrel("logs", "-f", space).err.startswith(f"carrel: {lost} bytes")
    shown = carrel.json("logs", space)
    assert (shown["stdout_missing_bytes"], shown["stderr_missing_bytes"]) == (lost, 0)
    attached = carrel("run", "attach", run)
    assert attached.code == 125 and f"{lost} bytes" in attached.err
    assert attached.bytes == found.bytes
    done = carrel("run", "attach", "--new", run)
    assert (done.code, done.err) == (0, "")


def test_who_leaves_on_purpose_does_not_keep_the_command(carrel: Program, space: str) -> None:
    """Its output is more than is kept, so it could not end while somebody is waited for."""
    script = "trap '' INT; echo ready; seq 4000000; echo done > mark"
    process = carrel.start(
        *("exec", space, "--", "sh", "-c", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        started(process)
        run = carrel.json("runs", space)["runs"][0]["id"]
        assert carrel("run", "wait", "--timeout", "0.5", run).code == 124
        assert process.stdout is not None
        process.stdout.close()
        # A broken pipe ends the client; the command is told by a signal, as ever.
        process.wait(TIMEOUT_S)
    assert carrel("run", "wait", "--timeout", "30", run).code != 124


def test_an_ended_daemon_is_not_called_back(own_daemon: Daemon, tmp_path: Path) -> None:
    """Ended on purpose: whoever watches waits for it, and goes on where it was."""
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", "--empty").strip()
    script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo done; exit 3"
    process = carrel.start("exec", space, "--", "sh", "-c", script, stdout=subprocess.PIPE)
    with process:
        started(process)
        assert "has ended" in carrel.good("down")
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert carrel("status").code == 6
            time.sleep(LOOK_S)
        carrel.good("up")
        carrel.good("exec", space, "touch", "go")
        assert process.stdout is not None and process.stdout.read() == b"done\n"
        assert process.wait(TIMEOUT_S) == 3
