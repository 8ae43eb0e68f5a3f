"""Random work on a tree and on a plain folder side by side, for every driver.

Both are done by the same user, and must come to the same: the same attempts succeed, the
same is to be seen afterwards, the tree's changes are what a comparison of the plain folder
before and after finds, and the base is as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from carrel.domain.trees import Base, Change, ChangeKind, Owner
from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.conformance.tree_rig import (
    DRIVERS,
    VOLUMES,
    Rig,
    in_child,
    open_launcher,
    open_rig,
    place_for,
    volume_variable,
)
from tests.conformance.tree_views import Seen, fingerprint, look
from tests.sampling import examples

FOLDERS = ("d", "d/e", "e", "e/new", "x")
NAMES = ("a", "b", "link")
PATHS = (*FOLDERS, *(f"{folder}/{name}" for folder in FOLDERS for name in NAMES), *NAMES)
CONTENTS = ("", "a", "bb", "aaaa", "dadada", "0123456789" * 1000)
FILE_MODES = (0o644, 0o600, 0o755, 0o640)
FOLDER_MODES = (0o755, 0o700, 0o750)

PROFILE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Step(NamedTuple):
    """One thing that a program does; what it needs of the rest."""

    act: str
    path: str
    other: str
    text: str
    number: int


paths = st.sampled_from(PATHS)
steps = st.builds(
    Step,
    st.sampled_from(
        (
            "write",
            "append",
            "truncate",
            "same",
            "touch",
            "mkdir",
            "rmdir",
            "unlink",
            "rename",
            "rename",
            "rename",
            "symlink",
            "link",
            "chmod",
            "remove",
            "replace",
            "copy",
        )
    ),
    paths,
    paths,
    st.sampled_from(CONTENTS),
    st.integers(0, 5),
)


EACH_KIND = [
    Step("rename", "a", "x", "", 0),
    Step("rename", "d/e", "e/new", "", 0),
    Step("write", "d/a", "", "bb", 0),
    Step("append", "b", "", "a", 0),
    Step("same", "d/b", "", "", 0),
    Step("touch", "d/link", "", "", 0),
    Step("chmod", "d/b", "", "", 1),
    Step("truncate", "b", "", "", 1),
    Step("link", "e/a", "d/a", "", 0),
    Step("copy", "e/b", "d/b", "", 0),
    Step("symlink", "e/link", "b", "", 0),
    Step("mkdir", "d/e", "", "", 0),
    Step("unlink", "link", "", "", 0),
    Step("replace", "d/e", "", "dadada", 0),
    Step("remove", "e/new/b", "", "", 0),
    Step("rmdir", "d/e", "", "", 0),
]
"""What a few random examples may lack."""


def do(step: Step) -> bool:
    """Whether it could be done."""
    try:
        ACTS[step.act](step)
    except OSError:
        return False
    return True


def _write(step: Step) -> None:
    Path(step.path).write_text(step.text)


def _append(step: Step) -> None:
    with open(step.path, "r+") as file:
        file.seek(0, os.SEEK_END)
        file.write(step.text)


def _same(step: Step) -> None:
    Path(step.path).write_bytes(Path(step.path).read_bytes())


def _rename(step: Step) -> None:
    """As `mv` does where a folder cannot be renamed."""
    try:
        os.rename(step.path, step.other)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(step.other)
        shutil.copytree(step.path, step.other, symlinks=True)
        shutil.rmtree(step.path)


def _chmod(step: Step) -> None:
    is_folder = stat.S_ISDIR(os.stat(step.path).st_mode)
    modes = FOLDER_MODES if is_folder else FILE_MODES
    os.chmod(step.path, modes[step.number % len(modes)])


def _remove(step: Step) -> None:
    if os.path.isdir(step.path) and not os.path.islink(step.path):
        shutil.rmtree(step.path)
    else:
        os.unlink(step.path)


def _replace(step: Step) -> None:
    """A folder by a file, or the other way round."""
    was_folder = os.path.isdir(step.path)
    _remove(step)
    if was_folder:
        Path(step.path).write_text(step.text)
    else:
        os.mkdir(step.path)


ACTS: dict[str, Callable[[Step], object]] = {
    "write": _write,
    "append": _append,
    "truncate": lambda step: os.truncate(step.path, step.number * 3),
    "same": _same,
    "touch": lambda step: os.utime(step.path, follow_symlinks=False),
    "mkdir": lambda step: os.mkdir(step.path),
    "rmdir": lambda step: os.rmdir(step.path),
    "unlink": lambda step: os.unlink(step.path),
    "rename": _rename,
    "symlink": lambda step: os.symlink(step.other, step.path),
    "link": lambda step: os.link(step.other, step.path, follow_symlinks=False),
    "chmod": _chmod,
    "remove": _remove,
    "replace": _replace,
    "copy": lambda step: shutil.copy2(step.other, step.path),
}


def do_all(work: list[Step]) -> tuple[list[bool], dict[str, Seen]]:
    return [do(step) for step in work], look()


@pytest.fixture(scope="module", params=DRIVERS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    name = request.param
    if os.geteuid() != 0 and name in VOLUMES and volume_variable(name) not in os.environ:
        pytest.skip("only root makes file systems")
    with (
        place_for(name) as place,
        open_launcher() as launcher,
        open_rig(name, place, launcher) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("properties") / "project"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "e").mkdir()
    (folder / "a").write_text("aaaa")
    (folder / "b").write_text("bb")
    (folder / "b").chmod(0o755)
    (folder / "d" / "a").write_text("dadada")
    (folder / "d" / "b").write_text("bb")
    (folder / "d" / "e" / "a").write_text("0123456789" * 1000)
    (folder / "d" / "e" / "b").write_text("")
    (folder / "d" / "link").symlink_to("../a")
    (folder / "link").symlink_to("d")
    return folder


@pytest.fixture(scope="module")
def base(rig: Rig, project: Path) -> Base:
    return rig.base_of(project)


@contextlib.contextmanager
def plain_copy(project: Path, owner: Owner) -> Iterator[Path]:
    folder = project.parent / "plain"
    try:
        subprocess.run(["cp", "-a", project, folder], check=True)
        if os.geteuid() == 0:
            subprocess.run(["chown", "-hR", f"{owner.uid}:{owner.gid}", folder], check=True)
        yield folder
    finally:
        shutil.rmtree(folder)


def do_plainly(folder: Path, owner: Owner, work: list[Step]) -> tuple[list[bool], dict[str, Seen]]:
    def prepare() -> None:
        os.chdir(folder)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(owner.gid, owner.gid, owner.gid)
            os.setresuid(owner.uid, owner.uid, owner.uid)
        os.umask(0o022)

    return in_child(prepare, lambda: do_all(work))


class Plain(NamedTuple):
    before: dict[str, Seen]
    done: list[bool]
    after: dict[str, Seen]


_known: dict[tuple[Step, ...], Plain] = {}


def plainly(project: Path, owner: Owner, work: list[Step]) -> Plain:
    """What it comes to on a plain folder, which no driver has a part in: once for all."""
    key = tuple(work)
    if key not in _known:
        with plain_copy(project, owner) as folder:
            _known[key] = Plain(look(folder), *do_plainly(folder, owner, work))
    return _known[key]


def plain_changes(before: dict[str, Seen], after: dict[str, Seen]) -> set[tuple[str, ChangeKind]]:
    """Without renames."""
    found = set()
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            found.add((path, ChangeKind.ADDED if old is None else ChangeKind.DELETED))
        elif old.kind != new.kind:
            found.add((path, ChangeKind.TYPE))
        elif old.content != new.content:
            found.add((path, ChangeKind.MODIFIED))
        elif old.mode != new.mode:
            found.add((path, ChangeKind.MODE))
    return found


def parted(changes: list[Change]) -> list[tuple[str, ChangeKind]]:
    """With every rename as what it was made of."""
    found = []
    for change in changes:
        if change.kind is ChangeKind.RENAMED:
            assert change.old_path is not None
            found.append((change.old_path, ChangeKind.DELETED))
            found.append((change.path, ChangeKind.ADDED))
        else:
            found.append((change.path, change.kind))
    return found


def check_renames(changes: list[Change], before: dict[str, Seen], after: dict[str, Seen]) -> None:
    """Each is one of the same bytes, and none was overlooked."""
    for change in changes:
        if change.kind is ChangeKind.RENAMED:
            assert change.old_path is not None
            old, new = before[change.old_path], after[change.path]
            assert old.content == new.content and old.size == new.size > 0
            assert (change.old_mode, change.new_mode) == (old.mode, new.mode)
    raw = plain_changes(before, after)
    gone = Counter(
        before[path].content
        for path, kind in raw
        if kind is ChangeKind.DELETED and before[path].size
    )
    come = Counter(
        after[path].content for path, kind in raw if kind is ChangeKind.ADDED and after[path].size
    )
    pairs = sum((gone & come).values())
    assert sum(change.kind is ChangeKind.RENAMED for change in changes) == pairs


def check_facts(changes: list[Change], before: dict[str, Seen], after: dict[str, Seen]) -> None:
    for change in changes:
        old = before.get(change.old_path or change.path)
        new = after.get(change.path)
        assert change.old_mode == (old.mode if old else None)
        assert change.new_mode == (new.mode if new else None)
        shown = new or old
        assert shown is not None and change.size == shown.size


def views_equal(rig: Rig, one: dict[str, Seen], other: dict[str, Seen]) -> bool:
    if rig.driver.capabilities.renames_base_folders:
        return one == other
    # A folder that had to be copied has lost which of its files were linked.
    return {path: seen[:4] for path, seen in one.items()} == {
        path: seen[:4] for path, seen in other.items()
    }


@settings(PROFILE, max_examples=examples(6, exhaustive=60))
@given(work=st.lists(steps, min_size=1, max_size=25))
@example(work=EACH_KIND)
def test_a_tree_is_as_a_plain_folder(rig: Rig, project: Path, base: Base, work: list[Step]) -> None:
    untouched = [fingerprint(layer) for layer in base.layers]
    tree = rig.tree(base)
    try:
        plain = plainly(project, tree.owner, work)
        before = plain.before
        done, after = rig.act(tree, lambda: do_all(work))
        assert done == plain.done
        assert views_equal(rig, after, plain.after)
        changes = rig.changes(tree)
        assert sorted(parted(changes)) == sorted(plain_changes(before, after))
        assert [change.path for change in changes] == sorted(change.path for change in changes)
        check_renames(changes, before, after)
        check_facts(changes, before, after)
        assert [fingerprint(layer) for layer in base.layers] == untouched
    finally:
        rig.driver.drop(tree)
        rig.trees.remove(tree)
    assert os.listdir(tree.folder) == []
    tree.folder.rmdir()


@settings(PROFILE, max_examples=examples(2, exhaustive=15))
@given(
    first=st.lists(steps, min_size=1, max_size=15), second=st.lists(steps, min_size=1, max_size=15)
)
def test_a_tree_of_a_frozen_tree_goes_on_from_it(
    rig: Rig, base: Base, first: list[Step], second: list[Step]
) -> None:
    tree = rig.tree(base)
    _, before = rig.act(tree, lambda: do_all(first))
    frozen = rig.driver.freeze(tree)
    rig.driver.drop(tree)
    rig.trees.remove(tree)
    fork = rig.tree(frozen)
    assert views_equal(rig, rig.act(fork, look), before)
    assert rig.changes(fork) == []
    _, after = rig.act(fork, lambda: do_all(second))
    assert sorted(parted(rig.changes(fork))) == sorted(plain_changes(before, after))
    rig.driver.drop(fork)
    rig.trees.remove(fork)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    """Whose overlays cannot rename folders of the base."""
    os.chown(data, *ordinary_user)
    env = {"TMPDIR": str(data), "HOME": str(data)}
    done = run_as(ordinary_user, [*PYTEST, "-k", "overlay", __file__], env=env, cwd=SOURCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout, done.stdout
