"""Root file systems with PostgreSQL or Redis, made of the programs that this machine has installed:
no registry is asked, and nothing of them is started here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.busybox import APPLETS
from tests.ranges import GIVES, give

POSTGRES = 999
"""The number of that user, as in usual images of PostgreSQL."""
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_PROGRAMS = Path("/usr/lib/postgresql")


def redis_image(folder: Path) -> Path:
    """With `redis-server` and `redis-cli`; made below `folder`, once."""
    # Debian's server is that program under another name.
    server = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    client = shutil.which("redis-cli")
    if server is None or client is None:
        pytest.skip("Redis is not installed: sudo apt-get install redis-tools")
    root = folder / "redis"
    if root.exists():
        return root
    draft = _root(folder / "redis.new", "redis:x:999:999::/data:/bin/sh\n")
    _copy(draft, [(server, "/usr/bin/redis-server"), (client, "/usr/bin/redis-cli")])
    _own(draft / "data", POSTGRES)
    draft.rename(root)
    return root


def postgres_image(folder: Path) -> Path:
    """With the server, `initdb`, `psql` and `pg_isready` in /usr/local/bin, and its data in
    /var/lib/postgresql/data; made below `folder`, once."""
    found = sorted(_PROGRAMS.glob("*/bin/postgres"))
    if not found:
        pytest.skip("PostgreSQL is not installed: sudo apt-get install postgresql")
    root = folder / "postgres"
    if root.exists():
        return root
    place = found[-1].parents[1]
    home = "/var/lib/postgresql"
    draft = _root(folder / "postgres.new", f"postgres:x:{POSTGRES}:{POSTGRES}::{home}:/bin/sh\n")
    shared = Path("/usr/share/postgresql") / place.name
    for source in (place / "lib", shared):
        shutil.copytree(
            source, draft / str(source)[1:], ignore=shutil.ignore_patterns("bitcode", "*.bc", "man")
        )
    names = ("postgres", "initdb", "psql", "pg_isready", "pg_ctl")
    _copy(draft, [(str(place / "bin" / name), str(place / "bin" / name)) for name in names])
    _copy(draft, [(str(one), str(one)) for one in (place / "lib").glob("*.so") if one.is_file()])
    local = draft / "usr/local/bin"
    local.mkdir(parents=True)
    for name in names:
        (local / name).symlink_to(place / "bin" / name)
    # The inner one first: then it may be another's.
    _own(draft / "var/lib/postgresql/data", POSTGRES)
    _own(draft / "var/lib/postgresql", POSTGRES)
    draft.rename(root)
    return root


def dpkg_image(folder: Path) -> Path:
    """With what installs a Debian package; made below `folder`, once."""
    programs = [shutil.which(name) for name in ("dpkg", "dpkg-deb", "dpkg-split", "tar")]
    root = folder / "dpkg"
    if root.exists() or None in programs:
        return root if root.exists() else pytest.skip("dpkg is not installed")
    draft = _root(folder / "dpkg.new", "")
    _copy(draft, [(one, f"/usr/bin/{Path(one).name}") for one in programs if one is not None])
    for name in ("ldconfig", "start-stop-daemon"):
        (draft / "usr/bin" / name).symlink_to("../../bin/true")
    for name in ("diff", "rm", "sh"):
        (draft / "usr/bin" / name).symlink_to("../../bin/busybox")
    for name in ("info", "updates"):
        (draft / "var/lib/dpkg" / name).mkdir(parents=True)
    (draft / "var/lib/dpkg/status").touch()
    draft.rename(root)
    return root


def _root(draft: Path, user: str) -> Path:
    """With busybox, whose programs the servers' own scripts need."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("busybox is not installed: sudo apt-get install busybox-static")
    shutil.rmtree(draft, ignore_errors=True)
    for name in ("bin", "etc", "root", "usr/bin", "var"):
        (draft / name).mkdir(parents=True)
    (draft / "tmp").mkdir()
    os.chmod(draft / "tmp", 0o1777)
    shutil.copy(program, draft / "bin/busybox")
    for name in APPLETS:
        (draft / "bin" / name).symlink_to("busybox")
    (draft / "etc/passwd").write_text(f"root:x:0:0:root:/root:/bin/sh\n{user}")
    group = ":".join(user.split(":")[:3])
    (draft / "etc/group").write_text(f"root:x:0:\n{group}:\n")
    return draft


def _own(folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if GIVES:
        give(folder, number)


def _copy(root: Path, programs: Iterable[tuple[str, str]]) -> None:
    """With the libraries that they load."""
    for source, target in programs:
        place = root / target[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(os.path.realpath(source), place)
            os.chmod(place, 0o755)
        said = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        for library in _LIBRARY.findall(said):
            copied = root / library[1:]
            if not copied.exists():
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(os.path.realpath(library), copied)
