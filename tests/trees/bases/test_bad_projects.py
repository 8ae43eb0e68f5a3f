"""Every wrong project ends in one clear coded error, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from carrel.domain.errors import (
    CarrelError,
    InsufficientDisk,
    ProjectChanged,
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectTooLarge,
)
from carrel.domain.projects import BaseRequest, Progress, Project, ProjectKind
from carrel.linux.statx import ROW, Answers, StatBatch
from carrel.trees.bases.store import BaseStore
from carrel.trees.sources import folder as folder_source
from tests.accounts import PYTHON, Account, run_as
from tests.folders import remove_folder
from tests.trees.bases.helpers import left_in_staging, picture, request, shown, write


def refused(store: BaseStore, asked: BaseRequest, kind: type[CarrelError]) -> CarrelError:
    with pytest.raises(kind) as caught:
        store.build(asked)
    assert type(caught.value) is kind
    assert caught.value.hint
    return caught.value


def nothing_left(data: Path) -> bool:
    bases = data / "bases"
    kept = [path for path in bases.iterdir() if not path.name.startswith(".")]
    return not kept and left_in_staging(data) == [] and not any((bases / ".heads").iterdir())


def test_a_project_that_does_not_exist(store: BaseStore, data: Path, tmp_path: Path) -> None:
    error = refused(store, request(tmp_path / "nowhere"), ProjectNotFound)
    assert "nowhere" in error.message
    refused(store, request(tmp_path / "no/where"), ProjectNotFound)
    write(tmp_path / "file")
    refused(store, request(tmp_path / "file/below"), ProjectNotFound)
    assert nothing_left(data)


def test_a_project_that_is_a_file(store: BaseStore, data: Path, tmp_path: Path) -> None:
    error = refused(store, request(write(tmp_path / "main.py")), ProjectNotAFolder)
    assert "archive" in error.hint
    assert nothing_left(data)


@pytest.mark.parametrize("location", ["", "\0", "with\0zero"])
def test_a_project_that_is_no_path(store: BaseStore, data: Path, location: str) -> None:
    refused(store, BaseRequest(Project(ProjectKind.FOLDER, location)), ProjectInvalid)
    assert nothing_left(data)


def test_symlinks_in_a_circle(store: BaseStore, data: Path, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    refused(store, request(tmp_path / "a"), ProjectInvalid)
    assert nothing_left(data)


def test_the_data_folder_itself(store: BaseStore, data: Path) -> None:
    refused(store, request(data), ProjectInvalid)


def test_a_pattern_that_is_none(store: BaseStore, data: Path, project: Path) -> None:
    refused(store, request(project, exclude=("!",)), ProjectInvalid)
    assert nothing_left(data)


def test_too_many_files_and_too_many_bytes(store: BaseStore, data: Path, project: Path) -> None:
    write(project / "big", b"x" * 10_000)
    entries = len(picture(project))
    refused(store, request(project, max_files=entries - 1), ProjectTooLarge)
    error = refused(store, request(project, max_bytes=9_999), ProjectTooLarge)
    assert error.details["limit"] == 9_999
    assert nothing_left(data)
    store.build(request(project, max_files=entries, max_bytes=20_000))
    store.build(request(project, max_bytes=9_999, exclude=("big",)))


_BUILD = """
import sys
from pathlib import Path
from carrel.domain.errors import CarrelError
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.trees.bases.store import BaseStore
store = BaseStore(Path(sys.argv[1]))
try:
    base = store.build(BaseRequest(Project(ProjectKind.FOLDER, sys.argv[2]), tuple(sys.argv[3:])))
except CarrelError as error:
    print(error.code, error.details.get("count"), error)
else:
    print("built", base.entries)
