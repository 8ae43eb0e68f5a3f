"""Project quotas on real file systems: xfs and ext4 in files, mounted with quotas.

The same tests run in another kernel too, where the machine's own has none: see
`test_other_kernel.py`.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.domain.trees import Owner
from carrel.linux import libc, quota
from carrel.runtimes.limits.disk import ProjectQuotas, quota_in_force

pytestmark = pytest.mark.timeout(300)

MIB = 1 << 20
PROJECT = 77
FORMATS = {
    "xfs": (["mkfs.xfs", "-q", "-f"], "pquota"),
    "ext4": (["mkfs.ext4", "-q", "-F", "-O", "project,quota"], "prjquota"),
}
_SKIP = "this kernel has no project quotas on {}"
_without: set[str] = set()
"""Formats that could not be mounted, so that it is tried once."""


@pytest.fixture(params=sorted(FORMATS))
def volume(request: pytest.FixtureRequest, data: Path) -> Path:
    """A mounted file system with project quotas; the data folder's finalizer unmounts it."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if request.param in _without:
        pytest.skip(_SKIP.format(request.param))
    make, option = FORMATS[request.param]
    image, folder = data / "image", data / "volume"
    with image.open("wb") as file:
        file.truncate(320 * MIB)
    folder.mkdir()
    subprocess.run([*make, str(image)], check=True, timeout=60, capture_output=True)
    mounted = subprocess.run(
        ["mount", "-o", f"loop,{option}", str(image), str(folder)],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        _without.add(request.param)
        pytest.skip(_SKIP.format(request.param))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def folder(volume: Path) -> Path:
    made = volume / "space"
    (made / "sub").mkdir(parents=True)
    (made / "before").write_bytes(b"x" * 100_000)
    (made / "link").symlink_to("/etc/passwd")
    os.mkfifo(made / "fifo")
    os.link(made / "before", made / "sub/hard")
    for path in (made, made / "sub"):
        os.chown(path, 12345, 12345)
    return made


def write(path: Path, size: int) -> int:
    """As an unprivileged user, who is the one that quotas are for; answers the errno."""
    code = f"""
import os, sys
os.setgroups([]); os.setresgid(*[12345] * 3); os.setresuid(*[12345] * 3)
try:
    fd = os.open({str(path)!r}, os.O_WRONLY | os.O_CREAT, 0o600)
    for _ in range({size} // 65536):
        os.write(fd, bytes(65536))
    os.fsync(fd)
except OSError as error:
    sys.exit(error.errno)
"""
    # Bare: to look for packages is what takes seconds in the other kernel.
    argv = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(argv, timeout=60, check=False).returncode


def test_a_write_beyond_the_limit_is_refused(folder: Path) -> None:
    assert quota.project_of(folder) == 0
    quota.assign(folder, PROJECT)
    quota.set_limit(folder, PROJECT, MIB)
    assert write(folder / "small", MIB // 2) == 0
    assert write(folder / "sub/big", 4 * MIB) in (errno.EDQUOT, errno.ENOSPC)
    state = quota.get(folder, PROJECT)
    assert state.limit_bytes == MIB
    assert MIB // 2 <= state.used_bytes <= MIB
    quota.set_limit(folder, PROJECT, 0)
    assert write(folder / "sub/big", 4 * MIB) == 0


def test_a_file_beyond_the_limit_is_refused(folder: Path) -> None:
    quota.assign(folder, PROJECT)
    os.sync()
    there = quota.get(folder, PROJECT).used_files
    quota.set_limit(folder, PROJECT, 0, there + 1)
    assert write(folder / "one", 0) == 0
    assert write(folder / "two", 0) in (errno.EDQUOT, errno.ENOSPC)
    assert quota.get(folder, PROJECT).used_files == there + 1


def test_what_was_there_counts_and_what_comes_inherits(folder: Path) -> None:
    quota.assign(folder, PROJECT)
    (folder / "sub/new").mkdir()
    for name in ("before", "sub", "sub/new"):
        assert quota.project_of(folder / name) == PROJECT
    os.sync()
    assert quota.get(folder, PROJECT).used_bytes >= 100_000
    quota.assign(folder, 0)
    assert quota.project_of(folder / "before") == 0
    os.sync()
    assert quota.get(folder, PROJECT).used_bytes == 0


def test_mounts_and_links_are_not_followed(folder: Path, volume: Path) -> None:
    (volume / "elsewhere").mkdir()
    (folder / "out").symlink_to(volume / "elsewhere")
    (folder / "mounted").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder / "mounted")], check=True)
    (folder / "mounted/deep").mkdir()
    quota.assign(folder, PROJECT)
    assert quota.project_of(volume / "elsewhere") == 0


def test_by_the_device_where_the_kernel_has_no_other_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = libc.syscall

    def older(name: str, *arguments: object) -> int:
        if name == "quotactl_fd":
            raise OSError(errno.ENOSYS, "not in this kernel")
        return real(name, *arguments)

    monkeypatch.setattr(libc, "syscall", older)
    quota.set_limit(folder, PROJECT, 2 * MIB)
    assert quota.get(folder, PROJECT).limit_bytes == 2 * MIB


def test_folders_get_projects_of_their_own(volume: Path) -> None:
    quotas = ProjectQuotas()
    first, second = volume / "first", volume / "second"
    for one in (first, second):
        one.mkdir()
        os.chown(one, 12345, 12345)
        assert not quota_in_force(one)
    projects = {quotas.set(first, MIB), quotas.set(second, 8 * MIB)}
    assert len(projects) == 2
    assert quotas.set(first, MIB) in projects
    assert quota_in_force(first)
    assert write(first / "data", 4 * MIB) in (errno.EDQUOT, errno.ENOSPC)
    assert write(second / "data", 4 * MIB) == 0
    used = quotas.usage(second)
    assert used is not None and 4 * MIB <= used.bytes < 5 * MIB
    assert used.files == 2
    quotas.clear(first)
    quotas.clear(first)
    quotas.clear(volume / "nowhere")
    assert not quota_in_force(first)
    assert write(first / "data", 4 * MIB) == 0


def test_two_folders_that_ask_for_the_same_project(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Digest:
        def digest(self) -> bytes:
            return bytes(32)

    monkeypatch.setattr("hashlib.sha256", lambda _: Digest())
    quotas = ProjectQuotas()
    (volume / "first").mkdir()
    (volume / "second").mkdir()
    assert quotas.set(volume / "second", MIB) == quotas.set(volume / "first", MIB) - 1


def test_it_is_found_by_doing(volume: Path) -> None:
    known = ProjectQuotas().available(volume, Owner(12345, 12345))
    assert known.available, known
    assert not [path for path in volume.iterdir() if path.name.startswith(".")]


def test_where_there_are_none(tmp_path: Path) -> None:
    """The machine's own disk most often has none; whichever, nothing is left."""
    quotas = ProjectQuotas()
    known = quotas.available(tmp_path, Owner(12345, 12345))
    if not known.available:
        # Others on that file system read it too.
        assert known.reason and tmp_path.name not in known.reason
        assert not quota_in_force(tmp_path)
        assert quotas.usage(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
