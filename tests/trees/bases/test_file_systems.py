"""Bases on btrfs, as subvolumes, and on xfs, with shared blocks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.errors import TreeUnavailable
from carrel.domain.projects import BaseRequest, Progress, Project, ProjectKind
from carrel.domain.trees import Change, ChangeKind, Owner
from carrel.linux import btrfs
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.bases.disk import LayeredLayout, SubvolumeLayout
from carrel.trees.bases.store import BaseStore
from tests.accounts import PYTHON, Account, run_as
from tests.trees.bases.helpers import left_in_staging, listed, picture, request, shown, write
from tests.trees.git.repositories import commit, git, make_repository
from tests.volumes import volume


@pytest.fixture
def on_btrfs() -> Iterator[Path]:
    with volume("btrfs") as folder:
        yield folder


@pytest.fixture
def subvolumes(on_btrfs: Path) -> BaseStore:
    return BaseStore(on_btrfs, layout=SubvolumeLayout(), verify_after_s=0)


def test_every_base_is_a_whole_subvolume(
    subvolumes: BaseStore, on_btrfs: Path, project: Path
) -> None:
    store = subvolumes
    for number in range(40):
        write(project / f"many/{number}", str(number))
    os.link(project / "many/1", project / "many/one")
    (project / "many").chmod(0o555)
    first = store.build(request(project))
    assert shown(first, folder_times=True) == picture(project, folder_times=True)
    seen = [first]
    (project / "many/2").unlink()
    (project / "README").unlink()
    (project / "README").mkdir()
    write(project / "README/inside", "x")
    shutil.rmtree(project / "src")
    write(project / "src", "a file now")
    seen.append(store.build(request(project)))
    for number in range(10):
        write(project / "many/3", f"changed {number}")
        seen.append(store.build(request(project)))
    for base in seen:
        assert len(base.layers) == 1
        assert btrfs.is_subvolume(base.layers[0])
        with pytest.raises(OSError, match="Read-only"):
            write(base.layers[0] / "new")
    assert shown(seen[-1]) == listed(seen[-1]) == picture(project)
    assert os.path.samefile(seen[-1].layers[0] / "many/1", seen[-1].layers[0] / "many/one")
    assert store.build(request(project)).base_id == seen[-1].base_id
    for path in seen[-1].layers[0].rglob("*"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (store_uid(), store_gid())
    # Each stands for itself, so any of them can go.
    for base in seen:
        store.remove(base.base_id)
    assert store.list() == []
    assert left_in_staging(on_btrfs) == []


def test_the_same_content_in_another_layout_is_another_base(
    subvolumes: BaseStore, on_btrfs: Path, project: Path
) -> None:
    whole = subvolumes.build(request(project))
    layered = BaseStore(on_btrfs, layout=LayeredLayout(Owner(store_uid(), store_gid())))
    assert layered.build(request(project)).base_id != whole.base_id
    assert subvolumes.build(request(project)).base_id == whole.base_id


def test_unchanged_files_share_their_blocks_with_the_project(on_btrfs: Path, project: Path) -> None:
    inside = on_btrfs / "project"
    shutil.copytree(project, inside, symlinks=True)
    write(inside / "big", os.urandom(4 << 20))
    store = BaseStore(on_btrfs / "data", layout=SubvolumeLayout())
    base = store.build(request(inside))
    assert shown(base) == picture(inside)
    _assert_shared(inside / "big", base.layers[0] / "big")


def _assert_shared(one: Path, other: Path) -> None:
    subprocess.run(["sync", "--file-system", str(one)], check=True, timeout=30)
    places = [
        subprocess.run(
            ["filefrag", "-v", str(path)], check=True, capture_output=True, text=True, timeout=30
        ).stdout.splitlines()[3]
        for path in (one, other)
    ]
    assert "shared" in places[0]
    assert places[0] == places[1]


def test_reflinks_on_xfs(project: Path) -> None:
    with volume("xfs") as folder:
        inside = folder / "project"
        shutil.copytree(project, inside, symlinks=True)
        write(inside / "big", os.urandom(4 << 20))
        with (inside / "sparse").open("wb") as file:
            # More than there is room for; all of it is read, again and again.
            file.truncate(1 << 29)
            file.seek(1 << 20)
            file.write(b"x")
        store = BaseStore(folder / "data")
        base = store.build(request(inside))
        assert shown(base) == picture(inside)
        _assert_shared(inside / "big", base.layers[0] / "big")
        elsewhere = BaseStore(folder / "data").build(request(project))
        assert shown(elsewhere) == picture(project)
        # More than is free, but it needs no room.
        with (inside / "huge").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 200 << 20)
        second = store.build(request(inside))
        assert (second.layers[0] / "huge").stat().st_size == 200 << 20


def test_a_tree_is_frozen_into_a_subvolume(
    subvolumes: BaseStore, on_btrfs: Path, project: Path
) -> None:
    base = subvolumes.build(request(project))
    tree = on_btrfs / "tree"
    btrfs.snapshot(base.layers[0], tree)
    write(tree / "README", "changed")
    (tree / ".env").unlink()
    root = os.open(tree, os.O_PATH | os.O_DIRECTORY)
    try:
        changes = [Change("README", ChangeKind.MODIFIED), Change(".env", ChangeKind.DELETED)]
        frozen = subvolumes.freeze(base, changes, root)
    finally:
        os.close(root)
    assert shown(frozen) == picture(tree)
    assert btrfs.is_subvolume(frozen.layers[0])
    btrfs.delete_subvolume(tree)


def test_an_interrupted_subvolume_is_carried_on(
    subvolumes: BaseStore, on_btrfs: Path, project: Path
) -> None:
    for stage in ("checking", "publishing"):

        def interrupt(progress: Progress, stage: str = stage) -> None:
            if progress.stage == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            subvolumes.build(request(project), interrupt)
        write(project / "README", f"changed at {stage}")
    base = subvolumes.build(request(project))
    assert shown(base) == picture(project)
    assert left_in_staging(on_btrfs) == []


def test_a_refused_subvolume_leaves_nothing(
    subvolumes: BaseStore, on_btrfs: Path, project: Path
) -> None:
    def refuse(progress: Progress) -> None:
        if progress.stage == "publishing":
            raise TreeUnavailable("no")

    with pytest.raises(TreeUnavailable):
        subvolumes.build(request(project), refuse)
    assert left_in_staging(on_btrfs) == []


def test_archives_and_commits_as_subvolumes(
    subvolumes: BaseStore, project: Path, tmp_path: Path
) -> None:
    (project / "nowhere").unlink()
    archive = tmp_path / "project.tar"
    subprocess.run(["tar", "-C", project, "-cf", archive, "."], check=True, timeout=30)
    base = subvolumes.build(BaseRequest(Project(ProjectKind.ARCHIVE, str(archive))))
    assert shown(base).keys() == picture(project).keys()
    repository = make_repository(tmp_path / "repository")
    asked = BaseRequest(Project(ProjectKind.GIT, str(repository)))
    first = subvolumes.build(asked)
    (repository / "a.txt").unlink()
    write(repository / "new", "x")
    made = commit(repository, "another")
    second = subvolumes.build(asked)
    assert first.base_id != second.base_id
    shutil.copytree(second.layers[0], tmp_path / "copy", symlinks=True)
    subprocess.run(["chown", "-R", "0:0", tmp_path / "copy"], check=True, timeout=30)
    assert git(tmp_path / "copy", "rev-parse", "HEAD").strip() == made
    assert git(tmp_path / "copy", "status", "--porcelain") == ""


_KILLED = """
import os, signal, sys
from pathlib import Path
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.trees.bases.disk import SubvolumeLayout
from carrel.trees.bases.store import BaseStore

