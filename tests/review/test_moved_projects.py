"""Projects that are moved away and replaced while git works in them, and a git that is too old."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from carrel.api.types.admin import Grade
from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import LandingHalfDone, LandingRefused
from carrel.domain.landing import LandingState
from carrel.domain.review import ExportFormat, ExportRequest
from carrel.review.project import ProjectRepository
from tests.accounts import Account
from tests.review.conftest import Repository, land, work
from tests.service.rig import make

GIT = shutil.which("git") or ""
STEPS = (
    *("symbolic-ref", "for-each-ref", "rev-parse", "fetch", "index-pack"),
    *("ls-files", "diff-tree", "update-ref", "cat-file", "update-index"),
)
"""What git does in a project that work lands in, in this order."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")


def stand_in(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program `git` that does something first."""
    folder.mkdir()
    folder.chmod(0o755)
    program = folder / "git"
    program.write_text(f'#!/bin/sh\n{script}\nexec {GIT} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def owned(path: Path, account: Account) -> Repository:
    made = Repository(path)
    made.write(a_txt="a\n")
    made.git("init", "-q", "-b", "main")
    made.commit("first")
    give(made, account)
    return made


def give(repository: Repository, account: Account) -> None:
    for one in (repository.path, *repository.path.rglob("*")):
        os.lchown(one, *account)


@needs_root
@pytest.mark.parametrize("step", STEPS)
async def test_a_link_takes_its_place(
    services: Services,
    passable: Path,
    ordinary_user: Account,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """As root, in another account's project: whichever step it is that notices, the same is told,
    and nothing of root's changes."""
    roots, home = owned(passable / "roots", Account(0, 0)), passable / "home"
    theirs = owned(home / "project", ordinary_user)
    os.lchown(home, *ordinary_user)
    roots.path.chmod(0o700)
    before = roots.state(), roots.git("rev-parse", "HEAD")
    space = await make(services, theirs.path, name="desk")
    await work(services, space, "echo b >> a.txt; echo x > x")
    # So there is something to fetch.
    give(theirs, Account(0, 0))
    theirs.commit("second", other="o\n")
    give(theirs, ordinary_user)
    swap = (
        f'case " $* " in *{home}/*" {step} "*|*" {step} "*{home}/*) if [ -e {home}/armed ]; then'
        f" rm {home}/armed; mv {theirs.path} {home}/moved; ln -s {roots.path} {theirs.path}; fi;;"
        " esac"
    )
    stand_in(passable / "bin", swap, monkeypatch)
    (home / "armed").touch()
    with pytest.raises((LandingRefused, LandingHalfDone), match="owner's alone"):
        await land(services, space, branch="" if step == "rev-parse" else "main")
    assert not (home / "armed").exists()
    assert (roots.state(), roots.git("rev-parse", "HEAD")) == before
    if step == "fetch":
        # It ran as root, and so the link is root's.
        os.lchown(theirs.path, *ordinary_user)
    theirs.path.unlink()
    (home / "moved").rename(theirs.path)
    # What is written down is what is so.
    await services.landings.take_up()
    states = [one.state for one in await services.landings.list(LOCAL, 1)]
    moved = theirs.git("-c", "safe.directory=*", "rev-list", "--count", "main") == "3"
    assert states == ([LandingState.LANDED] if moved else [LandingState.UNDONE][: len(states)])


@needs_root
async def test_its_owner_cannot_reach_it(
    services: Services, passable: Path, ordinary_user: Account
) -> None:
    theirs = owned(passable / "home/project", ordinary_user)
    space = await make(services, theirs.path, name="desk")
    await work(services, space, "echo b >> a.txt")
    (passable / "home").chmod(0o700)
    with pytest.raises(LandingRefused, match=f"works as uid {ordinary_user.uid}"):
        await land(services, space)
    (passable / "home").chmod(0o711)
    await land(services, space)


async def test_something_else_takes_its_place(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo b >> a.txt")
    known = ProjectRepository(repository.path / ".git")
    known.expect_place()
    away = repository.path.rename(repository.path.with_name("away"))
    with pytest.raises(LandingRefused, match="moved or replaced: No such file"):
        await land(services, space)
    shutil.copytree(away, repository.path)
    with pytest.raises(LandingRefused, match="moved or replaced: something else is there now"):
        known.tip("main")
    await land(services, space)


async def test_an_old_git(
    services: Services, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo b >> a.txt")

    async def found() -> tuple[Grade, str, str]:
        said = (await services.operations.cleanup.examine(LOCAL)).findings
        return next((one.grade, one.what, one.remedy) for one in said if one.name == "git")

    assert await found() == (Grade.GOOD, GIT, "")
    old = '[ "$1" = version ] && { echo "git version 2.34.1"; exit; }'
    with monkeypatch.context() as patch:
        stand_in(tmp_path / "bin", old, patch)
        exports = services.operations.review._exports
        with pytest.raises(LandingRefused, match=r"is 2\.34\.1, and landing needs 2\.38 or later"):
            await land(services, space)
        with pytest.raises(LandingRefused, match=r"needs 2\.38"):
            await exports.export(LOCAL, space.space_id, ExportRequest(ExportFormat.BUNDLE))
        _, patch_text = await exports.export(
            LOCAL, space.space_id, ExportRequest(ExportFormat.PATCH)
        )
        assert b"+b\n" in b"".join(patch_text)
        grade, what, remedy = await found()
        assert (grade, remedy) == (Grade.WARNING, "Install git 2.38 or later.") and "2.34.1" in what
    await land(services, space)
