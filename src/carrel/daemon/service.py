"""The daemon as a service of systemd: its unit is written, removed, started and asked for.

A unit belongs to one data folder. Where it is installed, whoever needs the daemon starts the unit.
The daemon moves on to the scope that the launcher and all commands are in (`linux/systemd.py`), so
that stopping the unit ends the daemon alone. Standard library only.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

from carrel.daemon import places
from carrel.domain.errors import DaemonUnavailable
from carrel.linux import systemd
from carrel.linux.processes import python

SHORT_NAME = "carrel.service"
SYSTEM_UNITS = Path("/etc/systemd/system")
CALL_S = 330.0
"""For a daemon that starts or ends at its own pace; systemd gives it nearly as long."""
_TEXT = """\
# Written by `carrel service install`; `carrel service remove` takes it away.
[Unit]
Description=Carrel, {data}

[Service]
Type=notify
# One that was started by a command makes room. Its commands go on.
ExecStartPre={ending}
ExecStart={daemon}
{environment}Restart=on-failure
TimeoutStartSec=300
TimeoutStopSec=90

[Install]
WantedBy={target}
"""


class ServiceState(NamedTuple):
    """`active` is systemd's own word: active, inactive, failed …"""

    installed: bool
    enabled: bool
    active: str
    unit: str
    path: str


def unit_path(data: places.Folder) -> Path:
    """Of this data folder's unit, installed or to be. That of the first has the short name."""
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    units = SYSTEM_UNITS if os.geteuid() == 0 else Path(own) / "systemd/user"
    short, long = units / SHORT_NAME, units / f"{places.scope(data).removesuffix('.scope')}.service"
    if long.exists() or (short.exists() and not _is_for(short, data)):
        return long
    return short


def _is_for(path: Path, data: places.Folder) -> bool:
    return f"{_line(['--data', os.path.abspath(data)])}\n" in path.read_text()


def is_installed(data: places.Folder) -> bool:
    return systemd.RUNNING.is_dir() and unit_path(data).is_file()


def install(data: places.Folder) -> None:
    """Writes the unit, and starts it now and with each login or boot."""
    _require_manager()
    path = unit_path(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(data))
    _systemctl("daemon-reload")
    _systemctl("enable", path.name)
    _systemctl("restart", path.name)


def remove(data: places.Folder) -> bool:
    """Whether there was one. What runs in spaces goes on; the next command starts a daemon."""
    path = unit_path(data)
    if not path.exists():
        return False
    _require_manager()
    _systemctl("disable", "--now", path.name)
    path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    return True


def start(data: places.Folder) -> None:
    _systemctl("start", unit_path(data).name)


def state(data: places.Folder) -> ServiceState:
    path = unit_path(data)
    name = path.name
    if not is_installed(data):
        return ServiceState(False, False, "inactive", name, str(path))
    active = _ask("is-active", name).stdout.strip() or "unknown"
    enabled = _ask("is-enabled", name).stdout.strip() == "enabled"
    return ServiceState(True, enabled, active, name, str(path))


def _text(data: places.Folder) -> str:
    folder = os.path.abspath(data)
    kept = ("CARREL_CONFIG", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "PATH")
    given = [
        f"Environment={_quoted(f'{name}={value}')}\n"
        for name in kept
        if (value := os.environ.get(name))
    ]
    target = "multi-user.target" if os.geteuid() == 0 else "default.target"
    return _TEXT.format(
        data=_quoted(folder),
        ending=_line([*python("carrel.cli.main", *places.UTF8), "--data", folder, "down"]),
        daemon=_line(places.command(folder)),
        environment="".join(given),
        target=target,
    )


def _line(words: list[str]) -> str:
    return " ".join(map(_quoted, words))


def _quoted(text: str) -> str:
    """As one word of a unit's command line."""
    for special, safe in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%"), ("$", "$$")):
        text = text.replace(special, safe)
    return f'"{text}"'


def _require_manager() -> None:
    if not systemd.manages_us():
        raise DaemonUnavailable(
            "There is no service manager of yours here.",
            hint="Log in as this user, not by su; or keep a daemon by: carrel up --foreground",
        )


def _systemctl(*words: str) -> None:
    done = _ask(*words)
    if done.returncode:
        log = "journalctl" if os.geteuid() == 0 else "journalctl --user"
        raise DaemonUnavailable(
            f"systemctl {shlex.join(words)} failed: {done.stderr.strip()}",
            hint=f"See why: {log} -u {words[-1]}",
        )


def _shown() -> str:
    return "systemctl" if os.geteuid() == 0 else "systemctl --user"


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "XDG_RUNTIME_DIR": str(systemd.RUNTIME / str(os.geteuid()))}
    try:
        return subprocess.run(
            [*_shown().split(), *words],
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DaemonUnavailable(f"systemctl cannot be asked: {error}.") from error