class Killed(SubvolumeLayout):
    def seal(self, place):
        super().seal(place)
        os.kill(os.getpid(), signal.SIGKILL)

store = BaseStore(Path(sys.argv[1]), layout=Killed())
store.build(BaseRequest(Project(ProjectKind.FOLDER, sys.argv[2])))
"""


def test_a_build_killed_after_its_subvolume_was_sealed(
    subvolumes: BaseStore, on_btrfs: Path, project: Path
) -> None:
    source = Path(__file__).resolve().parents[3] / "src"
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(on_btrfs), str(project)],
        env={**os.environ, "PYTHONPATH": str(source)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    write(project / "README", "changed")
    assert shown(subvolumes.build(request(project))) == picture(project)


_AS_USER = """
import sys
from pathlib import Path
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.trees.bases.disk import SubvolumeLayout
from carrel.trees.bases.store import BaseStore
store = BaseStore(Path(sys.argv[1]), layout=SubvolumeLayout(), verify_after_s=0)
asked = BaseRequest(Project(ProjectKind.FOLDER, sys.argv[2]))
if sys.argv[3] == "build":
    print(len(store.build(asked).layers))
else:
    for base in store.list():
        store.remove(base.base_id)
    print(len(store.list()))
"""


def test_an_ordinary_user_has_subvolumes_too(
    on_btrfs: Path, project: Path, ordinary_user: Account
) -> None:
    data = on_btrfs / "data"
    data.mkdir()
    os.chown(data, *ordinary_user)
    (project / ".env").chmod(0o644)
    (project / "src/app").chmod(0o555)

    def run(what: str) -> str:
        done = run_as(ordinary_user, [PYTHON, "-c", _AS_USER, str(data), str(project), what])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run("build") == "1"
    write(project / "src/app/util.py", "changed")
    (project / "README").unlink()
    assert run("build") == "1"
    bases = BaseStore(data, layout=SubvolumeLayout()).list()
    assert len(bases) == 2
    assert shown(bases[1]) == picture(project)
    assert run("remove") == "0"
    assert left_in_staging(data) == []
