"""Mounts of overlays and id maps, as drivers and the launcher use them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel.linux import mounts
from carrel.linux.ids import make_id_map
from tests.folders import mounts_below

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts on the host")

Mount = Callable[[mounts.Overlay, str], None]


@contextlib.contextmanager
def overlay(
    folder: Path, lowers: list[Path], mount: Mount, options: tuple[tuple[str, str], ...] = ()
) -> Iterator[Path]:
    folders = [folder / name for name in ("upper", "work", "target")]
    for one in folders:
        one.mkdir()
    descriptors = mounts.open_layers([*lowers, *folders[:2]])
    try:
        *below, upper, work = descriptors
        made = mounts.Overlay(tuple(below), upper, work, options)
        mount(made, str(folders[2]))
    finally:
        mounts.close_all(descriptors)
    try:
        yield folders[2]
    finally:
        mounts.detach_all(str(folders[2]))


BOTH = pytest.mark.parametrize(
    "mount", [mounts.mount_overlay, mounts.mount_overlay_at_once], ids=["by-layer", "at-once"]
)


@BOTH
def test_many_layers_with_long_and_odd_paths(data: Path, mount: Mount) -> None:
    deep = data.joinpath(*["n" * 200] * 10, "a,b:c\\d\ne=f")
    deep.mkdir(parents=True)
    lowers = []
    for number in range(64):
        layer = deep / f"{number}"
        layer.mkdir()
        (layer / f"file-{number}").touch()
        (layer / "file").write_text(f"{number}")
        lowers.append(layer)
    with overlay(deep, lowers, mount) as target:
        assert len(os.listdir(target)) == 65
        assert (target / "file").read_text() == "0"
        (target / "file").write_text("written")
        assert (deep / "upper" / "file").read_text() == "written"
        assert mounts.is_mounted(target)
    assert not mounts.is_mounted(target)
    assert mounts_below(data) == []


@BOTH
def test_programs_and_devices_of_the_tree_have_no_power(data: Path, mount: Mount) -> None:
    (data / "lower").mkdir()
    with overlay(data, [data / "lower"], mount) as target:
        flags = os.statvfs(target).f_flag
        assert flags & os.ST_NOSUID and flags & os.ST_NODEV


@BOTH
def test_a_refusal_says_why(data: Path, mount: Mount) -> None:
    (data / "lower").mkdir()
    with (
        pytest.raises(OSError) as caught,
        overlay(data, [data / "lower"], mount, (("redirect_dir", "perhaps"),)),
    ):
        pass
    assert "Invalid argument" in str(caught.value)
    if mount is mounts.mount_overlay:
        assert "redirect_dir" in str(caught.value)
    assert mounts_below(data) == []


def test_id_maps_show_another_owner(data: Path) -> None:
    (data / "file").touch()
    os.chown(data / "file", 4321, 1234)
    before = len(os.listdir("/proc/self/fd"))
    clone = mounts.clone_mount(str(data))
    try:
        namespace = make_id_map((4321, 1234), (77, 88))
        try:
            mounts.map_ids(clone, namespace)
        finally:
            os.close(namespace)
        status = os.stat("file", dir_fd=clone)
        assert (status.st_uid, status.st_gid) == (77, 88)
    finally:
        os.close(clone)
    assert (data / "file").stat().st_uid == 4321
    assert len(os.listdir("/proc/self/fd")) == before


def test_making_id_maps_leaves_no_process() -> None:
    before = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    for number in range(200):
        os.close(make_id_map((1, 2), (number + 3, number + 4)))
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == before
    with pytest.raises(OSError):
        make_id_map((1, 1), (-5, -5))
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == before


def test_everything_on_a_folder_is_detached(data: Path) -> None:
    point = data / "point"
    point.mkdir()
    for _ in range(3):
        clone = mounts.clone_mount("/proc")
        mounts.attach(clone, str(point))
        os.close(clone)
    busy = os.open(point / "self", os.O_PATH)
    try:
        assert mounts.detach_all(str(point))
        assert not mounts.detach_all(str(point))
    finally:
        os.close(busy)
    assert not mounts.detach_all(str(data / "nothing"))
    assert not mounts.is_mounted(data / "nothing")


def test_what_is_mounted_in_a_copy_is_mounted_nowhere_else(data: Path) -> None:
    """Where mounts are shared, as systemd has them."""
    volume = data / "volume"
    for name in ("place/inner", "copy"):
        (volume / name).mkdir(parents=True)
    for words in (["--bind", str(volume)], ["--make-shared"]):
        subprocess.run(["mount", *words, str(volume)], check=True, timeout=60)
    copy = mounts.clone_mount(str(volume / "place"))
    try:
        mounts.attach(copy, str(volume / "copy"))
    finally:
        os.close(copy)
    inner = str(volume / "copy/inner")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inner], check=True, timeout=60)
    assert mounts.is_mounted(inner) and not mounts.is_mounted(volume / "place/inner")
