"""Trees that become bases."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from carrel.domain.trees import Base, Tree
from tests.conformance.tree_rig import SANDBOX, Rig
from tests.conformance.tree_views import do_much, look, owners


def test_a_frozen_tree_becomes_a_base(rig: Rig, base: Base, tree: Tree) -> None:
    rig.act(tree, do_much)
    before = rig.act(tree, look)
    changes = rig.changes(tree)
    frozen = rig.driver.freeze(tree)
    assert frozen.base_id != base.base_id
    assert frozen.project_owner == base.project_owner
    copy = rig.tree(frozen)
    assert rig.act(copy, look) == before
    assert rig.changes(copy) == []
    assert rig.act(copy, owners) == {SANDBOX}
    # The tree itself goes on as it was.
    assert rig.changes(tree) == changes
    rig.act(tree, lambda: Path("after").write_text("later\n"))
    assert rig.act(copy, look) == before


def test_freezing_twice_and_again(rig: Rig, tree: Tree) -> None:
    """Forks of forks, each with changes of its own."""
    seen = []
    current = tree
    for number in range(4):
        rig.act(current, functools.partial(_step, number))
        seen.append(rig.act(current, look))
        current = rig.tree(rig.driver.freeze(current))
        assert rig.act(current, look) == seen[-1]


def _step(number: int) -> None:
    Path(f"step-{number}").write_text(f"{number}\n")
    Path("README").write_text(f"step {number}\n")
    if number:
        os.unlink(f"step-{number - 1}")


def test_freezing_what_did_not_change(rig: Rig, base: Base, tree: Tree) -> None:
    frozen = rig.driver.freeze(tree)
    assert rig.act(rig.tree(frozen), look) == rig.act(tree, look)


def test_freezing_leaves_out_what_is_no_file(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        os.mkfifo("fifo")
        os.unlink("README")
        os.mkfifo("README")
        Path("kept").write_text("x")

    rig.act(tree, act)
    found = rig.act(rig.tree(rig.driver.freeze(tree)), lambda: os.listdir("."))
    assert "kept" in found
    assert not {"fifo", "README"} & set(found)
