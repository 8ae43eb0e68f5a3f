"""The program that serves a repository of this machine to our own `git fetch`.

    python -P -m carrel.trees.git.upload_pack STRICT FOLDER... -- REPOSITORY

Git follows what a repository names: alternates, links, included settings. So Landlock lets
this process read the named folders (real paths) and git's own files, and nothing else. Where
the kernel has none, a STRICT one ("1") refuses; else the folders were looked at before, and
that has to do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from carrel.linux import landlock
from carrel.linux.openat2 import open_real

_PROGRAMS = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store"]
_READ = ["/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d"]
_DEVICES = ["/dev/null", "/dev/urandom"]

# The repository's settings can name programs; all that upload-pack could still be made to
# run is switched off, and it may not go on to fetch from anywhere else itself.
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_SSH_COMMAND": "false",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}
_OPTIONS = (
    "safe.directory=*",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "uploadpack.allowAnySHA1InWant=true",
    # Over no network it does not pay to look for the smallest form of loose objects.
    "pack.window=0",
    "pack.compression=1",
)


def main(words: list[str]) -> None:
    strict, *folders = words[: words.index("--")]
    repository = words[words.index("--") + 1]
    # Held open until git replaces this program, so that nobody exchanges one meanwhile.
    held = [open_real(Path(folder), os.O_PATH) for folder in folders]
    rules = landlock.Rules(
        execute=[*_PROGRAMS, *_gits_own()],
        read=[*_READ, *(f"/proc/self/fd/{folder}" for folder in held)],
        write=[],
        device=_DEVICES,
        connect=[],
        tcp_bind=[],
        tcp_connect=[],
    )
    try:
        landlock.restrict(rules)
    except OSError:
        if strict == "1":
            sys.exit("This kernel cannot keep git in the repository (no Landlock).")
    options = [word for option in _OPTIONS for word in ("-c", option)]
    os.execvpe("git", ["git", *options, "upload-pack", repository], os.environ | _ENVIRONMENT)


def _gits_own() -> list[str]:
    """Where another git than the system's is installed."""
    found = [os.path.join(folder, "git") for folder in os.get_exec_path()]
    real = next((os.path.realpath(path) for path in found if os.access(path, os.X_OK)), "")
    return [os.path.dirname(os.path.dirname(real))] if real.count("/") > 2 else []


if __name__ == "__main__":
    main(sys.argv[1:])
