"""Other ways to run one command behind walls, each as a command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COMMAND_S = 60.0
"""For one start; the slowest takes half a second."""
SCRIPT = "echo hello"
WORDS = ("sh", "-c", SCRIPT)
"""What every subject runs: it says something, so that its output counts too, and does no more
in one environment than in another."""
SAID = "hello\n"
PLAIN = "no sandbox: subprocess"
BWRAP = "raw bwrap, the same namespaces"


class RivalFailed(Exception):
    """With its last words."""


@dataclass(frozen=True)
class Rival:
    """Raises `RivalFailed` when the command did not run, or its output did not come back."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    """Takes so little that it can run several times in each round."""

    def run(self) -> None:
        done = subprocess.run(
            self.argv,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.env},
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode != 0 or done.stdout != SAID:
            raise RivalFailed(last_line(done.stderr) or f"ended with {done.returncode}")

    def works(self) -> str:
        """Empty, or why it cannot be measured."""
        try:
            self.run()
        except (OSError, RivalFailed, subprocess.SubprocessError) as error:
            return str(error)
        return ""


def plain_rivals(tree: Path) -> list[Rival]:
    """Those that need nothing to be set up."""
    rivals = [Rival(PLAIN, WORDS, quick=True)]
    if shutil.which("bwrap") is not None:
        rivals.append(Rival(BWRAP, _bwrap(tree), quick=True))
    if shutil.which("srt") is not None:
        # It leaves its sockets behind.
        rivals.append(Rival("srt", ("srt", "-c", SCRIPT), {"TMPDIR": str(tree)}))
    return rivals


def absent() -> dict[str, str]:
    missing = {name: "not installed" for name in ("srt",) if shutil.which(name) is None}
    if shutil.which("bwrap") is None:
        missing[BWRAP] = "bubblewrap is not installed"
    return missing


def _bwrap(tree: Path) -> tuple[str, ...]:
    """What Carrel's sandbox has, as one would write it by hand; without the seccomp filter,
    which takes a compiled program."""
    argv = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--unshare-net", "--disable-userns", "--cap-drop", "ALL"]
    argv += ["--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
    argv += ["--uid", "1000", "--gid", "1000", "--hostname", "carrel"]
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            argv += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    argv += ["--ro-bind", "/etc", "/etc", "--dev", "/dev", "--proc", "/proc"]
    argv += ["--tmpfs", "/tmp", "--dir", "/run", "--dir", "/home/user"]
    argv += ["--bind", str(tree), "/workspace", "--remount-ro", "/", "--chdir", "/workspace"]
    return (*argv, "--", *WORDS)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
