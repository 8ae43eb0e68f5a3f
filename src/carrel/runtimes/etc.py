"""The /etc of sandboxes: the harmless parts of the host's, and a few files of our own.

One folder serves all sandboxes and is bound read-only: binding fifty files one by one would cost
more than everything else of a start together.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from pathlib import Path

from carrel.domain.ssh import LOGIN
from carrel.runtimes.policy import etc_paths
from carrel.runtimes.sandbox import HOME, HUB, INSIDE_ID

FRESH_S = 5.0
"""How long a look at the host's /etc is good for: a renewed certificate or resolver reaches
sandboxes that start later than this."""

WITHHELD = "carrel-withheld"
_APT = f"""// What the owner has set up, without credentials, and a state of the space: apt-get
// update, apt-cache and apt-get download work, and nobody here may install.
Dir::Etc::sourcelist "{HOME}/.config/apt/sources.list";
Dir::Etc::sourceparts "{HOME}/.config/apt/sources.list.d";
Dir::Etc::netrc "{HOME}/.config/apt/auth.conf";
Dir::State "{HOME}";
Dir::State::lists ".local/state/apt/lists";
Dir::State::status "/etc/{WITHHELD}";
Dir::Cache "{HOME}";
Dir::Cache::archives ".cache/apt/archives";
Dir::Cache::pkgcache ".cache/apt/pkgcache.bin";
Dir::Cache::srcpkgcache ".cache/apt/srcpkgcache.bin";
"""
OWN_FILES: dict[str, str | Path | None] = {
    "passwd": (
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
        f"user:x:{INSIDE_ID}:{INSIDE_ID}::{HOME}:/bin/sh\n"
        # Who comes by SSH. Whoever asks for the name of the number finds the one above.
        f"{LOGIN}:x:{INSIDE_ID}:{INSIDE_ID}::{HOME}:{HUB}/ssh/shell\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    # No group of terminals: it would be nobody's there, and programs fail to give it one.
    "group": f"root:x:0:\nuser:x:{INSIDE_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost\n",
    "hostname": "carrel\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    # What sandboxes have in place of hidden settings. Some programs fail if those are empty.
    WITHHELD: "",
    f"{WITHHELD}.json": "{}\n",
    f"{WITHHELD}.xml": "<settings/>\n",
    f"{WITHHELD}folder": None,
    "apt/apt.conf": _APT,
    "apt/apt.conf.d/50owner.conf": Path(f"{HOME}/.config/apt/apt.conf"),
}
"""Texts, links to a path, and an empty folder. apt makes its folders only below one that is there,
so that the home is all that it is given."""
_NEVER = frozenset({"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/hostname"})


class EtcFolder:
    """`current` gives a folder that will not change any more; when the host's /etc does,
    the next call gives another."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "etc"
        self._known: Path | None = None
        self._looked = 0.0

    def current(self) -> Path:
        now = time.monotonic()
        if self._known is not None and now - self._looked < FRESH_S:
            return self._known
        sources = [path for path in etc_paths() if path not in _NEVER and os.path.exists(path)]
        target = self._folder / _fingerprint(sources)
        if not target.exists():
            self._build(sources, target)
        self._known, self._looked = target, now
        return target

    def _build(self, sources: list[str], target: Path) -> None:
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        with open(self._folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.exists():
                return
            partial = target.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(mode=0o755)
            for source in sources:
                _copy(Path(source), partial / os.path.relpath(source, "/etc"))
            for name, content in OWN_FILES.items():
                path = partial / name
                path.unlink(missing_ok=True)
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                if content is None:
                    path.mkdir(mode=0o755)
                    continue
                if isinstance(content, Path):
                    path.symlink_to(content)
                    continue
                path.write_text(content)
                path.chmod(0o644)
            partial.rename(target)


def _fingerprint(sources: list[str]) -> str:
    """Changes when a file is replaced, or a folder gains or loses an entry."""
    digest = hashlib.blake2b(digest_size=12)
    for source in sources:
        for path in (source, *_folders_of(source)):
            found = os.stat(path)
            digest.update(f"{path}\0{found.st_mtime_ns}\0{found.st_ino}\0".encode())
    digest.update(repr(sorted(OWN_FILES.items())).encode())
    return digest.hexdigest()


def _folders_of(source: str) -> list[str]:
    if not os.path.isdir(source):
        return []
    with os.scandir(source) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _copy(source: Path, target: Path) -> None:
    """What we cannot read, no sandbox needs."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(
            source, target, symlinks=True, ignore=_unreadable, ignore_dangling_symlinks=True
        )
    elif os.access(source, os.R_OK):
        shutil.copy2(source, target)


def _unreadable(folder: str, names: list[str]) -> list[str]:
    """Also private files that only root could read: they were never for everybody."""
    hidden = []
    for name in names:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        if not os.path.islink(path) and not mode & 0o004:
            hidden.append(name)
    return hidden
