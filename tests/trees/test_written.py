"""What was written in an overlay, read the quick way: it must come to what the comparison finds."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carrel.domain.trees import Base, Tree
from carrel.launcher.client import Launcher
from carrel.trees.drivers import common, written
from carrel.trees.drivers.common import Layered
from carrel.trees.drivers.overlay import OverlayDriver
from carrel.trees.drivers.written import Written, as_written
from tests.conformance.tree_rig import Rig, open_rig
from tests.conformance.tree_views import do_much, make_project
from tests.sampling import examples
from tests.trees.test_properties import EACH_KIND, PROFILE, Step, do_all, steps
from tests.trees.test_states import BIG, fork, keep, kept_of


@pytest.fixture
def rig(tree_launcher: Launcher) -> Iterator[Rig]:
    with open_rig("overlay", Path(tempfile.gettempdir()), tree_launcher) as opened:
        yield opened


@pytest.fixture
def base(rig: Rig, tmp_path: Path) -> Base:
    return rig.base_of(make_project(tmp_path / "project"))


def quick(rig: Rig, tree: Tree) -> list[Written]:
    assert isinstance(rig.driver, Layered)
    return rig.driver.written(tree)


def slow(rig: Rig, tree: Tree) -> list[Written]:
    assert isinstance(rig.driver, OverlayDriver)
    with rig.driver.open_written(tree) as files:
        changes = rig.driver.compare(tree, links=True, renames=None)
        return list(as_written(changes, files.status))


def check(rig: Rig, tree: Tree) -> list[str]:
    """The paths. To look into a folder that keeps its owner out gives it a new ctime."""

    def plain(found: list[Written]) -> list[tuple[object, ...]]:
        return [
            (path, one and (one.st_mode, one.st_size, one.st_mtime_ns, one.st_ino))
            for path, one in found
        ]

    found = quick(rig, tree)
    assert plain(found) == plain(slow(rig, tree))
    return [path for path, _ in found]


def test_ordinary_work(rig: Rig, base: Base) -> None:
    tree = rig.tree(base)
    assert check(rig, tree) == []
    rig.act(tree, do_much)
    found = check(rig, tree)
    assert {"README", "src/main.py", "new/file", "build"} <= set(found)
    assert not any(path.startswith("build/") for path in found)


def test_what_is_not_ordinary(rig: Rig, base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        if os.geteuid() != 0:
            # Folders of the base are moved by root's overlays alone; here they are made anew.
            subprocess.run(["mv", "src/deep", "moved"], check=True)
        else:
            os.rename("src/deep", "moved")
        Path("moved/more").write_text("more")
        shutil.rmtree("build")
        Path("build").mkdir()
        Path("build/again").write_text("again")
        Path("README").chmod(0o600)
        content = Path("src/main.py").read_bytes()
        Path("src/main.py").write_bytes(content)
        Path(*["deep"] * 40).mkdir(parents=True)
        Path(*["deep"] * 40, "file").write_text("deep")
        Path("closed/inner").mkdir(parents=True)
        Path("closed/inner/file").write_text("x")
        Path("closed").chmod(0)
        Path("listed/inner").mkdir(parents=True)
        Path("listed").chmod(0o400)
        os.mkfifo("pipe")
        Path("temporary").write_text("gone")
        Path("temporary").unlink()

    tree = rig.tree(base)
    rig.act(tree, act)
    monkeypatch.setattr(written, "_DEEPEST", 5)
    found = check(rig, tree)
    assert "/".join(["deep"] * 40) + "/file" in found
    assert {"moved/more", "build/again", "closed/inner/file", "listed/inner"} <= set(found)
    assert "README" in found and "src/main.py" not in found


def test_a_fork_of_a_base_with_layers(rig: Rig, tmp_path: Path) -> None:
    """Beneath what was written there are what it began with, and a base of two layers."""
    project = make_project(tmp_path / "project")
    rig.base_of(project)
    (project / "later.txt").write_text("later")
    (project / "README").write_text("of the second layer")
    tree = rig.tree(rig.base_of(project))
    rig.act(tree, do_much)
    keep(rig, tree, "one")
    made = fork(rig, tree, "one")
    assert set(check(rig, made)) >= {"README", "new/file"}

    def more() -> None:
        Path("new/file").write_text("of the fork")
        Path("new/second").write_text("of the fork")
        Path("later.txt").unlink()
        shutil.rmtree("src")
        Path("src").mkdir()

    rig.act(made, more)
    assert {"later.txt", "new/second", "src/main.py"} <= set(check(rig, made))


@settings(PROFILE, max_examples=examples(15, exhaustive=1000))
@given(work=st.lists(st.lists(steps, max_size=12), min_size=1, max_size=3))
@example(work=[EACH_KIND, EACH_KIND])
@example(work=[[Step("rename", "d", "x", "", 0), Step("mkdir", "d", "", "", 0)], EACH_KIND])
def test_any_work(rig: Rig, small_base: Base, work: list[list[Step]]) -> None:
    """In a tree, in a fork of it, and in a fork of that."""
    rig.tree(small_base)
    try:
        for some in work:
            tree = rig.trees[-1]
            rig.act(tree, functools.partial(do_all, some))
            check(rig, tree)
            keep(rig, tree, "kept")
            check(rig, fork(rig, tree, "kept"))
    finally:
        while rig.trees:
            rig.driver.drop(rig.trees.pop())


@pytest.fixture
def small_base(rig: Rig, tmp_path: Path) -> Base:
    folder = tmp_path / "small"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "a").write_text("aaaa")
    (folder / "b").write_text("bb")
    (folder / "d" / "a").write_text("dadada")
    (folder / "d" / "b").write_text("dadada")
    (folder / "d" / "e" / "a").write_text("0123456789" * 1000)
    (folder / "d" / "link").symlink_to("../a")
    return rig.base_of(folder)


def test_what_goes_meanwhile(rig: Rig, base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """No state is made of it: the look is begun again."""
    tree = rig.tree(base)
    rig.act(tree, do_much)
    names, gone = written._names, list[str]()

    def going(path: str, folders: list[int]) -> dict[str, os.stat_result]:
        found = names(path, folders)
        if not path and len(gone) < 2:
            gone.append(path)
            rig.act(tree, lambda: os.rename(f"new{len(gone) - 1 or ''}", f"new{len(gone)}"))
        return found

    monkeypatch.setattr(written, "_names", going)
    with pytest.raises(FileNotFoundError):
        quick(rig, tree)
    state = kept_of(rig, tree).take("kept", agent=False, max_bytes=BIG)
    assert len(gone) == 2 and {"new2/file"} <= set(state.named)


def test_untouched(rig: Rig, base: Base) -> None:
    tree = rig.tree(base)
    rig.act(tree, do_much)
    driver = rig.driver
    assert isinstance(driver, OverlayDriver)
    settled = common.settle(tree.folder / common.PRIVATE)
    assert driver.is_untouched(tree, settled)
    rig.act(tree, lambda: os.chmod("new/file", 0o600))
    assert not driver.is_untouched(tree, settled)
    settled = common.settle(tree.folder / common.PRIVATE)
    rig.act(tree, lambda: os.unlink("new/file"))
    assert not driver.is_untouched(tree, settled)
