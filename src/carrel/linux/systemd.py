"""A place of one's own in systemd's tree of control groups: a scope that is delegated to us.

systemd alone moves processes between the sessions and services of a machine, and alone makes
groups beside them. What is below a delegated scope it leaves to whoever asked for it. It is asked
by its own program `busctl`: as root the system's manager, else the user's, which every login by PAM
has.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import time
from pathlib import Path

RUNNING = Path("/run/systemd/system")
"""Is there exactly where systemd manages the machine (sd_booted)."""
RUNTIME = Path("/run/user")
LINGER = Path("/var/lib/systemd/linger")
LEAF = "carrel-self"
"""A group that hands controllers on holds no process itself: they are one below it."""
UNITS = (".scope", ".service")
CALL_S = 30
"""systemd answers in milliseconds; one that stops or reloads, or a busy machine, takes longer."""
STOP_US = 10_000_000
"""From SIGTERM to SIGKILL, when the scope ends with its user's last login."""
_LOOK_S = 0.005
_MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)


def manages_us() -> bool:
    """Whether there is a manager that we can ask."""
    if not RUNNING.is_dir():
        return False
    return os.geteuid() == 0 or (RUNTIME / str(os.geteuid()) / "bus").exists()


def lingers() -> bool:
    """Whether our user's manager, and all below it, goes on without a login."""
    return (LINGER / _user()).exists()


def unit_of(path: str) -> str:
    """The innermost scope or service in the path of a control group; empty when there is none."""
    parts = path.split("/")
    for end in range(len(parts), 0, -1):
        if parts[end - 1].endswith(UNITS):
            return "/".join(parts[:end])
    return ""


def remedy() -> str:
    """What a person does to have limits by control groups here; empty when nothing is known."""
    if not RUNNING.is_dir():
        return "" if os.geteuid() == 0 else "Run the daemon as root, or where systemd is."
    if not manages_us():
        linger = f"sudo loginctl enable-linger {_user()}"
        return f"{linger} && carrel down (su gives no service manager)"
    if os.geteuid() == 0:
        return "carrel down; its log says why systemd gave it no scope."
    return (
        "sudo mkdir -p /etc/systemd/system/user@.service.d && printf"
        " '[Service]\\nDelegate=cpu memory pids\\n' | sudo tee"
        " /etc/systemd/system/user@.service.d/carrel.conf && sudo systemctl daemon-reload;"
        " then log out and in again, and: carrel down"
    )


def is_delegated(unit: Path) -> bool:
    """Whether systemd leaves to us what is below the unit of this folder."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(unit, name) == b"1"
    # Before version 251 systemd tells only root. It gives what it delegates to its user.
    return os.geteuid() != 0 and os.access(unit / "cgroup.procs", os.W_OK)


def join_scope(name: str, description: str) -> str:
    """Moves this process into the scope `name`, which is made if it is not there. Says why not,
    or nothing when it is there."""
    if _is_in(name):
        return ""
    pid = str(os.getpid())
    said = _ask(
        *("StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", "5"),
        *("Description", "s", description, "PIDs", "au", "1", pid, "Delegate", "b", "true"),
        *("CollectMode", "s", "inactive-or-failed", "TimeoutStopUSec", "t", str(STOP_US), "0"),
    )
    if said:
        # It is there already: the launcher and its sandboxes outlive the daemon that made it.
        again = _ask("AttachProcessesToUnit", "ssau", name, f"/{LEAF}", "1", pid)
        if again:
            return f"{said} {again}"
    until = time.monotonic() + CALL_S
    while not _is_in(name):
        # The answer comes when the move is on its way.
        if time.monotonic() > until:
            return f"systemd did not move this process to {name}"
        time.sleep(_LOOK_S)
    return ""


def _user() -> str:
    """Our name; the number of a user without an account, as some containers have."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_in(name: str) -> bool:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return any(unit_of(line.split(":", 2)[2]).endswith(f"/{name}") for line in lines)


def _ask(*words: str) -> str:
    """What systemd said when it refused."""
    manager = "--system" if os.geteuid() == 0 else "--user"
    given = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(RUNTIME / str(os.geteuid()))}
    command = ["busctl", manager, f"--timeout={CALL_S}", "--quiet", "call", *_MANAGER, *words]
    try:
        done = subprocess.run(
            command,
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"busctl: {error.strerror}"
    return done.stderr.strip() if done.returncode else ""
