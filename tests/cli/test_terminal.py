"""Commands with a terminal, in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.client.killing import kill
from tests.daemon.rig import Daemon


def test_it_has_one_of_our_size_and_kind(carrel: Program, space: str) -> None:
    carrel.env["TERM"] = "vt100"
    script = "stty size; echo $TERM; tty; test -t 0 && test -t 1 && test -t 2; exit $?"
    words = ("exec", "-t", space, "--", "sh", "-c", script)
    with in_terminal(carrel, *words, rows=33, cols=111) as terminal:
        text = terminal.rest()
        assert terminal.end() == 0
    assert b"33 111" in text and b"vt100" in text and b"/dev/pts/" in text


def test_a_shell_is_a_shell(carrel: Program, space: str) -> None:
    with in_terminal(carrel, "shell", space) as terminal:
        terminal.type(b"cat RE")
        terminal.type(b"ADME.md\r")
        terminal.until(b"read me")
        terminal.type(b"exit 7\r")
        assert terminal.end() == 7


@pytest.mark.parametrize("typed", [b"", b"exit 0\n", b"cat README.md; exit 4"])
def test_a_shell_without_a_local_terminal_ends_with_its_input(
    carrel: Program, space: str, typed: bytes
) -> None:
    done = carrel("shell", space, stdin=typed)
    assert (done.code, "read me" in done.out) == ((4, True) if b"cat" in typed else (0, False))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_shell_ends_with_its_client(carrel: Program, space: str, number: int) -> None:
    """An interactive shell ignores SIGTERM; what hangs up ends it."""
    with in_terminal(carrel, "shell", space) as terminal:
        before = terminal.mode
        terminal.type(b"echo rea''dy\r")
        terminal.until(b"ready")
        run = carrel.json("runs", space)["runs"][0]["id"]
        terminal.process.send_signal(number)
        terminal.process.wait(TIMEOUT_S)
        assert terminal.mode == before
    assert carrel("run", "wait", run).code == 129


def test_who_is_told_twice_goes_at_once(carrel: Program, space: str) -> None:
    """Though the command ignores it, and nobody reads what it writes."""
    # On the stream that nobody reads afterwards: the other one waits for it.
    script = "trap '' TERM; echo ready; exec yes"
    words = ("exec", space, "--", "sh", "-c", script)
    with carrel.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        run = carrel.json("runs", space)["runs"][0]["id"]
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            # Two that come at the same moment are one.
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        assert process.returncode == 143
        assert run.encode() in process.stderr.read()
    carrel.good("run", "signal", run, "KILL")


def test_every_key_goes_to_the_command(carrel: Program, space: str) -> None:
    """Ctrl-C, Ctrl-Z and Ctrl-\\ are the command's, not ours."""
    script = "stty raw -echo; printf ready; dd bs=1 count=4 2>/dev/null | od -An -tx1"
    with in_terminal(carrel, "exec", "-t", space, "--", "sh", "-c", script) as terminal:
        terminal.until(b"ready")
        terminal.type(b"\x03\x1a\x1c\x04")
        text = terminal.rest()
        assert terminal.end() == 0
    assert b"03 1a 1c 04" in text


def test_an_interrupt_interrupts(carrel: Program, space: str) -> None:
    # A shell that is just starting a program may overlook an interrupt; one that became it not.
    script = "echo ready; exec cat"
    with in_terminal(carrel, "exec", "-t", space, "--", "sh", "-c", script) as terminal:
        terminal.until(b"ready")
        terminal.type(b"\x03")
        assert terminal.end() == 130


def test_the_window_grows(carrel: Program, space: str) -> None:
    # What is trapped is never overlooked, also while the shell starts a program.
    script = "trap 'stty size' WINCH; trap 'exit 4' INT; echo ready; while :; do sleep 0.1; done"
    with in_terminal(carrel, "exec", "-t", space, "--", "sh", "-c", script) as terminal:
        terminal.until(b"ready")
        terminal.resize(50, 132)
        terminal.until(b"50 132")
        terminal.type(b"\x03")
        assert terminal.end() == 4


@pytest.mark.parametrize("how", ["exit", "killed", "hangup", "error", "left"])
def test_the_terminal_is_as_it_was(carrel: Program, space: str, how: str) -> None:
    words = ["exec", "-t", space, "--", "sh", "-c", "echo ready; read x; exit 3"]
    if how == "error":
        words[2] = "nobody"
    with in_terminal(carrel, *words) as terminal:
        before = terminal.mode
        if how != "error":
            terminal.until(b"ready")
            assert terminal.mode != before
        if how == "exit":
            terminal.type(b"x\r")
        elif how == "killed":
            terminal.process.send_signal(signal.SIGTERM)
        elif how == "hangup":
            terminal.process.send_signal(signal.SIGHUP)
        elif how == "left":
            terminal.type(b"\x1d\x1d")
        terminal.process.wait(TIMEOUT_S)
        assert terminal.mode == before


