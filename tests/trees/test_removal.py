"""Removing whatever strangers left behind."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path

import pytest

from carrel.trees.removal import remove_tree
from tests.accounts import PYTHON, Account, run_as

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_nothing_there_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "never")
    remove_tree(tmp_path / "never" / "ever")


def test_files_and_links_and_odd_things(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "folder").mkdir(parents=True)
    (victim / "folder" / "a\nb").write_text("x")
    Path(os.fsdecode(bytes(victim) + b"/\xff" + b"n" * 250)).write_text("x")
    os.mkfifo(victim / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(victim / "socket"))
        remove_tree(victim)
    assert list(tmp_path.iterdir()) == []


def test_a_file_or_a_link_at_the_top(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "file").write_text("x")
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "file")
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(kept) == ["file"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "folder").symlink_to(outside)
    (victim / "up").symlink_to("..")
    remove_tree(victim)
    assert outside.stat().st_mode & 0o777 == 0o500


def test_nested_deeper_than_paths_and_descriptors_go(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    fd = os.open(victim, os.O_RDONLY)
    for depth in range(3000):
        os.mkdir("folder", dir_fd=fd)
        os.mkdir("other", dir_fd=fd)
        below = os.open("folder", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
        if depth % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    remove_tree(victim)
    assert not victim.exists()


def test_a_folder_of_many_files(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    for number in range(5000):
        (victim / f"{number}").touch()
    remove_tree(victim)
    assert not victim.exists()


_READ_ONLY = """
import os, sys
from pathlib import Path
from carrel.trees.removal import remove_tree
victim = Path(sys.argv[1]) / "victim"
deep = victim / "a" / "b" / "c"
deep.mkdir(parents=True)
(deep / "file").write_text("x")
for mode, folder in ((0o500, deep), (0o000, deep.parent), (0o300, victim / "a")):
    folder.chmod(mode)
remove_tree(victim)
print(os.listdir(sys.argv[1]))
"""


def test_an_ordinary_user_removes_folders_without_permissions(
    data: Path, ordinary_user: Account
) -> None:
    os.chown(data, *ordinary_user)
    result = run_as(ordinary_user, [PYTHON, "-c", _READ_ONLY, str(data)])
    assert result.stdout == "[]\n", result.stderr


@ROOT_ONLY
def test_files_of_other_users(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "folder").mkdir(parents=True)
    (victim / "folder" / "file").write_text("x")
    for path in (victim / "folder" / "file", victim / "folder", victim):
        os.chown(path, 12345, 54321)
        path.chmod(0)
    remove_tree(victim)
    assert not victim.exists()


@ROOT_ONLY
@pytest.mark.parametrize("with_openat2", [True, False])
def test_a_mount_is_never_emptied(
    data: Path, monkeypatch: pytest.MonkeyPatch, with_openat2: bool
) -> None:
    if not with_openat2:
        monkeypatch.setattr("carrel.linux.openat2.openat2_works", lambda: False)
    kept = data / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    point = data / "victim" / "folder"
    point.mkdir(parents=True)
    subprocess.run(["mount", "--bind", kept, point], check=True)
    try:
        with pytest.raises(OSError) as caught:
            remove_tree(data / "victim")
        assert caught.value.errno == errno.EBUSY
        with pytest.raises(OSError):
            remove_tree(point)
        assert (kept / "file").read_text() == "x"
    finally:
        subprocess.run(["umount", point], check=True)
    remove_tree(data / "victim")
    assert os.listdir(data) == ["kept"]
