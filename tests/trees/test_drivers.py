"""What is special in one driver or another, and the choice between them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.availability import Availability
from carrel.domain.errors import InsufficientDisk, TreeUnavailable
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.domain.trees import Owner, TreeCapabilities, TreeDriver, TreeRequest
from carrel.launcher.client import Launcher
from carrel.linux.ids import store_gid, store_uid, uid_range
from carrel.trees.bases.store import BaseStore
from carrel.trees.drivers import overlay
from carrel.trees.drivers.btrfs import BtrfsDriver
from carrel.trees.drivers.common import choose_driver
from carrel.trees.drivers.copies import CopyDriver, ReflinkDriver
from carrel.trees.drivers.overlay import BackgroundCloser, HostOverlay, OverlayDriver
from tests.folders import mounts_below
from tests.volumes import volume

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts on the host")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "file").write_text("one\n")
    return folder


def all_drivers(data: Path) -> list[TreeDriver]:
    bases, launcher = BaseStore(data), Launcher(data)
    return [
        OverlayDriver(data, bases, launcher, let_go=os.close),
        BtrfsDriver(data, bases),
        ReflinkDriver(data, bases),
        CopyDriver(data, bases),
    ]


def request(data: Path, project: Path, owner: Owner) -> TreeRequest:
    store = BaseStore(data)
    base = store.build(BaseRequest(Project(ProjectKind.FOLDER, str(project))))
    (data / "space").mkdir()
    return TreeRequest("sp_test", base, data / "space", owner)


def some_owner() -> Owner:
    return Owner(uid_range()[7], uid_range()[7])


# Choosing


@ROOT_ONLY
def test_the_fast_one_is_chosen_and_every_other_has_a_reason(data: Path) -> None:
    chosen, judgements = choose_driver(all_drivers(data))
    assert chosen.name == "overlay"
    assert [one.name for one in judgements] == ["overlay", "btrfs", "reflink", "copy"]
    by_name = {one.name: one for one in judgements}
    assert "not on btrfs" in by_name["btrfs"].why
    assert by_name["copy"].availability.available and "overlay" in by_name["copy"].why


@pytest.fixture
def on_overlayfs(data: Path) -> Iterator[Path]:
    """As in many containers: overlays do not stack there."""
    for name in ("lower", "upper", "work", "mounted"):
        (data / name).mkdir()
    options = f"lowerdir={data}/lower,upperdir={data}/upper,workdir={data}/work"
    words = ["mount", "-t", "overlay", "overlay", "-o", options, str(data / "mounted")]
    subprocess.run(words, check=True)
    yield data / "mounted"


@ROOT_ONLY
def test_where_overlays_do_not_work_the_reason_is_told(on_overlayfs: Path) -> None:
    chosen, judgements = choose_driver(all_drivers(on_overlayfs))
    assert chosen.name == "copy"
    overlay = judgements[0].availability
    assert not overlay.available and overlay.remedy
    assert "overlay" in overlay.reason and str(on_overlayfs) in overlay.reason
    assert mounts_below(on_overlayfs) == [str(on_overlayfs)]
    assert sorted(os.listdir(on_overlayfs)) == ["bases"]


@ROOT_ONLY
@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_overlays_come_first_on_other_file_systems_too(kind: str) -> None:
    with volume(kind) as data:
        chosen, judgements = choose_driver(all_drivers(data))
        works = {one.name for one in judgements if one.availability.available}
    assert chosen.name == "overlay"
    assert works == {"overlay", "reflink", "copy"} | ({"btrfs"} if kind == "btrfs" else set())


class Claimed:
    """A driver that only says what it would be like."""

    def __init__(self, name: str, *, instant: bool, visible: bool, works: bool = True) -> None:
        self.name = name
        self._works = works
        self.capabilities = TreeCapabilities(True, instant, visible, True)

    def probe(self) -> Availability:
        return Availability(self._works, "It was tried.")


def test_what_the_host_sees_is_better_and_what_is_instant_best() -> None:
    hidden = Claimed("hidden", instant=True, visible=False)
    seen = Claimed("seen", instant=True, visible=True)
    slow = Claimed("slow", instant=False, visible=True)
    broken = Claimed("broken", instant=True, visible=True, works=False)
    candidates: list[TreeDriver] = [broken, hidden, seen, slow]  # type: ignore[list-item]
    chosen, judgements = choose_driver(candidates)
    assert chosen.name == "seen"
    assert len({one.why for one in judgements}) == 4
    assert choose_driver(candidates[:2])[0].name == "hidden"
    with pytest.raises(TreeUnavailable, match="It was tried"):
        choose_driver(candidates[:1])


# Overlays on the host


@ROOT_ONLY
@pytest.mark.parametrize("attaches", [False, True])
def test_layers_may_have_to_be_attached_for_a_moment(
    data: Path, project: Path, attaches: bool
) -> None:
    wanted = request(data, project, some_owner())
    for name in ("project", "tree/upper", "tree/work"):
        (wanted.folder / name).mkdir(parents=True)
    HostOverlay(attaches=attaches).mount(
        wanted.folder, wanted.base.layers, wanted.base.store_owner, wanted.owner
    )
    assert (wanted.folder / "project" / "file").stat().st_uid == wanted.owner.uid
    assert sorted(os.listdir(wanted.folder / "tree")) == ["upper", "work"]
    assert mounts_below(data) == [str(wanted.folder / "project")]


@ROOT_ONLY
def test_without_id_maps_there_is_only_the_stores_own_user(
    data: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on kernels that are too old for them."""

    def refuse(*_: object) -> None:
        raise overlay.no_id_maps(OSError(22, "Invalid argument"))

    monkeypatch.setattr(overlay, "show_as", refuse)
    driver = all_drivers(data)[0]
    assert driver.probe().available
    assert any(str(store_uid()) in note for note in driver.capabilities.notes)
    wanted = request(data, project, some_owner())
    with pytest.raises(TreeUnavailable, match="id-mapped"):
        driver.create(wanted)
    assert os.listdir(wanted.folder) == []
    store = Owner(store_uid(), store_gid())
    tree = driver.create(TreeRequest("sp_test", wanted.base, wanted.folder, store))
    assert (tree.path / "file").read_text() == "one\n"
    driver.drop(tree)