def test_one_can_leave_and_come_back(carrel: Program, space: str) -> None:
    script = "echo ready; while read line; do echo got $line; done"
    with in_terminal(carrel, "exec", "-t", space, "--", "sh", "-c", script) as terminal:
        terminal.until(b"ready")
        terminal.type(b"one\r")
        terminal.until(b"got one")
        terminal.type(b"\x1d\x1d")
        text = terminal.rest()
        assert terminal.end() == 130
    run = text.decode().split()[-1]
    with in_terminal(carrel, "run", "attach", run) as terminal:
        terminal.until(b"got one")
        terminal.type(b"two\r")
        terminal.until(b"got two")
        terminal.type(b"\x04")
        assert terminal.end() == 0


def test_one_key_alone_does_not_leave(carrel: Program, space: str) -> None:
    """Editors use it. Apart from one another, two of them are two keys."""
    script = "stty raw -echo; printf ready; dd bs=1 count=1 2>/dev/null | od -An -tx1"
    with in_terminal(carrel, "exec", "-t", space, "--", "sh", "-c", script) as terminal:
        terminal.until(b"ready")
        terminal.type(b"\x1d")
        terminal.until(b"1d")
        assert terminal.end() == 0


def test_without_a_local_terminal(carrel: Program, space: str) -> None:
    done = carrel(
        "exec", "-t", space, "--", "sh", "-c", "tty; stty size; read x; echo got $x", stdin=b"in\n"
    )
    assert done.code == 0
    assert "/dev/pts/" in done.out and "24 80" in done.out and "got in" in done.out


def test_it_goes_on_when_the_daemon_is_killed(own_daemon: Daemon, tmp_path: Path) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", "--empty").strip()
    with in_terminal(carrel, "shell", space) as terminal:
        terminal.type(b"echo be''fore; X=kept\r")
        terminal.until(b"before")
        kill(own_daemon)
        # Started by whoever comes next, also by the one who lost it.
        carrel.good("ls")
        terminal.type(b"echo after $X\r")
        terminal.until(b"after kept")
        terminal.type(b"exit 5\r")
        assert terminal.end() == 5


def test_a_lost_terminal_does_not_end_the_command(carrel: Program, space: str) -> None:
    with in_terminal(carrel, "exec", "-t", space, "--", "sh", "-c", "echo ready; cat") as terminal:
        terminal.until(b"ready")
        run = carrel.json("runs", space)["runs"][0]["id"]
        terminal.process.send_signal(signal.SIGKILL)
        terminal.process.wait(TIMEOUT_S)
    assert carrel.json("run", "show", run)["state"] == "running"
    carrel.good("run", "signal", run, "KILL")


def test_output_to_a_pipe_that_is_slow_to_read(carrel: Program, space: str) -> None:
    reader, writer = os.pipe()
    process = carrel.start("exec", space, "--", "sh", "-c", "seq 200000", stdout=writer)
    os.close(writer)
    data = b""
    with process, open(reader, "rb", buffering=0) as source:
        while piece := source.read(1000):
            data += piece
        assert process.wait(TIMEOUT_S) == 0
    assert data.endswith(b"199999\n200000\n") and data.count(b"\n") == 200_000


EVIL = b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\ttab\xc2\x9b2Jover\xe2\x80\xaewrite\rback"


def test_logs_do_not_steer_the_terminal(carrel: Program, space: str) -> None:
    octal = "".join(f"\\{byte:03o}" for byte in EVIL)
    assert carrel("exec", space, "--", "printf", f"{octal}\\r\\n").bytes == EVIL + b"\r\n"
    for words in (("logs", space), ("logs", "-f", space)):
        assert carrel(*words).bytes == EVIL + b"\r\n"
        with in_terminal(carrel, *words) as terminal:
            text = terminal.rest()
        assert b"\x1b[31mred\x1b[0m\ttab" in text and b"back\r" in text, text
        for steering in (b"\x07", b"\x1b]", b"\x1b[2J", b"\xc2\x9b", b"\xe2\x80\xae", b"\rback"):
            assert steering not in text, (steering, text)
        assert b"\\x1b]0;owned\\x07" in text
    with in_terminal(carrel, "logs", "--raw", space) as terminal:
        assert EVIL in terminal.rest()
