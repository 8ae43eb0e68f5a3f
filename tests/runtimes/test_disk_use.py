"""How much disk a sandbox takes, by counting."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carrel.linux.reserve import free_room
from carrel.runtimes.limits import disk
from carrel.runtimes.limits.disk import (
    MAX_DEPTH,
    TOO_DEEP,
    Use,
    disk_bytes,
    unlinked_use,
)
from tests.accounts import PYTHON, Account, run_as
from tests.volumes import volume

MIB = 1 << 20
WAIT_S = 30.0


def fill(folder: Path) -> None:
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/file").write_bytes(b"x" * 100_000)
    (folder / "a/b/other").write_bytes(b"y" * 5000)
    os.link(folder / "a/file", folder / "a/b/hard")
    (folder / "link").symlink_to("/usr")
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(folder / "fifo")
    (folder / os.fsdecode(b"odd\xff\nname")).write_text("z")


def du(*folders: Path) -> int:
    argv = ["du", "-cxs", "--block-size=1", *map(str, folders)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
    return int(said.splitlines()[-1].split()[0])


def test_disk_use_is_what_du_says(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    os.link(tmp_path / "one/a/file", tmp_path / "two/shared")
    both = (tmp_path / "one", tmp_path / "two")
    assert disk_bytes(both) == du(*both)
    assert disk_bytes([tmp_path / "nowhere", tmp_path / "one/sparse"]) == 0


def test_what_is_mounted_inside_does_not_count(data: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    fill(data)
    before = disk_bytes([data])
    (data / "mounted").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(data / "mounted")], check=True)
    (data / "mounted/big").write_bytes(bytes(MIB))
    assert disk_bytes([data]) < before + MIB // 2


def test_subvolumes_of_btrfs_count(data: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs root and btrfs-progs")
    image, mounted = data / "image", data / "volume"
    with image.open("wb") as file:
        file.truncate(160 * MIB)
    mounted.mkdir()
    for argv in (
        ["mkfs.btrfs", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(mounted)],
        ["btrfs", "-q", "subvolume", "create", str(mounted / "tree")],
    ):
        subprocess.run(argv, check=True, timeout=60, capture_output=True)
    (mounted / "tree/big").write_bytes(os.urandom(4 * MIB))
    os.sync()
    assert disk_bytes([mounted]) >= 4 * MIB


def test_what_btrfs_has_only_in_memory_is_not_free() -> None:
    """It finds the place for what was written half a minute later."""
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs root and btrfs-progs")
    with volume("btrfs") as folder:
        before = free_room(folder)
        with (folder / "big").open("wb") as file:
            file.write(bytes(16 * MIB))
        assert free_room(folder).bytes <= before.bytes - 16 * MIB
        os.sync()
        assert before.bytes - 24 * MIB < free_room(folder).bytes <= before.bytes - 16 * MIB


def test_what_is_too_deep_counts_as_over(tmp_path: Path) -> None:
    """Names of 200 letters: the path is far longer than the kernel takes in one piece."""
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(MAX_DEPTH + 2):
            os.mkdir("d" * 200, dir_fd=above)
            below = os.open("d" * 200, os.O_RDONLY, dir_fd=above)
            os.close(above)
            above = below
    finally:
        os.close(above)
    descriptors = set(os.listdir("/proc/self/fd"))
    assert disk.disk_use([tmp_path]).bytes == TOO_DEEP
    with pytest.raises(OSError, match="too deep"):
        disk_bytes([tmp_path])
    assert set(os.listdir("/proc/self/fd")) == descriptors
    subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 200))], check=True, timeout=30)


def test_a_folder_that_is_moved_ahead_of_the_walk_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever follows the walk could else have it go on for as long as there are names."""
    places = [tmp_path / str(number) for number in range(50)]
    for place in places:
        place.mkdir()
    moved = places[0] / "many"
    moved.mkdir()
    scandir, walked = os.scandir, list[str]()

    def ahead(folder: Any) -> Any:
        nonlocal moved
        walked.append(os.readlink(f"/proc/self/fd/{folder}"))
        left = [place for place in places if str(place) not in walked]
        if walked[-1] == str(moved) and left:
            moved = moved.rename(left[0] / "many")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", ahead)
    disk.disk_use([tmp_path])
    assert sum(path.endswith("many") for path in walked) == 1


def test_what_was_found_in_time_counts(tmp_path: Path) -> None:
    fill(tmp_path)
    whole = disk.disk_use([tmp_path])
    assert disk.disk_use([tmp_path], until=math.inf) == whole
    part = disk.disk_use([tmp_path], until=0.0)
    assert 0 < part.files < whole.files and part.bytes <= whole.bytes
    with pytest.raises(TimeoutError):
        disk_bytes([tmp_path], 0.0)


