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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel import Client
from carrel.daemon import control, main, places
from carrel.domain.errors import DaemonRunning, DaemonUnavailable
from carrel.launcher.client import Launcher
from tests.accounts import Account
from tests.daemon.rig import Daemon, good
from tests.machine import inhabitants

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


@pytest.fixture
def stranger(ordinary_user: Account) -> Account:
    if os.geteuid() != 0:
        pytest.skip("only root can make what is another account's")
    return ordinary_user


@pytest.mark.parametrize(
    "prepared", ["data", "daemon", "daemon is a link", "lock is a link", "above", "writable"]
)
def test_what_another_account_has_prepared_is_not_used(
    data: Path, stranger: Account, prepared: str
) -> None:
    """It would say which files of the daemon's user are cut, and answer in the daemon's place."""
    above = data / "above"
    own, precious = above / "data", data / "precious"
    (own / "daemon").mkdir(parents=True)
    precious.mkdir(mode=0o755)
    (precious / "file").write_text("precious")
    match prepared:
        case "data":
            os.chown(own, *stranger)
        case "daemon":
            os.chown(own / "daemon", *stranger)
        case "daemon is a link":
            (own / "daemon").rmdir()
            (own / "daemon").symlink_to(precious)
        case "lock is a link":
            (own / "daemon" / "lock").symlink_to(precious / "file")
        case "above":
            above.chmod(0o777)
        case "writable":
            own.chmod(0o757)
    with pytest.raises(DaemonUnavailable), places.held(own):
        pass
    assert precious.stat().st_mode & 0o777 == 0o755
    assert [one.read_text() for one in precious.iterdir()] == ["precious"]


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755])
def test_a_folder_of_ones_own_is_used(data: Path, mode: int) -> None:
    """Also by a link, and below one in which all may write and nobody may rename."""
    above, own, link = data / "above", data / "above" / "own", data / "link"
    own.mkdir(parents=True)
    above.chmod(0o1777)
    own.chmod(mode)
    link.symlink_to(own)
    with places.held(link):
        assert places.holder(own) is not None
    assert own.stat().st_mode & 0o777 == mode


def test_a_daemon_of_another_account_is_told_nothing(data: Path, stranger: Account) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{places.make_folder(data)}/{places.SOCKET}")
        os.seteuid(stranger.uid)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(DaemonUnavailable, match="another account"):
            Client(data=data, autostart=False).info()
        listener.settimeout(SOON_S)
        with listener.accept()[0] as heard:
            assert heard.recv(100) == b""


def test_another_account_names_no_process(data: Path, stranger: Account) -> None:
    """`carrel down` ends the one that stands in the lock."""
    with places.held(data):
        os.chown(places.lock(data), *stranger)
        assert places.holder(data) is None


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


def test_where_a_dead_daemon_set_up_a_project_the_next_one_clears_up(
    daemon: Daemon, tmp_path: Path
) -> None:
    """What ran there would go on, and the space would stay for hours."""
    command = '{"image": "x", "postCreateCommand": "setsid sleep 1000 & exec sleep 1000"}'
    (tmp_path / ".devcontainer.json").write_text(command)
    body = {"project": {"kind": "folder", "location": str(tmp_path)}, "run_setup": True}

    def make() -> None:
        with daemon.local() as client, suppress(httpx.HTTPError):
            client.post("/v1/spaces", json=body)

    making = threading.Thread(target=make)
    making.start()

    def found() -> list[dict[str, Any]]:
        with daemon.local() as client:
            return list(good(client.get("/v1/spaces"))["spaces"])

    def until(done: Callable[[], object]) -> None:
        bound = time.monotonic() + SOON_S / 2
        while not done():
            assert time.monotonic() < bound
            time.sleep(0.01)

    try:
        until(lambda: [one for one in found() if one["state"] == "running"])
        (space,) = found()
        until(lambda: len(inhabitants([space["id"]])) >= 2)
    finally:
        daemon.kill()
        making.join(SOON_S)
    daemon.start()
    until(lambda: not found())
    assert not inhabitants([space["id"]])
    assert not (daemon.data / "spaces" / space["id"]).exists()
