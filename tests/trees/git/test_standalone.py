"""A copied folder's repositories are its own: they work, and the origin stays untouched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from carrel.domain.projects import GitReach
from carrel.trees.git.repository import OutsideAccess
from carrel.trees.git.standalone import GitIndex, GitPlan, plan_git
from tests.trees.git.repositories import (
    apply_plan,
    commit,
    digest,
    exercise,
    git,
    head,
    make_repository,
)


def followed(source: Path, reach: GitReach = GitReach.AGREE) -> GitPlan | None:
    """The plan when the owner has agreed to all that the folder names."""
    data = source.parent / "data"
    return plan_git(source, outside=OutsideAccess(os.fsencode(source), reach, data))


def copied(source: Path, target: Path, reach: GitReach = GitReach.AGREE) -> Path:
    return apply_plan(source, followed(source, reach), target)


def test_an_index_that_many_checkouts_name_is_taken_once(tmp_path: Path) -> None:
    """It is taken apart for each: two thousand of them kept a daemon busy for minutes."""
    origin = make_repository(tmp_path / "origin")
    for number in range(5):
        (origin / str(number)).mkdir()
        (origin / str(number) / ".git").write_text("gitdir: ../.git\n")
    plan = plan_git(origin)
    assert plan is not None
    assert [(one.index, one.worktree) for one in plan.indexes] == [(b".git/index", b"")]


def test_no_repository_no_plan(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    assert plan_git(tmp_path) is None


def test_a_plain_repository_needs_nothing(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    plan = plan_git(origin)
    assert plan is not None
    assert (plan.replace, plan.objects, dict(plan.generate), plan.notes) == ((), (), {}, ())
    assert plan.omit == frozenset()
    assert plan.indexes == (GitIndex(b".git/index", b""),)
    assert plan.at_top


def test_work_in_the_copy_leaves_the_origin_alone(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    before = digest(origin)
    copy = copied(origin, tmp_path / "copy")
    exercise(copy)
    assert digest(origin) == before


def test_linked_worktree_becomes_a_repository(tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    linked = tmp_path / "linked"
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked))
    (linked / "f.txt").write_text("f\n")
    tip = commit(linked, "feature work")
    (linked / "staged.txt").write_text("staged\n")
    git(linked, "add", "staged.txt")
    git(main, "update-ref", "refs/bisect/bad", "HEAD")
    git(linked, "update-ref", "refs/worktree/mark", "HEAD")
    before = digest(main), digest(linked)
    copy = copied(linked, tmp_path / "copy")
    assert (copy / ".git").is_dir()
    assert not (copy / ".git" / "worktrees").exists()
    assert not (copy / ".git" / "commondir").exists()
    assert head(copy) == tip
    assert git(copy, "symbolic-ref", "HEAD").strip() == "refs/heads/feature"
    assert git(copy, "status", "--porcelain") == "A  staged.txt\n"
    assert "feature work" in git(copy, "reflog")
    assert "refs/bisect" not in git(copy, "for-each-ref")
    assert "refs/worktree/mark" in git(copy, "for-each-ref")
    git(copy, "commit", "-q", "-m", "staged one")
    git(copy, "checkout", "-q", "main")
    exercise(copy)
    assert (digest(main), digest(linked)) == before


def test_linked_worktree_in_the_middle_of_a_rebase(tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    linked = tmp_path / "linked"
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked), "HEAD~1")
    (linked / "a.txt").write_text("other\n")
    commit(linked, "conflicting")
    git(linked, "rebase", "main", check=False)
    copy = copied(linked, tmp_path / "copy")
    shutil.rmtree(main)
    assert "rebase in progress" in git(copy, "status")
    (copy / "a.txt").write_text("solved\n")
    git(copy, "add", "a.txt")
    git(copy, "-c", "core.editor=true", "rebase", "--continue")
    assert git(copy, "log", "-1", "--format=%s").strip() == "conflicting"


def test_worktree_of_a_bare_repository(tmp_path: Path) -> None:
    make_repository(tmp_path / "seed")
    git(tmp_path, "clone", "-q", "--bare", "seed", "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "wt"), "main")
    copy = copied(tmp_path / "wt", tmp_path / "copy")
    shutil.rmtree(tmp_path / "bare.git")
    assert git(copy, "config", "core.bare").strip() == "false"
    exercise(copy)


def test_worktree_with_settings_of_its_own(tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    linked = tmp_path / "linked"
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked))
    git(main, "config", "extensions.worktreeConfig", "true")
    git(main, "config", "--worktree", "user.name", "main's")
    git(linked, "config", "--worktree", "user.name", "linked's")
    git(linked, "sparse-checkout", "set", "src")
    copy = copied(linked, tmp_path / "copy")
    shutil.rmtree(main)
    assert git(copy, "config", "user.name").strip() == "linked's"
    assert git(copy, "sparse-checkout", "list").strip() == "src"
    assert git(copy, "status", "--porcelain") == ""


def test_main_checkout_forgets_worktrees_elsewhere(tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    git(main, "worktree", "add", "-q", "-b", "feature", str(tmp_path / "linked"))
    before = digest(main), digest(tmp_path / "linked")
    copy = copied(main, tmp_path / "copy")
    assert len(git(copy, "worktree", "list").splitlines()) == 1
    git(copy, "checkout", "-q", "feature")
    exercise(copy)
    assert (digest(main), digest(tmp_path / "linked")) == before


def test_worktrees_inside_the_project_stay_linked(tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    inner = main / ".worktrees" / "inner"
    git(main, "worktree", "add", "-q", "-b", "inner", str(inner))
    git(main, "worktree", "add", "-q", "-b", "outer", str(tmp_path / "outer"))
    before = digest(main), digest(tmp_path / "outer")
    copy = copied(main, tmp_path / "copy")
    assert sorted(os.listdir(copy / ".git" / "worktrees")) == ["inner"]
    there = copy / ".worktrees" / "inner"
    assert git(there, "rev-parse", "--show-toplevel").strip() == str(there)
    (there / "x").write_text("x")
    tip = commit(there, "in the inner worktree")
    assert git(copy, "rev-parse", "inner").strip() == tip
    assert (digest(main), digest(tmp_path / "outer")) == before


def test_bare_layout_with_worktrees_side_by_side(tmp_path: Path) -> None:
    make_repository(tmp_path / "seed")
    project = tmp_path / "project"
    project.mkdir()
    git(project, "clone", "-q", "--bare", str(tmp_path / "seed"), ".bare")
    (project / ".git").write_text("gitdir: ./.bare\n")
    for name in ("main", "topic"):
        git(project, "branch", name, check=False)
        git(project, "worktree", "add", "-q", str(project / name), name)
    before = digest(project)
    copy = copied(project, tmp_path / "copy")
    exercise(copy / "topic")
    assert git(copy / "main", "status", "--porcelain") == ""
    assert digest(project) == before


def test_two_worktrees_of_a_repository_elsewhere(tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    desk = tmp_path / "desk"
    desk.mkdir()
    for name in ("one", "two"):
        git(main, "worktree", "add", "-q", "-b", name, str(desk / name))
    before = digest(main), digest(desk)
    plan = followed(desk, GitReach.AGREED)
    assert plan is not None and not plan.at_top
    copy = apply_plan(desk, plan, tmp_path / "copy")
    exercise(copy / "one", name="first")
    exercise(copy / "two", name="second")
    assert (digest(main), digest(desk)) == before


def test_alternates_come_along(tmp_path: Path) -> None:
    first = make_repository(tmp_path / "first")
    git(tmp_path, "clone", "-q", "--shared", "first", "second")
    (tmp_path / "second" / "c").write_text("c")
    commit(tmp_path / "second", "in the second")
    git(first, "gc", "-q")
    git(tmp_path, "clone", "-q", "--shared", "second", "third")
    (tmp_path / "third" / "d").write_text("d")
    commit(tmp_path / "third", "in the third")
    before = [digest(tmp_path / name) for name in ("first", "second", "third")]
    copy = copied(tmp_path / "third", tmp_path / "copy")
    assert [digest(tmp_path / name) for name in ("first", "second", "third")] == before
    for name in ("first", "second", "third"):
        shutil.rmtree(tmp_path / name)
    assert not (copy / ".git/objects/info/alternates").exists()
    git(copy, "fsck", "--full", "--strict")
    exercise(copy)


def test_relative_alternates_and_lost_ones(tmp_path: Path) -> None:
    make_repository(tmp_path / "lender")
    git(tmp_path, "clone", "-q", "--shared", "lender", "borrower")
    listed = tmp_path / "borrower/.git/objects/info/alternates"
    listed.write_text("# a remark\n../../../lender/.git/objects\n/nowhere/objects\n")
    plan = followed(tmp_path / "borrower")
    assert plan is not None
    assert [note.why for note in plan.notes] == ["borrows from /nowhere/objects, which is gone"]
    copy = apply_plan(tmp_path / "borrower", plan, tmp_path / "copy")
    git(copy, "fsck", "--full")


def test_submodules(tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    origin = make_repository(tmp_path / "origin")
    git(origin, "submodule", "--quiet", "add", str(tmp_path / "library"), "vendor/lib")
    commit(origin, "with a submodule")
    before = digest(origin)
    plan = plan_git(origin)
    assert plan is not None
    assert plan.indexes == (
        GitIndex(b".git/index", b""),
        GitIndex(b".git/modules/vendor/lib/index", b"vendor/lib"),
    )
    copy = apply_plan(origin, plan, tmp_path / "copy")
    exercise(copy / "vendor/lib")
    assert git(copy, "status", "--porcelain").strip().startswith("M vendor/lib")
    exercise(copy)
    assert digest(origin) == before


def test_submodule_with_absolute_pointers(tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    origin = make_repository(tmp_path / "origin")
    git(origin, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    commit(origin, "with a submodule")
    (origin / "lib/.git").write_text(f"gitdir: {origin}/.git/modules/lib\n")
    git(origin / "lib", "config", "core.worktree", str(origin / "lib"))
    before = digest(origin)
    copy = copied(origin, tmp_path / "copy")
    assert git(copy / "lib", "rev-parse", "--show-toplevel").strip() == str(copy / "lib")
    exercise(copy / "lib")
    assert digest(origin) == before


def test_submodule_of_a_linked_worktree(tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    main = make_repository(tmp_path / "main")
    git(main, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    commit(main, "with a submodule")
    linked = tmp_path / "linked"
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked))
    git(linked, "submodule", "--quiet", "update", "--init")
    before = digest(main), digest(linked)
    copy = copied(linked, tmp_path / "copy")
    exercise(copy / "lib")
    exercise(copy)
    assert (digest(main), digest(linked)) == before


def test_a_submodule_alone_is_a_project_too(tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    main = make_repository(tmp_path / "main")
    git(main, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    commit(main, "with a submodule")
    before = digest(main)
    copy = copied(main / "lib", tmp_path / "copy")
    exercise(copy)
    assert digest(main) == before


@pytest.mark.parametrize("absolute", [True, False])
def test_git_folder_behind_a_symlink(tmp_path: Path, absolute: bool) -> None:
    origin = make_repository(tmp_path / "origin")
    (origin / ".git").rename(tmp_path / "elsewhere.git")
    target = tmp_path / "elsewhere.git" if absolute else Path("../elsewhere.git")
    (origin / ".git").symlink_to(target)
    before = digest(tmp_path / "elsewhere.git")
    copy = copied(origin, tmp_path / "copies" / "copy")
    assert not (copy / ".git").is_symlink()
    exercise(copy)
    assert digest(tmp_path / "elsewhere.git") == before


def test_separate_git_folder(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin", f"--separate-git-dir={tmp_path}/kept.git")
    before = digest(tmp_path / "kept.git")
    copy = copied(origin, tmp_path / "copy")
    assert (copy / ".git").is_dir()
    exercise(copy)
    assert digest(tmp_path / "kept.git") == before


def test_parts_that_are_symlinks(tmp_path: Path) -> None:
    """As git-new-workdir and the tool `repo` make them: they stay what they are."""
    main = make_repository(tmp_path / "main")
    work = tmp_path / "work"
    shutil.copytree(main, work)
    for name in ("objects", "refs", "config"):
        path = work / ".git" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        path.symlink_to(main / ".git" / name)
    plan = followed(work)
    assert plan is not None
    assert sorted(note.path for note in plan.notes) == [".git/config", ".git/objects", ".git/refs"]
    copy = apply_plan(work, plan, tmp_path / "copy")
    assert os.readlink(copy / ".git/objects") == str(main / ".git/objects")


def test_core_worktree_that_leads_back_to_the_origin(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    git(origin, "config", "core.worktree", str(origin))
    before = digest(origin)
    copy = copied(origin, tmp_path / "copy")
    assert git(copy, "rev-parse", "--show-toplevel").strip() == str(copy)
    exercise(copy)
    assert digest(origin) == before


def test_locks_and_half_written_packs_stay_behind(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    left = ("index.lock", "refs/heads/main.lock", "objects/pack/tmp_pack_x", "config.lock")
    for name in left:
        (origin / ".git" / name).write_text("")
    copy = copied(origin, tmp_path / "copy")
    assert not [name for name in left if (copy / ".git" / name).exists()]
    exercise(copy)


def test_shallow_clone(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "shallow")
    copy = copied(tmp_path / "shallow", tmp_path / "copy")
    assert git(copy, "rev-list", "--count", "HEAD").strip() == "1"
    exercise(copy)


def test_sha256(tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main", "--object-format=sha256")
    git(main, "worktree", "add", "-q", "-b", "feature", str(tmp_path / "linked"))
    before = digest(main)
    copy = copied(tmp_path / "linked", tmp_path / "copy")
    assert len(head(copy)) == 64
    exercise(copy)
    assert digest(main) == before


def test_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main", "origin")
    copy = copied(tmp_path / "origin", tmp_path / "copy")
    (copy / "x").write_text("x")
    assert commit(copy, "the first")
    assert git(tmp_path / "origin", "for-each-ref") == ""


def test_detached_head(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    git(origin, "checkout", "-q", "--detach", "HEAD~1")
    copy = copied(origin, tmp_path / "copy")
    assert head(copy) == head(origin)
    exercise(copy)


@pytest.mark.parametrize(
    "content",
    [b"", b"gitdir: /nowhere/at/all\n", b"gitdir:\n", b"\0\xff garbage", b"gitdir: /\n"],
)
def test_broken_pointers_are_copied_and_noted(tmp_path: Path, content: bytes) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / ".git").write_bytes(content)
    plan = followed(origin)
    assert plan is not None
    assert [note.path for note in plan.notes] == [".git"]
    assert (apply_plan(origin, plan, tmp_path / "copy") / ".git").read_bytes() == content


def test_odd_git_entries_do_not_hang_or_raise(tmp_path: Path) -> None:
    for name in ("fifo", "empty", "loop", "dangling"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "fifo/.git")
    (tmp_path / "empty/.git").mkdir()
    (tmp_path / "loop/.git").symlink_to(".git")
    (tmp_path / "dangling/.git").symlink_to("/nowhere")
    plan = plan_git(tmp_path)
    assert plan is not None
    assert len(plan.notes) == 4
    assert not plan.replace


def test_a_bare_repository_as_a_folder(tmp_path: Path) -> None:
    make_repository(tmp_path / "seed")
    git(tmp_path, "clone", "-q", "--bare", "--shared", "seed", "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "wt"), "main")
    plan = followed(tmp_path / "bare.git")
    assert plan is not None and not plan.at_top and plan.indexes == ()
    copy = apply_plan(tmp_path / "bare.git", plan, tmp_path / "copy.git")
    shutil.rmtree(tmp_path / "seed")
    assert not (copy / "worktrees").exists()
    assert git(copy, "fsck", "--full") == ""


def test_a_partial_clone_is_noted(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    git(origin, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{origin}", "partial")
    plan = plan_git(tmp_path / "partial")
    assert plan is not None
    assert [note.why for note in plan.notes] == [
        "a partial clone: objects that were never fetched are not in it"
    ]


def test_relative_pointers_to_a_repository_elsewhere(tmp_path: Path) -> None:
    """As newer gits write them when they are told to."""
    main = make_repository(tmp_path / "main")
    linked = tmp_path / "linked"
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked))
    (linked / ".git").write_text("gitdir: ../main/.git/worktrees/linked\n")
    (main / ".git/worktrees/linked/gitdir").write_text("../../../../linked/.git\n")
    copy = copied(linked, tmp_path / "deeper" / "copy")
    shutil.rmtree(main)
    exercise(copy)


def test_nothing_of_the_repository_is_run(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    git(origin, "worktree", "add", "-q", "-b", "feature", str(tmp_path / "linked"))
    canary = tmp_path / "canary"
    git(origin, "config", "core.fsmonitor", f"touch {canary}")
    git(origin, "config", "core.sshCommand", f"touch {canary}")
    hook = origin / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
    hook.chmod(0o755)
    for source in (origin, tmp_path / "linked"):
        plan_git(source)
    assert not canary.exists()


def test_the_callers_own_walk_is_used(tmp_path: Path) -> None:
    make_repository(tmp_path / "p" / "one")
    make_repository(tmp_path / "p" / "two")
    plan = plan_git(tmp_path / "p", found=[b"one"])
    assert plan is not None
    assert [index.worktree for index in plan.indexes] == [b"one"]
    assert plan_git(tmp_path / "p", found=[]) is None
