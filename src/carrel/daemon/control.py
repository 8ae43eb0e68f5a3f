"""Starting, ending and finding the daemon, from other programs. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from carrel.daemon import places
from carrel.domain.errors import DaemonError, DaemonUnavailable
from carrel.linux.descriptors import is_readable
from carrel.linux.processes import is_alive

START_S = 300.0
"""To import everything and take up what there is: a second or two on a machine at rest, minutes on
a slow one that does much else. One that ends instead is noticed at once."""
STOP_S = 40.0
"""Since the last sign of life. A daemon that ends gives one every second, for a minute at most;
see `carrel.daemon.main`."""
LOG_LINES = 15
SYSTEMD = "/run/systemd/system"
"""Is there where systemd manages the machine: only then is it asked."""
_LOOK_S = 1.0
_STEP_S = 0.02

Folder = str | os.PathLike[str]


class Status(NamedTuple):
    """`address` is HOST:PORT when it listens on TCP."""

    running: bool
    pid: int = 0
    address: str = ""


def status(data: Folder) -> Status:
    found = places.holder(data)
    if found is None:
        return Status(False)
    return Status(True, found.pid, _address(data))


def start(data: Folder, listen: str | None = None, timeout: float = START_S) -> int:
    """Its process id, when it serves. `DaemonRunning` when one does already;
    `DaemonUnavailable` with what it said when it does not start."""
    until = time.monotonic() + timeout
    other = places.holder(data)
    if other is not None:
        _await_socket(data, until)
        raise places.running(data, other)
    if not listen and os.path.isdir(SYSTEMD):
        from carrel.daemon import service

        if service.is_installed(data):
            service.start(data)
            _await_socket(data, until)
            return status(data).pid
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        _spawn(data, listen, theirs)
    except OSError as error:
        os.close(ours)
        raise DaemonUnavailable(
            f"The daemon cannot be started: {error.strerror}.",
            hint="Check that the Python that Carrel was installed with still exists.",
        ) from error
    finally:
        os.close(theirs)
    try:
        said = _hear(ours, until)
    finally:
        os.close(ours)
    return _understood(data, said, until)


def stop(
    data: Folder, timeout: float = STOP_S, told: Callable[[str], None] = lambda _doing: None
) -> int | None:
    """Its process id, when it has ended; None when none ran. What runs in spaces goes on.
    `told` hears what the daemon still does, when that takes a while."""
    found = places.holder(data)
    if found is None:
        return None
    until = time.monotonic() + timeout
    before = _doing(data)
    with _process(found) as descriptor:
        if descriptor is None:
            return None
        _terminate(found, descriptor)
        while not _ended(found, descriptor, min(until, time.monotonic() + _LOOK_S)):
            now = _doing(data)
            if now != before:
                before, until = now, time.monotonic() + timeout
                told(now[1])
            elif time.monotonic() > until:
                raise DaemonUnavailable(
                    f"The daemon (process {found.pid}) does not end.",
                    hint=f"Its log is {places.log(data)}; as a last resort: kill -9 {found.pid}",
                    pid=found.pid,
                )
    return found.pid


# Starting


def _spawn(data: Folder, listen: str | None, ready: int) -> None:
    """A process that leaves the daemon behind and ends at once."""
    words = [*places.command(data), "--detach", "--ready-fd", str(ready)]
    if listen:
        words += ["--listen", listen]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
        # Onto itself: what is handed on so is not closed on the way.
        os.set_inheritable(ready, True)
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=actions)
    finally:
        os.close(null)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _hear(ready: int, until: float) -> bytes:
    """All that the daemon says before it closes its end; it does so when it serves."""
    said = b""
    while True:
        if not is_readable(ready, until - time.monotonic()):
            return said
        piece = os.read(ready, 65536)
        if not piece:
            return said
        said += piece
        if said.startswith(b"ready ") and said.endswith(b"\n"):
            return said


def _understood(data: Folder, said: bytes, until: float) -> int:
    if said.startswith(b"ready "):
        return int(said.split()[1])
    words = [*said.decode("utf-8", "replace").split("\0"), "", ""]
    code, message, hint = words[:3]
    if code == "daemon_running":
        # Somebody else was faster.
        _await_socket(data, until)
        raise places.running(data, places.holder(data))
    if message:
        raise DaemonUnavailable(f"The daemon did not start: {message}", hint=hint, cause=code)
    late = time.monotonic() >= until
    why = "is not ready yet" if late else "ended while it started"
    raise DaemonUnavailable(
        f"The daemon {why}.",
        hint=f"Its log, {places.log(data)}, ends with:\n{_last_lines(data)}",
        log=_last_lines(data),
    )


def _await_socket(data: Folder, until: float) -> None:
    while True:
        with contextlib.suppress(OSError):
            connect(data).close()
            return
        if places.holder(data) is None:
            raise DaemonError("The daemon ended while it started.", hint="Try again.")
        if time.monotonic() > until:
            raise DaemonUnavailable(
                "A daemon runs, but does not answer.", hint=f"Its log is {places.log(data)}."
            )
        time.sleep(_STEP_S)


def connect(data: Folder) -> socket.socket:
    """To the daemon's socket, however long its path is. OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    path = places.socket(data)
    try:
        if len(os.fsencode(path)) <= places.MAX_ADDRESS:
            connection.connect(path)
            return connection
        above = os.open(places.folder(data), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{above}/{places.SOCKET}")
        finally:
            os.close(above)
        return connection
    except BaseException:
        connection.close()
        raise


def _last_lines(data: Folder) -> str:
    try:
        with open(places.log(data), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 16384))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES:])


def _address(data: Folder) -> str:
    try:
        with open(places.address(data), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


# Ending


def _doing(data: Folder) -> tuple[int, str]:
    """When a daemon that ends last said what it does, and what that is."""
    try:
        with open(places.ending(data), encoding="utf-8") as file:
            return os.fstat(file.fileno()).st_mtime_ns, file.read()
    except (OSError, ValueError):
        return 0, ""


@contextlib.contextmanager
def _process(found: places.Holder) -> Iterator[int | None]:
    """A descriptor of just that process; -1 where the kernel has none, None when it is gone."""
    try:
        descriptor = os.pidfd_open(found.pid)
    except ProcessLookupError:
        yield None
        return
    except (OSError, AttributeError):
        yield -1
        return
    try:
        yield descriptor if is_alive(*found) else None
    finally:
        os.close(descriptor)


def _terminate(found: places.Holder, descriptor: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if descriptor >= 0:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        else:
            os.kill(found.pid, signal.SIGTERM)


def _ended(found: places.Holder, descriptor: int, until: float) -> bool:
    left = max(0.0, until - time.monotonic())
    if descriptor >= 0:
        is_readable(descriptor, left)
    else:
        time.sleep(min(left, _STEP_S))
    return not is_alive(*found)
