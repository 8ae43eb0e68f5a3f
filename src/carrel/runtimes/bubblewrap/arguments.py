"""The command line of bubblewrap for one sandbox."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.runtimes import Network
from carrel.runtimes.layout import HOME, HUB, INSIDE_ID, WORKSPACE

STAGE = "/tmp"
"""Where the launcher shows us the staged mounts, as root."""
SECCOMP_FD = 10
INFO_FD = 11
TOOLCHAIN = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
OPTIONAL = ("/nix/store",)
HIDDEN = ("/proc/keys", "/proc/key-users")
"""Of an ordinary user, who has the sandbox's own host id, they would tell the host's keys."""


@dataclass(frozen=True)
class View:
    """Where bubblewrap finds what the sandbox shows: staged names, or plain paths."""

    tree: str | None
    """None: it comes later, and finds a folder to be put on."""
    home: str
    tmp: str
    hub: str
    etc: str
    binds: tuple[tuple[str, str, bool], ...] = ()
    """Source, target in the sandbox, writable."""
    also_at: str = ""
    """A second place for the tree."""


def arguments(program: str, view: View, network: Network, *, survive: bool) -> list[str]:
    holder, name = _holder()
    argv = [program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--disable-userns", "--cap-drop", "ALL", "--clearenv"]
    if network is Network.NONE:
        argv.append("--unshare-net")
    if not survive:
        argv.append("--die-with-parent")
    argv += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", "carrel"]
    argv += _toolchain()
    argv += ["--ro-bind", view.etc, "/etc", "--dev", "/dev", "--proc", "/proc"]
    for hidden in filter(os.path.exists, HIDDEN):
        argv += ["--ro-bind", "/dev/null", hidden]
    argv += ["--bind", view.tmp, "/tmp", "--symlink", "/tmp", "/var/tmp", "--dir", "/run"]
    argv += ["--ro-bind", view.hub, HUB]
    argv += ["--bind", view.home, HOME]
    argv += ["--dir", WORKSPACE] if view.tree is None else ["--bind", view.tree, WORKSPACE]
    for source, target, writable in view.binds:
        argv += ["--bind" if writable else "--ro-bind", source, target]
    if view.tree is not None and view.also_at:
        argv += ["--bind", view.tree, view.also_at]
    argv += ["--ro-bind", holder, f"/run/{name}", "--remount-ro", "/"]
    argv += ["--seccomp", str(SECCOMP_FD), "--info-fd", str(INFO_FD), "--chdir", "/"]
    return [*argv, "--", f"/run/{name}"]


def _toolchain() -> list[str]:
    """As the host has it: real folders bound, the links of merged systems made again."""
    argv: list[str] = []
    for name in TOOLCHAIN:
        path = Path("/") / name
        if path.is_symlink():
            argv += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    for extra in OPTIONAL:
        if Path(extra).is_dir():
            argv += ["--ro-bind", extra, extra]
    return argv


def _holder() -> tuple[str, str]:
    """`cat` under another name, so that nobody's `pkill cat` ends the sandbox. One program
    that plays many parts by its name must keep it."""
    found = shutil.which("cat", path="/usr/bin:/bin") or "/bin/cat"
    real = os.path.realpath(found)
    return real, "hold" if os.path.basename(real) == "cat" else "cat"