"""


def build_as(account: Account, data: Path, project: Path, *exclude: str) -> str:
    done = run_as(account, [PYTHON, "-c", _BUILD, str(data), str(project), *exclude])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def users_data(ordinary_user: Account) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    os.chown(folder, *ordinary_user)
    try:
        yield folder
    finally:
        remove_folder(folder)


def test_a_project_that_is_unreadable_in_places(
    users_data: Path, project: Path, ordinary_user: Account
) -> None:
    for number in range(7):
        write(project / f"secret/{number}", "x").chmod(0o600)
    write(project / "closed/file").parent.chmod(0o700)
    answer = build_as(ordinary_user, users_data, project)
    # .env is the fixture's; folders are found before files are opened.
    assert answer.startswith("project_unreadable 1 ")
    assert "'closed'" in answer
    answer = build_as(ordinary_user, users_data, project, "closed")
    assert answer.startswith("project_unreadable 8 ")
    assert "and 3 more" in answer
    assert "Exclude them" in answer
    assert nothing_left(users_data)
    answer = build_as(ordinary_user, users_data, project, "closed", "secret", ".env")
    assert answer.startswith("built")


def test_a_folder_that_may_be_listed_but_not_entered(
    users_data: Path, project: Path, ordinary_user: Account
) -> None:
    write(project / "closed/file").parent.chmod(0o744)
    answer = build_as(ordinary_user, users_data, project, ".env")
    assert answer.startswith("project_unreadable 1 ")
    assert "'closed/file'" in answer


def test_a_project_that_may_not_be_entered(
    users_data: Path, project: Path, ordinary_user: Account
) -> None:
    project.chmod(0o700)
    answer = build_as(ordinary_user, users_data, project)
    assert answer.startswith("project_unreadable")
    answer = build_as(ordinary_user, users_data, project / "src")
    assert answer.startswith("project_unreadable")
    assert nothing_left(users_data)


def test_an_ordinary_user_keeps_thin_layers_too(
    users_data: Path, project: Path, ordinary_user: Account
) -> None:
    (project / ".env").chmod(0o644)
    for number in range(40):
        write(project / f"many/{number}")
    assert build_as(ordinary_user, users_data, project).startswith("built")
    (project / "README").unlink()
    write(project / "src/app/util.py", "changed").chmod(0o444)
    (project / "src/app").chmod(0o555)
    assert build_as(ordinary_user, users_data, project).startswith("built")
    write(project / "src/app/util.py", "changed again")
    assert build_as(ordinary_user, users_data, project).startswith("built")
    # Read by root, which sees through all permissions.
    newest = BaseStore(users_data).list()[-1]
    assert len(newest.layers) == 3
    assert shown(newest) == picture(project)


class Restless:
    """Changes a file whenever a stage of the build begins."""

    def __init__(self, path: Path, stages: tuple[str, ...], times: int = 100) -> None:
        self.path = path
        self.stages = stages
        self.times = times
        self.count = 0
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        begins = progress.stage != self._last and progress.stage in self.stages
        if begins and self.count < self.times:
            self.count += 1
            write(self.path, f"change {self.count}")
        self._last = progress.stage


def test_a_change_while_it_is_read_is_read_again(
    store: BaseStore, data: Path, project: Path
) -> None:
    changed: list[Path] = []

    def once(progress: Progress) -> None:
        if progress.stage == "checking" and not changed:
            changed.append(write(project / "README", "changed meanwhile"))
            write(project / "src/appeared", "new")
            (project / "src/app/util.py").unlink()

    base = store.build(request(project), once)
    assert shown(base) == picture(project)
    assert base.unstable == ()
    assert left_in_staging(data) == []


def test_a_repository_that_never_stops_changing_is_refused(
    store: BaseStore, data: Path, project: Path
) -> None:
    subprocess.run(["git", "init", "-q", project / "lib"], check=True)
    restless = Restless(project / "lib/.git/packed-refs", ("copying", "checking"))
    with pytest.raises(ProjectChanged) as caught:
        store.build(request(project), restless)
    assert "'lib/.git/packed-refs'" in caught.value.message
    assert caught.value.details["paths"] == ["lib/.git/packed-refs"]
    assert nothing_left(data)
    base = store.build(request(project, allow_changing=True), restless)
    assert base.unstable == ("lib/.git/packed-refs",)


def test_locks_of_git_are_left_out(store: BaseStore, project: Path) -> None:
    """Git tidies up: files are as they were until what is written beside them has their name."""
    subprocess.run(["git", "init", "-q", project / "lib"], check=True)
    restless = Restless(project / "lib/.git/HEAD.lock", ("copying", "checking"))
    base = store.build(request(project), restless)
    assert base.unstable == ()
    assert (base.layers[0] / "lib/.git/HEAD").exists()
    assert not (base.layers[0] / "lib/.git/HEAD.lock").exists()


def test_a_build_waits_for_a_writer_that_ends(data: Path, project: Path) -> None:
    """Objects become packs, folders go: a `git gc` that needs more rounds than are made at once."""
    store = BaseStore(data, verify_after_s=0)
    subprocess.run(["git", "init", "-q", project / "lib"], check=True)
    restless = Restless(project / "lib/.git/packed-refs", ("copying", "checking"), times=8)
    base = store.build(request(project), restless)
    assert restless.count == 8
    assert base.unstable == ()
    assert shown(base) == picture(project)


def test_files_that_keep_changing_are_taken_and_reported(
    store: BaseStore, data: Path, project: Path
) -> None:
    restless = Restless(project / "log", ("copying", "checking"))
    base = store.build(request(project), restless)
    assert base.unstable == ("log",)
    assert store.get(base.base_id).unstable == ("log",)
    found, expected = shown(base), picture(project)
    assert found.pop(b"log").size > 0
    expected.pop(b"log")
    assert found == expected
    assert left_in_staging(data) == []
    # Next time it is looked at again, though nothing tells that it changed.
    assert shown(store.build(request(project))) == picture(project)


def test_a_file_that_changes_between_the_look_and_the_copy(store: BaseStore, project: Path) -> None:
    restless = Restless(project / "README", ("copying",), times=2)
    base = store.build(request(project), restless)
    assert restless.count == 2
    assert shown(base) == picture(project)


class Glimpse(StatBatch):
    """Sees a folder as it is for the moment of one look: not there, or a file."""

    folder: Path
    """Set for as long as it is to be seen so."""
    as_file: bool

    def run(self, dir_fd: int, paths: Sequence[bytes], device: int) -> Answers:
        name = os.fsencode(self.folder.name)
        if name not in paths or not self.folder.is_dir():
            return super().run(dir_fd, paths, device)
        aside = self.folder.with_name("aside")
        self.folder.rename(aside)
        if self.as_file:
            write(self.folder)
        try:
            seen = super().run(dir_fd, [name], device)
        finally:
            if self.as_file:
                self.folder.unlink()
            aside.rename(self.folder)
        answers, at = super().run(dir_fd, paths, device), paths.index(name)
        answers.rows[at * ROW : (at + 1) * ROW] = seen.rows
        answers.failed.extend([at] if seen.failed else [])
        return answers


@pytest.mark.parametrize("as_file", [False, True])
def test_a_folder_that_is_away_in_the_middle_of_a_look(
    store: BaseStore, data: Path, project: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool
) -> None:
    """What is below it was seen, and it was not: it is looked at again."""
    subprocess.run(["git", "init", "-q", project / "lib"], check=True)
    write(project / "lib/src/code.py")
    store.build(request(project))
    monkeypatch.setattr(folder_source, "StatBatch", Glimpse)
    monkeypatch.setattr(Glimpse, "as_file", as_file, raising=False)
    monkeypatch.setattr(Glimpse, "folder", project / "lib", raising=False)
    write(project / "lib/src/code.py", "changed")

    def once(progress: Progress) -> None:
        if progress.stage == "checking":
            monkeypatch.setattr(Glimpse, "folder", project / "elsewhere")

    assert shown(store.build(request(project), once)) == picture(project)


def test_a_project_that_goes_away(store: BaseStore, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write(folder / "file")

    def vanish(progress: Progress) -> None:
        if progress.stage == "checking" and folder.exists():
            folder.rename(tmp_path / "gone")

    with pytest.raises(ProjectNotFound):
        store.build(request(folder), vanish)
    assert nothing_left(data)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    try:
        subprocess.run(command, check=True, timeout=20)
        yield folder
    finally:
        remove_folder(folder)


def test_a_project_that_is_bigger_than_the_disk(small_disk: Path, project: Path) -> None:
    store = BaseStore(small_disk)
    write(project / "big", os.urandom(5 << 20))
    error = refused(store, request(project), InsufficientDisk)
    needed, free = error.details["needed_bytes"], error.details["free_bytes"]
    assert isinstance(needed, int) and isinstance(free, int)
    assert needed > 5 << 20 > free
    assert nothing_left(small_disk)


def test_a_sparse_file_bigger_than_the_disk_fits(small_disk: Path, project: Path) -> None:
    store = BaseStore(small_disk)
    with (project / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert (store.build(request(project)).layers[0] / "sparse").stat().st_size == 1 << 30


def test_a_disk_that_becomes_full_on_the_way(small_disk: Path, project: Path) -> None:
    store = BaseStore(small_disk)
    for number in range(20):
        write(project / f"many/{number}", os.urandom(100_000))
    filled: list[int] = []

    def fill_up(progress: Progress) -> None:
        if progress.stage == "copying" and not filled:
            with pytest.raises(OSError), (small_disk / "filler").open("wb") as file:
                filled.append(1)
                while True:
                    file.write(bytes(65536))

    # Only the check of the room comes before the first word about copying.
    error = None
    try:
        store.build(request(project), fill_up)
    except InsufficientDisk as caught:
        error = caught
    assert error is not None
    assert filled
    assert nothing_left(small_disk)
    (small_disk / "filler").unlink()
    assert shown(store.build(request(project))) == picture(project)


def test_a_file_system_without_inodes(project: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=12", str(small_disk)], check=True, timeout=20)
    store = BaseStore(small_disk)
    for number in range(30):
        write(project / f"many/{number}")
    refused(store, request(project), InsufficientDisk)
    assert nothing_left(small_disk)


@pytest.mark.parametrize(("levels", "refused"), [(500, False), (6000, True)])
def test_folders_that_are_nested_without_end_are_refused(
    store: BaseStore, project: Path, levels: int, refused: bool
) -> None:
    here = os.open(project, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    if refused:
        with pytest.raises(ProjectTooLarge, match="1000 levels"):
            store.build(request(project))
    else:
        assert store.build(request(project)).entries > levels
    assert store.build(request(project, exclude=("d/",))).entries < levels
