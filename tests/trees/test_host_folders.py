"""Which folders a space may work in directly: each refusal has its own code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.collaborators import WorkFolders
from carrel.domain.errors import CarrelError
from carrel.linux import mounts
from carrel.trees import host_folders
from carrel.trees.host_folders import HostFolders
from carrel.trees.mount_table import inner_path
from tests.conformance.tree_rig import Rig
from tests.folders import remove_folder

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
MOUNT_S = 20.0
NO_PATHS = ("", "relative", "./x", "/a\0b", "/\ud800", "//")
SYSTEM = """/ /etc /etc/ssl /usr /usr/lib /usr/local /usr/local/bin /proc /proc/self /sys/kernel
/dev/shm /var /var/lib /home /tmp /run /run/lock /run/user /boot /home/somebody"""


@pytest.fixture
def folders(data: Path) -> WorkFolders:
    return HostFolders(data)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    remove_folder(folder)


def code(folders: WorkFolders, path: str | Path, *taken: str | Path) -> str:
    with pytest.raises(CarrelError) as refused:
        folders.check(str(path), [str(one) for one in taken])
    assert refused.value.hint
    return refused.value.code


def test_a_folder_of_its_own(folders: WorkFolders, place: Path) -> None:
    assert folders.check(str(place)) == str(place)
    assert folders.check(f"{place}/../place/.") == str(place)
    assert list(place.iterdir()) == []


def test_a_link_to_one(folders: WorkFolders, place: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(place)
    assert folders.check(str(tmp_path / "link")) == str(place)


@pytest.mark.parametrize("path", [*NO_PATHS, *SYSTEM.split()])
def test_what_can_be_none(folders: WorkFolders, path: str) -> None:
    assert code(folders, path) in ("project_invalid", "project_not_found")


@pytest.mark.parametrize("path", ["/", "/etc", "/usr/lib", "/tmp", "/proc/self"])
def test_links_to_those(folders: WorkFolders, tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to(path)
    assert code(folders, tmp_path / "link") == "project_invalid"


def test_not_there_or_no_folder(folders: WorkFolders, place: Path) -> None:
    (place / "file").touch()
    os.mkfifo(place / "fifo")
    (place / "broken").symlink_to(place / "nowhere")
    (place / "loop").symlink_to(place / "loop")
    assert code(folders, place / "missing") == "project_not_found"
    assert code(folders, place / "broken") == "project_not_found"
    assert code(folders, place / "file") == "project_not_a_folder"
    assert code(folders, place / "file" / "below") == "project_not_a_folder"
    assert code(folders, place / "fifo") == "project_not_a_folder"
    assert code(folders, place / "loop") in ("project_unreadable", "project_not_a_folder")
    assert code(folders, place / ("x" * 300)) == "project_invalid"


def test_a_home(folders: WorkFolders, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    assert code(folders, place) == "project_invalid"
    assert code(folders, place.parent) == "project_invalid"
    (place / "project").mkdir()
    assert folders.check(str(place / "project")) == str(place / "project")


def test_carrels_own(folders: WorkFolders, data: Path, tmp_path: Path) -> None:
    tree = data / "spaces" / "sp_aaaaaaaaaaaa" / "project"
    tree.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tree)
    for path in (data, tree, tmp_path / "link"):
        assert code(folders, path) == "project_invalid"
    assert code(HostFolders(tmp_path / "place" / "data"), tmp_path) == "project_invalid"


def test_permissions(folders: WorkFolders, place: Path) -> None:
    place.chmod(0o500)
    assert code(folders, place) == "project_read_only"
    place.chmod(0o300)
    assert code(folders, place) == "project_unreadable"
    place.chmod(0o000)
    assert code(folders, place) == "project_unreadable"
    place.chmod(0o700)
    assert folders.check(str(place))


def test_where_others_work(folders: WorkFolders, place: Path) -> None:
    (place / "inner").mkdir()
    (place / "inner-too").mkdir()
    assert code(folders, place, place) == "project_in_use"
    assert code(folders, place, place / "inner") == "project_in_use"
    assert code(folders, place / "inner", place) == "project_in_use"
    assert folders.check(str(place / "inner"), [str(place / "inner-too")])


@ROOT_ONLY
def test_a_mount_point_is_no_reason(folders: WorkFolders, place: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "x", str(place)], check=True, timeout=MOUNT_S)
    assert folders.check(str(place)) == str(place)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, timeout=MOUNT_S)
    assert code(folders, place) == "project_read_only"


@ROOT_ONLY
def test_carrels_own_under_another_name(folders: WorkFolders, data: Path, place: Path) -> None:
    inner = data / "spaces" / "sp_aaaaaaaaaaaa" / "project"
    inner.mkdir(parents=True)
    for source in (data, inner, data.parent):
        subprocess.run(["mount", "--bind", source, place], check=True, timeout=MOUNT_S)
        assert code(folders, place) == "project_invalid"
        mounts.detach_all(str(place))
    assert folders.check(str(place))


@ROOT_ONLY
def test_a_spaces_tree_under_another_name(any_rig: Rig, place: Path) -> None:
    tree = any_rig.tree(any_rig.base_of(None))
    subprocess.run(["mount", "--bind", tree.path, place], check=True, timeout=MOUNT_S)
    assert code(HostFolders(any_rig.data), place) == "project_invalid"


def test_places_where_people_do_have_projects() -> None:
    for path in ("/usr/src/app", "/usr/local/src/x", "/run/user/1000/x", "/srv/www", "/opt/x"):
        host_folders._refuse_protected(path)


def test_where_a_path_is_in_its_file_system(tmp_path: Path) -> None:
    found = inner_path(str(tmp_path))
    assert found.device and found.path.startswith("/")
    assert inner_path("/").path.startswith("/")