def test_a_descriptor_of_the_same_file_costs_little(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And what takes too long to be looked at is too much."""
    asked = list[str]()
    readlink = os.readlink

    def noted(path: str) -> str:
        asked.append(path)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", noted)
    with (tmp_path / "gone").open("wb") as file:
        (tmp_path / "gone").unlink()
        copies = [os.dup(file.fileno()) for _ in range(50)]
        assert unlinked_use([os.getpid()], tmp_path).files >= 1
        assert sum(str(tmp_path) in os.fsdecode(readlink(path)) for path in asked) == 1
        monkeypatch.setattr(disk, "LINKS_S", -1.0)
        assert unlinked_use([os.getpid()], tmp_path).bytes == TOO_DEEP
        for copy in copies:
            os.close(copy)


def test_as_many_files_as_blocks_and_not_half_of_the_disk(tmp_path: Path) -> None:
    assert disk.limit_of(4 << 30, tmp_path) == Use(4 << 30, 1 << 20)
    assert disk.limit_of(MIB, tmp_path) == Use(MIB, disk.LEAST_FILES)
    total = os.statvfs(tmp_path).f_files
    if total:
        assert disk.limit_of(1 << 60, tmp_path).files == total // 2


def test_files_without_a_name_count(tmp_path: Path) -> None:
    """Open, in a thread of its own, or only mapped; not those that are in memory."""
    code = """
import mmap, os, sys, threading
def hole(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(1 << 20))
    os.unlink(name)
    return fd
kept = hole("open")
mapped = hole("mapped")
page = mmap.mmap(mapped, 4096)
os.close(mapped)
memory = os.memfd_create("memory")
os.write(memory, bytes(1 << 20))
def alone():
    import ctypes
    ctypes.CDLL(None).unshare(0x400)
    hole("hidden")
    ready.set()
    done.wait()
ready, done = threading.Event(), threading.Event()
threading.Thread(target=alone, daemon=True).start()
ready.wait()
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        found = unlinked_use([process.pid], tmp_path)
        process.stdin.close()
    files = 3 if os.geteuid() == 0 else 2
    assert found == Use(files * MIB, files)


def test_files_without_a_name_count_below_any_path(data: Path) -> None:
    """The kernel tells no path of more than a page. A folder that is gone takes room as well."""
    code = """
import os, sys
for _ in range(20):
    os.mkdir("d" * 230)
    os.chdir("d" * 230)
file = os.open("file", os.O_WRONLY | os.O_CREAT)
os.unlink("file")
os.write(file, bytes(1 << 20))
os.mkdir("gone")
folder = os.open("gone", os.O_RDONLY)
os.rmdir("gone")
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=data,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        found = unlinked_use([process.pid], data)
        process.stdin.close()
    subprocess.run(["rm", "-rf", str(data / ("d" * 230))], check=True, timeout=30)
    assert found.files == 2 and MIB <= found.bytes <= MIB + 65536


def test_files_without_a_name_count_where_shared_memory_is_a_folder(data: Path) -> None:
    """As in a sandbox of Landlock's."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    script = """
mount --bind "$1" /dev/shm && exec 3<> /dev/shm/file && rm /dev/shm/file
head -c 1048576 /dev/zero >&3 && echo ready && read -r end
"""
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert unlinked_use([process.pid], data) == Use(MIB, 1)


def test_a_look_that_is_given_up_ends_at_its_next_step(tmp_path: Path) -> None:
    fill(tmp_path)
    steps = disk.Steps()
    steps.given_up = True
    assert disk.disk_use([tmp_path], steps=steps).files < disk.disk_use([tmp_path]).files
    unlinked_use([os.getpid()], tmp_path, steps)
    assert steps.taken < 10


def test_more_descriptors_than_can_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "MOST_LINKS", 1)
    assert unlinked_use([os.getpid()], tmp_path).bytes == TOO_DEEP


def test_every_name_of_a_file_counts(tmp_path: Path) -> None:
    """Else a space with many of them keeps all others from being looked at."""
    (tmp_path / "first").write_bytes(bytes(MIB))
    for number in range(9):
        os.link(tmp_path / "first", tmp_path / str(number))
    found = disk.disk_use([tmp_path])
    assert found.files == 10 and MIB <= found.bytes < 2 * MIB


@pytest.mark.parametrize("mode", ["0", "0o400", "0o100"])
def test_what_its_owner_may_not_read_counts(ordinary_user: Account, data: Path, mode: str) -> None:
    """Without a change of any mode, and each folder once."""
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    code = f"""
import os
from pathlib import Path
from carrel.runtimes.limits import disk
from carrel.runtimes.limits.disk import disk_use
os.chdir({str(data)!r})
os.makedirs("a/b/c")
Path("a/b/big").write_bytes(bytes(1 << 20))
before = disk_use([Path("a")])
os.chmod("a/b/c", {mode})
os.chmod("a/b", {mode})
after = disk_use([Path("a")])
assert os.stat("a/b").st_mode & 0o777 == {mode}
print(after.bytes >= before.bytes >= 1 << 20, after.files, before.files)
os.chmod("a/b", 0o700)
"""
    done = run_as(ordinary_user, [PYTHON, "-c", code])
    assert done.stdout.split() == ["True", "3", "3"], done


def test_who_reads_for_its_owner_is_killed_in_time(ordinary_user: Account, data: Path) -> None:
    """When it is given up, or its time is over: what it cannot count in a long time is too much,
    and in a short one what was found without it counts. Here it stops itself as it starts."""
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    (data / "sitecustomize.py").write_text(stop)
    code = f"""
import math, os, threading, time
from pathlib import Path
from carrel.runtimes.limits import disk
os.chdir({str(data)!r})
os.environ["PYTHONPATH"] = os.getcwd()
os.makedirs("a/b")
os.chmod("a/b", 0)

def ask(least_s, until, given_up=False):
    disk._READER_S, steps, found = least_s, disk.Steps(), []
    look = lambda: found.append(disk.disk_use([Path("a")], until=until, steps=steps))
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    while given_up and not steps.asks:
        time.sleep(0)
    steps.given_up = given_up
    thread.join(10.0)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print(found[0].bytes == disk.TOO_DEEP)

ask(0.0, math.inf, True)
ask(0.0, time.monotonic() + 0.5)
ask(9.0, time.monotonic() + 0.5)
os.chmod("a/b", 0o700)
"""
    done = run_as(ordinary_user, [PYTHON, "-c", code])
    assert done.stdout.split() == ["True", "True", "False"], done