@ROOT_ONLY
def test_making_and_dropping_trees_leaves_nothing(data: Path, project: Path) -> None:
    launcher = Launcher(data)
    closer = BackgroundCloser()
    driver = OverlayDriver(data, BaseStore(data), launcher, let_go=closer.close)
    wanted = request(data, project, some_owner())
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        tree = driver.create(wanted)
        (tree.path / "file").write_text("two\n")
        driver.drop(tree)
    assert closer.wait(30)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert mounts_below(data) == []
    assert os.listdir(wanted.folder) == []


# Closing in the background


def test_descriptors_are_closed_in_the_background_and_in_order() -> None:
    closer = BackgroundCloser()
    pipes = [os.pipe() for _ in range(100)]
    for _, write in pipes:
        closer.close(write)
    assert closer.wait(30)
    assert not any(thread.name == "carrel-close" for thread in threading.enumerate())
    for read, _ in pipes:
        assert os.read(read, 1) == b""
        os.close(read)
    assert closer.wait(0)


# Copies


@ROOT_ONLY
def test_a_copy_has_the_bases_git_objects_and_cannot_change_them(data: Path, project: Path) -> None:
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", project, *words], check=True)
    wanted = request(data, project, some_owner())
    driver = CopyDriver(data, BaseStore(data))
    tree = driver.create(wanted)
    found = [path for path in (tree.path / ".git" / "objects").rglob("*") if path.is_file()]
    assert found
    for path in found:
        status = path.stat()
        assert status.st_nlink == 2
        assert status.st_uid == store_uid() != tree.owner.uid
        assert not status.st_mode & 0o022
    assert (tree.path / "file").stat().st_nlink == 1
    used = driver.usage(tree)
    for path in found:
        path.unlink()
    assert driver.usage(tree) == used
    driver.drop(tree)
    layer = wanted.base.layers[0]
    assert all((layer / path.relative_to(tree.path)).exists() for path in found)


@ROOT_ONLY
def test_a_copy_that_does_not_fit_leaves_nothing(project: Path) -> None:
    (project / "big").write_bytes(os.urandom(150 << 20))
    with (project / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with volume("xfs") as data:
        driver = CopyDriver(data, BaseStore(data))
        wanted = request(data, project, some_owner())
        tree = driver.create(wanted)
        assert (tree.path / "sparse").stat().st_blocks == 0
        (data / "filler").write_bytes(os.urandom(20 << 20))
        other = data / "other"
        other.mkdir()
        with pytest.raises(InsufficientDisk):
            driver.create(TreeRequest("sp_other", wanted.base, other, wanted.owner))
        assert os.listdir(other) == []


@ROOT_ONLY
def test_objects_that_others_may_not_read_are_copied(data: Path, project: Path) -> None:
    subprocess.run(["git", "-C", project, "init", "-q"], check=True)
    secret = project / ".git" / "objects" / "pack" / "pack-secret.pack"
    secret.write_text("secret")
    secret.chmod(0o400)
    wanted = request(data, project, some_owner())
    tree = CopyDriver(data, BaseStore(data)).create(wanted)
    status = (tree.path / secret.relative_to(project)).stat()
    assert (status.st_uid, status.st_nlink) == (tree.owner.uid, 1)
