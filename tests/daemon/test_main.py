"""The daemon as a program: in the foreground, without its streams, with a log that turns."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carrel.daemon import control, main, places
from carrel.domain.errors import DaemonRunning
from carrel.launcher.client import Launcher

SOON_S = 60.0


@contextmanager
def foreground(data: Path, *, closed: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Ready to be called. With `closed` nobody has a standard error any more."""
    ours, theirs = os.pipe()
    words = [sys.executable, "-m", "carrel.daemon", "--data", str(data), "--ready-fd", str(theirs)]
    if closed:
        words = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words]
    process = subprocess.Popen(words, pass_fds=[theirs], stderr=subprocess.PIPE)
    os.close(theirs)
    try:
        assert select.select([ours], [], [], SOON_S)[0]
        assert os.read(ours, 100).startswith(b"ready ")
        yield process
    finally:
        os.close(ours)
        process.terminate()
        process.wait(SOON_S)
        assert process.stderr is not None
        process.stderr.close()
        Launcher(data).shutdown(force=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_ends_when_it_is_told(data: Path, number: int) -> None:
    with foreground(data) as process:
        assert control.status(data).pid == process.pid
        process.send_signal(number)
        assert process.wait(SOON_S) == 0
    assert not os.path.exists(places.socket(data))


def test_it_logs_to_the_terminal_in_the_foreground(data: Path) -> None:
    with foreground(data) as process:
        process.terminate()
        process.wait(SOON_S)
        assert process.stderr is not None
        assert b"serving " in process.stderr.read()
    assert not os.path.exists(places.log(data))


def test_a_closed_standard_error_is_no_reason_to_end(data: Path) -> None:
    with foreground(data, closed=True):
        names = [os.readlink(f"/proc/{control.status(data).pid}/fd/{n}") for n in (0, 1, 2)]
        assert names == ["/dev/null"] * 3
        control.connect(data).close()


def test_a_standard_error_that_breaks_is_no_reason_to_end(data: Path) -> None:
    with foreground(data) as process:
        assert process.stderr is not None
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0


def test_it_is_killed_only_once(data: Path) -> None:
    """A second signal changes nothing: it is ending already."""
    with foreground(data) as process:
        for _ in range(3):
            process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0


def test_systemd_is_told(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SOON_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with foreground(data) as process:
            assert systemd.recv(100) == f"READY=1\nMAINPID={process.pid}\n".encode()
            process.terminate()
            assert systemd.recv(100) == b"STOPPING=1\n"


def test_modes_are_as_the_code_says(data: Path) -> None:
    before = os.umask(0o077)
    try:
        with foreground(data / "deep"):
            status = Path(f"/proc/{control.status(data / 'deep').pid}/status").read_text()
    finally:
        os.umask(before)
    assert re.search(r"^Umask:\s+0022$", status, re.MULTILINE)


def test_the_log_turns_and_is_kept_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "LOG_BYTES", 2000)
    path = tmp_path / "log"
    saved = [os.dup(1), os.dup(2)]
    try:
        handler = main.LogFile(str(path))
        for number in range(200):
            record = logging.LogRecord("x", logging.INFO, "", 0, f"{number:040}", None, None)
            handler.handle(record)
        os.write(2, b"past the loggers\n")
        handler.close()
    finally:
        for number, descriptor in enumerate(saved, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]
    assert all(p.stat().st_size <= 2100 for p in tmp_path.iterdir())
    assert path.read_text().endswith("past the loggers\n")
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_lock_names_its_holder(data: Path) -> None:
    with places.held(data):
        found = places.holder(data)
        assert found is not None and found.pid == os.getpid()
        with pytest.raises(DaemonRunning) as caught, places.held(data):
            pass
        assert caught.value.details["pid"] == os.getpid()
    assert places.holder(data) is None
    with places.held(data):
        pass


def test_a_look_at_the_lock_keeps_nobody_from_it(data: Path) -> None:
    """Whoever asks holds it for a moment, which a daemon that starts waits out."""
    places.make_folder(data)
    descriptor = os.open(places.lock(data), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    release = threading.Timer(0.2, os.close, [descriptor])
    release.start()
    try:
        with places.held(data):
            assert places.holder(data) is not None
    finally:
        release.join()


def test_the_clients_side_is_light() -> None:
    """It is imported by every command that may have to start a daemon."""
    script = (
        "import sys; import carrel.daemon.control; "
        "print([name for name in ('asyncio', 'msgspec', 'pydantic', 'fastapi', 'subprocess', "
        "'json', 'click', 'logging') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON_S, check=True
    )
    assert ran.stdout.strip() == "[]"
