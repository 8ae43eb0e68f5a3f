"""The first base of a folder, and the ones that follow."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

import pytest

from carrel.domain.projects import BaseRequest, Progress, Project, ProjectKind
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.bases.store import BaseStore
from tests.trees.bases.helpers import (
    left_in_staging,
    listed,
    mounted,
    picture,
    request,
    shown,
    write,
)


def test_a_base_has_what_the_person_has(store: BaseStore, project: Path, data: Path) -> None:
    base = store.build(request(project))
    assert shown(base, folder_times=True) == picture(project, folder_times=True)
    assert listed(base) == picture(project)
    assert re.fullmatch(r"ba_[a-z2-7]{26}", base.base_id)
    assert base.entries == len(picture(project))
    assert base.project_owner.uid == os.getuid()
    assert left_in_staging(data) == []


def test_the_root_folder_keeps_mode_and_time(store: BaseStore, project: Path) -> None:
    project.chmod(0o750)
    os.utime(project, ns=(5, 1_234_567_890_123_456_789))
    layer = store.build(request(project)).layers[0]
    assert stat.S_IMODE(layer.stat().st_mode) == 0o750
    assert layer.stat().st_mtime_ns == 1_234_567_890_123_456_789


def test_everything_belongs_to_the_store(store: BaseStore, project: Path) -> None:
    os.chown(project / "README", 1234, 1234)
    (project / "src").chmod(0o555)
    layer = store.build(request(project)).layers[0]
    for path in [layer, *layer.rglob("*")]:
        assert (path.lstat().st_uid, path.lstat().st_gid) == (store_uid(), store_gid())


def test_set_user_id_survives_the_change_of_owner(store: BaseStore, project: Path) -> None:
    (project / "README").chmod(0o4755)
    layer = store.build(request(project)).layers[0]
    assert stat.S_IMODE((layer / "README").stat().st_mode) == 0o4755


def test_nothing_changed_gives_the_same_base_without_writing(
    store: BaseStore, project: Path, data: Path
) -> None:
    first = store.build(request(project))
    store.build(request(project))
    before = _writes(data)
    assert store.build(request(project)) == first
    assert _writes(data) == before


def _writes(data: Path) -> dict[str, int]:
    # Locks come and go in the staging area.
    found = {str(path): path.lstat().st_ctime_ns for path in data.rglob("*")}
    return {path: ctime for path, ctime in found.items() if not path.endswith(".staging")}


def test_the_second_base_is_a_thin_layer(store: BaseStore, project: Path) -> None:
    first = store.build(request(project))
    write(project / "src/app/util.py", "changed\n")
    write(project / "src/new/file", "new")
    (project / "README").unlink()
    second = store.build(request(project))
    assert second.layers == (second.folder / "layer", *first.layers)
    assert shown(second, folder_times=True) == picture(project, folder_times=True)
    assert listed(second) == picture(project)
    thin = picture(second.layers[0])
    assert set(thin) == {
        b"README",
        b"src",
        b"src/app",
        b"src/app/util.py",
        b"src/new",
        b"src/new/file",
    }
    assert stat.S_ISCHR(thin[b"README"].kind)


def test_a_change_back_gives_the_first_base_again(store: BaseStore, project: Path) -> None:
    first = store.build(request(project))
    readme = project / "README"
    times = readme.stat()
    readme.rename(project / "moved")
    second = store.build(request(project))
    assert second.base_id != first.base_id
    (project / "moved").rename(readme)
    assert readme.stat().st_mtime_ns == times.st_mtime_ns
    assert store.build(request(project)).base_id == first.base_id


def test_the_same_content_elsewhere_is_the_same_base(
    store: BaseStore, project: Path, tmp_path: Path
) -> None:
    first = store.build(request(project))
    os.system(f"cp -a {project} {tmp_path}/copy")
    second = store.build(request(tmp_path / "copy"))
    assert second.base_id == first.base_id
    assert second.project.location == str(tmp_path / "copy")
    assert len(store.list()) == 1


@pytest.mark.parametrize("kind", ["content", "mode", "time", "link", "name", "folder mode"])
def test_each_kind_of_change_makes_another_base(store: BaseStore, project: Path, kind: str) -> None:
    first = store.build(request(project))
    readme = project / "README"
    times = readme.stat()
    match kind:
        case "content":
            # The same size and time: only the ctime shows it.
            readme.write_text("READ ME\n")
            os.utime(readme, ns=(times.st_atime_ns, times.st_mtime_ns))
        case "mode":
            readme.chmod(0o640)
        case "time":
            os.utime(readme, ns=(1, 1))
        case "link":
            (project / "link").unlink()
            (project / "link").symlink_to("README")
        case "name":
            readme.rename(project / "READYOU")
        case "folder mode":
            (project / "empty").chmod(0o700)
    second = store.build(request(project))
    assert second.base_id != first.base_id
    assert shown(second) == picture(project)
    assert shown(first) != shown(second)


def test_times_of_folders_alone_make_no_new_base(store: BaseStore, project: Path) -> None:
    first = store.build(request(project))
    (project / "src/tmp").touch()
    (project / "src/tmp").unlink()
    assert store.build(request(project)).base_id == first.base_id
    # They come along with the next real change.
    write(project / "README", "changed")
    second = store.build(request(project))
    assert shown(second, folder_times=True) == picture(project, folder_times=True)


def test_changes_of_kind_in_every_direction(store: BaseStore, project: Path) -> None:
    def check() -> None:
        base = store.build(request(project))
        assert shown(base) == picture(project)
        assert listed(base) == picture(project)

    write(project / "thing/inside", "x")
    check()
    (project / "thing/inside").unlink()
    (project / "thing").rmdir()
    write(project / "thing", "now a file")
    check()
    (project / "thing").unlink()
    (project / "thing").symlink_to("src")
    check()
    (project / "thing").unlink()
    (project / "thing").mkdir()
    check()
    write(project / "thing/inside", "again")
    check()
    (project / "src").rename(project / "source")
    check()
    (project / "source").rename(project / "src")
    check()


def test_a_folder_replaced_by_a_symlink_to_its_copy(store: BaseStore, project: Path) -> None:
    store.build(request(project))
    (project / "src").rename(project / "elsewhere")
    (project / "src").symlink_to("elsewhere")
    base = store.build(request(project))
    assert shown(base) == picture(project)


def test_deep_stacks_are_squashed_and_show_the_same(store: BaseStore, project: Path) -> None:
    for number in range(60):
        write(project / f"files/{number}", str(number))
    write(project / "files/a", "one")
    os.link(project / "files/a", project / "files/b")
    depths = []
    for number in range(20):
        write(project / f"files/{number % 7}", f"changed {number}")
        (project / f"files/{30 + number}").unlink()
        base = store.build(request(project))
        depths.append(len(base.layers))
        assert shown(base) == picture(project)
        assert listed(base) == picture(project)
    assert max(depths) == 8
    assert 2 in depths[8:]


def test_a_big_change_makes_a_flat_base(store: BaseStore, project: Path) -> None:
    store.build(request(project))
    for number in range(50):
        write(project / f"generated/{number}", str(number))
    base = store.build(request(project))
    assert len(base.layers) == 1
    assert shown(base) == picture(project)


def test_sockets_pipes_and_devices_are_skipped_and_reported(
    store: BaseStore, project: Path
) -> None:
    os.mkfifo(project / "src/pipe")
    os.mknod(project / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(project / "socket"))
        for _ in range(2):
            base = store.build(request(project))
            reasons = {skip.path: skip.why for skip in base.skipped}
            assert reasons == {
                "src/pipe": "is a named pipe",
                "device": "is a character device",
                "socket": "is a socket",
            }
    assert "src/pipe" not in {os.fsdecode(path) for path in shown(base)}
    assert store.get(base.base_id).skipped == base.skipped
    (project / "src/pipe").unlink()
    assert "src/pipe" not in {skip.path for skip in store.build(request(project)).skipped}


def test_a_file_that_becomes_a_pipe_goes(store: BaseStore, project: Path) -> None:
    store.build(request(project))
    (project / "README").unlink()
    os.mkfifo(project / "README")
    base = store.build(request(project))
    assert b"README" not in shown(base)
    assert [skip.path for skip in base.skipped] == ["README"]


def test_the_data_folder_in_the_project_is_skipped(project: Path) -> None:
    store = BaseStore(project / "var/carrel")
    base = store.build(request(project))
    assert [skip.path for skip in base.skipped] == ["var/carrel"]
    assert b"var" in shown(base)
    assert b"var/carrel" not in shown(base)


def test_excluded_entries_are_left_out(store: BaseStore, project: Path) -> None:
    write(project / "logs/a.log")
    write(project / "logs/keep.log")
    base = store.build(request(project, exclude=("node_modules/", "*.log", "!keep.log", "/src")))
    found = {os.fsdecode(path) for path in shown(base)}
    assert "node_modules" not in found
    assert "src" not in found
    assert "logs/a.log" not in found
    assert {"logs", "logs/keep.log", "README", ".env"} <= found
    write(project / "node_modules/more", "x")
    write(project / "logs/b.log", "x")
    write(project / "new", "x")
    second = store.build(request(project, exclude=("node_modules/", "*.log", "!keep.log", "/src")))
    assert {os.fsdecode(path) for path in shown(second)} == found | {"new"}


def test_progress_is_told_and_not_too_often(store: BaseStore, project: Path) -> None:
    for number in range(300):
        write(project / f"many/{number}", "x")
    seen: list[Progress] = []
    store.build(request(project), seen.append)
    stages = [progress.stage for progress in seen]
    assert list(dict.fromkeys(stages)) == ["scanning", "copying", "checking", "publishing"]
    assert len(seen) < 30


def test_a_mounted_file_system_is_content_and_proc_is_not(store: BaseStore, project: Path) -> None:
    for name, kind in (("disk", "tmpfs"), ("kernel", "proc")):
        (project / name).mkdir()
        assert os.system(f"mount -t {kind} none {project / name}") == 0
    write(project / "disk/file", "on another disk")
    os.link(project / "disk/file", project / "disk/linked")
    base = store.build(request(project))
    found = shown(base)
    assert b"disk/file" in found
    assert b"kernel" not in found
    assert [(skip.path, skip.why) for skip in base.skipped] == [
        ("kernel", "is a mounted proc file system")
    ]
    assert store.build(request(project)).base_id == base.base_id


def test_an_empty_project(store: BaseStore) -> None:
    base = store.build(BaseRequest(Project(ProjectKind.EMPTY)))
    assert shown(base) == {}
    assert base.entries == 0
    assert store.build(BaseRequest(Project(ProjectKind.EMPTY))).base_id == base.base_id


def test_a_symlinked_project_is_the_folder_behind_it(
    store: BaseStore, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(project)
    base = store.build(request(tmp_path / "alias"))
    assert shown(base) == picture(project)


def test_layers_of_a_running_tree_see_no_change(store: BaseStore, project: Path) -> None:
    first = store.build(request(project))
    before = picture(first.layers[0])
    with mounted(first):
        write(project / "README", "changed")
        store.build(request(project))
    assert picture(first.layers[0]) == before
