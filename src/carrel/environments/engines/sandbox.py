"""Where an engine's program runs: it sees the system's programs, its own folders and what it is
to build, and nothing else of the host.

A Dockerfile is a stranger's. Engines take more from it than its steps: `FROM tarball:/home/…`
makes an image of any archive, `Dockerfile.in` is given to the preprocessor with whatever it
includes, a Dockerfile may be a link to somewhere else, and mounts of steps have led out of their
containers before. None of that finds anything here. All processes are in one process namespace and
all mounts in one mount namespace, so that killing the program leaves neither.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = "/project"
STORE = "/engine"
WORK = "/work"
HOME = "/run/home"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "containers", "cni", "group"),
    *("hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf"),
    *("passwd", "pki", "protocols", "resolv.conf", "services", "ssl"),
)
"""What engines need of /etc: users by name, names of hosts, certificates, their own settings."""
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True)
class EngineSandbox:
    """`store` is the engine's own folder, `work` where it writes what we read; both are ours."""

    work: Path
    store: Path | None = None
    project: Path | None = None
    sockets: Mapping[str, Path] = field(default_factory=dict)
    """By path inside."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Read-only, by path inside."""
    env: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False
    """It mounts, and starts containers: root of a user namespace, or of the host."""

    offline: bool = False
    """It reaches no network."""

    def argv(self, *command: str) -> list[str]:
        words = [*_outer(self.privileged), "bwrap", "--die-with-parent", "--new-session"]
        words += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1"]
        if self.offline:
            words.append("--unshare-net")
        if self.privileged:
            words += ["--cap-add", "ALL"]
            if os.geteuid() != 0 and not sub_ids():
                words += ["--unshare-user", "--uid", "0", "--gid", "0"]
        words += _system()
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--dir", HOME]
        words += ["--tmpfs", "/tmp", "--tmpfs", "/var", "--dir", "/var/tmp", "--dir", "/var/lib"]
        words += ["--bind", str(self.work), WORK]
        if self.privileged:
            words += ["--dev-bind-try", "/dev/fuse", "/dev/fuse"]
            words += ["--dev-bind-try", "/dev/net/tun", "/dev/net/tun"]
            words += ["--ro-bind", "/sys", "/sys", "--bind-try", "/sys/fs/cgroup", "/sys/fs/cgroup"]
            words += _kernel_settings()
        if self.store is not None:
            words += ["--bind", str(self.store), STORE]
        if self.project is not None:
            words += ["--ro-bind", str(self.project), PROJECT]
        for inside, outside in self.sockets.items():
            words += ["--bind", str(outside), inside]
        for inside, outside in self.files.items():
            words += ["--ro-bind", str(outside), inside]
        # Nobody adds a file of /etc that the engine then reads, or loads.
        return [*words, "--remount-ro", "/", "--", *command]

    def environment(self) -> dict[str, str]:
        """All that the program has: nothing of ours but where the proxies are."""
        own = {"PATH": PATH, "HOME": HOME, "TMPDIR": WORK, "LANG": "C.UTF-8"}
        return {**own, **proxies(), **self.env}


def proxies() -> dict[str, str]:
    """Those without a password in them."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.lower() in _PROXIES and "@" not in value
    }


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        place = Path("/", name)
        if place.is_symlink():
            words += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            words += ["--ro-bind", str(place), str(place)]
    for name in _ETC:
        place = Path("/etc", name)
        # The resolver's file is often a link to what /run has.
        with contextlib.suppress(OSError, RuntimeError):
            words += ["--ro-bind", str(place.resolve(strict=True)), str(place)]
    return words


def _kernel_settings() -> list[str]:
    """What makes root of a host root run something outside: shown, and not to be written. Settings
    of the network are: they are those of a container's own, too."""
    words = ["--ro-bind", "/proc/sys", "/proc/sys", "--bind", "/proc/sys/net", "/proc/sys/net"]
    for name in ("sysrq-trigger", "kcore", "kmsg", "kpagecount", "kpageflags", "mem"):
        words += ["--ro-bind-try", "/dev/null", f"/proc/{name}"] if _is_there(name) else []
    agents = sorted(Path("/sys/fs/cgroup").glob("*/release_agent"))
    for path in agents if os.geteuid() == 0 else ():
        words += ["--ro-bind", "/dev/null", str(path)]
    return words


def _is_there(name: str) -> bool:
    return os.path.exists(f"/proc/{name}")


def _outer(privileged: bool) -> list[str]:
    if not privileged or os.geteuid() == 0 or not sub_ids():
        return []
    return ["unshare", "--user", "--map-auto", "--map-root-user", "--"]


@functools.cache
def sub_ids() -> bool:
    """Whether an ordinary user has a range of ids of its own, so that an image may have files of
    several users."""
    if not all(shutil.which(one) for one in ("newuidmap", "newgidmap", "unshare")):
        return False
    names = {str(os.geteuid())}
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    return all(_names_in(Path(file)) & names for file in ("/etc/subuid", "/etc/subgid"))


def _names_in(file: Path) -> set[str]:
    try:
        return {line.partition(":")[0] for line in file.read_text().splitlines()}
    except (OSError, UnicodeDecodeError):
        return set()
