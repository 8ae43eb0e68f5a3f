"""What landing writes in a project: its checkout goes along, or stays as it is."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import Mock

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import (
    CarrelError,
    GitFailed,
    GitTimeout,
    InsufficientDisk,
    LandingHalfDone,
    LandingRefused,
    NothingToLand,
    NotUndoable,
)
from carrel.domain.landing import LandingPlace, LandingState
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.review import ExportFormat, ExportRequest
from carrel.domain.spaces import SpaceRequest
from carrel.domain.trees import Owner
from carrel.review import project
from carrel.review import work as reviewed
from carrel.review.checkout import CheckoutFile, CheckoutWriter, ProjectCheckout, Version
from carrel.review.checks import _wanted
from carrel.review.landing import GitLander, _checkout_of
from carrel.review.project import ProjectRepository
from carrel.service.takes import TakeRequest
from carrel.trees.git import process
from tests.accounts import Account, interpreter_for, run_as
from tests.review.conftest import WORK, Died, Repository, land, work
from tests.service.rig import make
from tests.trees.again import run_again

GIT_S = 30.0
"""For work that takes a second, on a loaded machine; git would need ten minutes."""


async def test_what_a_person_writes_meanwhile_stays(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a file is written, and before its turn: nothing lands then."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo agent | tee -a a.txt old.txt > new.txt; rm src/b.py")
    contents = ProjectRepository.contents
    for name in ("a.txt", "old.txt", "new.txt"):
        first = repository.state()

        @contextlib.contextmanager
        def slow(
            project: ProjectRepository, name: str = name
        ) -> Iterator[Callable[[str, int], None]]:
            with contents(project) as copy:

                def late(oid: str, target: int) -> None:
                    copy(oid, target)
                    (repository.path / name).write_text("mine\n")

                yield late

        with monkeypatch.context() as patch:
            patch.setattr(ProjectRepository, "contents", slow)
            with pytest.raises(LandingRefused, match="changes of its own"):
                await land(services, space, branch="main")
        assert (repository.path / name).read_text() == "mine\n"
        (repository.path / "new.txt").unlink(missing_ok=True)
        repository.git("checkout", "-q", "--", ".")
        assert repository.state() == first
    await land(services, space, branch="main")


async def test_files_that_are_too_large_for_git(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with nothing in them cost their space nothing, and git much: its memory too for a
    patch, minutes in any case. Said at once."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "truncate -s 300M one; ln one two; echo a >> a.txt")
    exports = services.operations.review._exports
    with pytest.raises(LandingRefused, match="up to 256 MiB"):
        await exports.export(LOCAL, space.space_id, ExportRequest(ExportFormat.PATCH))
    await work(services, space, "rm one two; truncate -s 900G one")
    began = time.monotonic()
    for kind in (ExportFormat.PATCH, ExportFormat.BUNDLE):
        with pytest.raises(LandingRefused, match="too large together, at 'one'"):
            await exports.export(LOCAL, space.space_id, ExportRequest(kind))
    with pytest.raises(LandingRefused, match=r"too large together, at 'one': up to 4,096 MiB"):
        await land(services, space, branch="main")
    other = await make(services, repository.path, name="other")
    await work(services, other, "echo one > one")
    request = TakeRequest(other.space_id, space.space_id, ("one",), force=True)
    with pytest.raises(LandingRefused, match="too large together"):
        await services.operations.landings._takes.take(LOCAL, request)
    assert time.monotonic() - began < GIT_S, "none of it was read"


async def test_files_with_too_many_lines_for_git(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each empty line costs git forty bytes."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "yes '' | head -c 3000000 >> a.txt")
    repository.commit("mine", a_txt="mine\n")
    before = repository.state()
    monkeypatch.setattr(process, "MOST_MEMORY", 64 << 20)
    exports = services.operations.review._exports
    with pytest.raises(GitFailed, match="needs more than 64 MiB of memory"):
        await exports.export(LOCAL, space.space_id, ExportRequest(ExportFormat.PATCH))
    with pytest.raises(GitFailed, match="merge-tree needs more than 64 MiB of memory"):
        await land(services, space, branch="main")
    assert repository.state() == before


async def test_a_commit_that_names_too_many_files(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three objects can name a million files, and ten more than anybody can hold."""
    tree = repository.git("rev-parse", "HEAD:src")
    for _ in range(6):
        entries = (b"40000 d%02d\0" % one + bytes.fromhex(tree) for one in range(20))
        tree = _object(repository, "tree", b"".join(entries))
    root = subprocess.check_output(
        ["git", "cat-file", "tree", "HEAD^{tree}"], cwd=repository.path
    ) + (b"40000 zz\0" + bytes.fromhex(tree))
    bomb = repository.git("commit-tree", _object(repository, "tree", root), "-p", "HEAD", "-m", "b")
    repository.git("update-ref", "refs/heads/topic", bomb)
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo n > n")
    monkeypatch.setattr(reviewed, "MOST_LISTED", 20_000)
    with pytest.raises(LandingRefused, match="names more than 20,000 files"):
        await land(services, space, branch="topic")
    assert repository.git("rev-parse", "topic") == bomb


async def test_a_branch_that_cannot_go_back(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk keeps the checkout from going along, and the branch from going back: that is
    told, and not that nothing has landed."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)
    full = OSError(errno.ENOSPC, "No space left on device")
    write = CheckoutWriter._write
    with monkeypatch.context() as patch:

        def refused(writer: CheckoutWriter, file: CheckoutFile) -> None:
            patch.setattr(CheckoutWriter, "_write", write)
            patch.setattr(ProjectRepository, "move", Mock(side_effect=full))
            raise full

        patch.setattr(CheckoutWriter, "_write", refused)
        with pytest.raises(LandingHalfDone, match="has moved, and the checkout has not"):
            await land(services, space, branch="main")
    with pytest.raises(NothingToLand):
        await land(services, space, branch="main")
    assert (await services.landings.list(LOCAL, 1))[0].state is LandingState.LANDED
    assert repository.git("status", "--porcelain") == ""
    assert "agent 3" in (repository.path / "a.txt").read_text()


async def test_a_large_file_is_not_held_in_memory(
    services: Services, repository: Repository
) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "truncate -s 200M large")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await land(services, space, branch="main")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert (repository.path / "large").stat().st_size == 200 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
@pytest.mark.parametrize("has_git", [True, False], ids=["git", "plain"])
async def test_another_account_leads_root_elsewhere(
    services: Services, passable: Path, ordinary_user: Account, has_git: bool
) -> None:
    """As root: the folder of somebody's project becomes a link to one of root's."""
    home, roots = passable / "home", Repository(passable / "roots")
    theirs = Repository(home / "project")
    for one in (theirs, roots):
        one.write(a_txt="a\n")
        if has_git:
            one.git("init", "-q", "-b", "main")
            one.commit("first")
    for path in (home, *home.rglob("*")):
        os.lchown(path, *ordinary_user)
    space = await make(services, theirs.path, name="desk")
    await work(services, space, "mkdir cron.d; echo x > cron.d/x")
    theirs.path.rename(home / "moved")
    theirs.path.symlink_to(roots.path)
    os.lchown(theirs.path, *ordinary_user)
    with pytest.raises(LandingRefused, match="owner's alone"):
        await land(services, space, **({"branch": "main"} if has_git else {}))
    assert not (roots.path / "cron.d").exists()
    # Root's own link leads to somebody's project.
    theirs.path.unlink()
    theirs.path.symlink_to(home / "moved")
    await land(services, space)


@pytest.mark.parametrize("checked_out", [False, True], ids=["a branch", "the checkout's"])
async def test_a_daemon_that_died_in_between(
    services: Services,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    checked_out: bool,
) -> None:
    """Before the branch moved, after, and half way back: the record says what is so, and the
    checkout goes along."""
    branch = "main" if checked_out else ""
    first = repository.state()
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)

    def dies(*_: object) -> None:
        raise Died

    def newest() -> Awaitable[LandingState]:
        async def state() -> LandingState:
            return (await services.landings.list(LOCAL, 1))[0].state

        return state()

    places = [(ProjectRepository, "move"), (GitLander, "settle")]
    if checked_out:
        places[1] = (ProjectCheckout, "bring")
    for number, (kind, name) in enumerate(places):
        if not checked_out and number:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, dies)
            if number:
                # The branch has moved, and does not go back: nobody is there to do it.
                patch.setattr(GitLander, "move", _only_moves)
            with pytest.raises(Died):
                await land(services, space, branch=branch)
        assert await newest() is LandingState.BEGUN
        await services.landings.take_up()
        assert await newest() is (LandingState.LANDED if number else LandingState.UNDONE)
    if not checked_out:
        await land(services, space, branch=branch)
    else:
        assert repository.git("status", "--porcelain", "--untracked-files=no") == ""
        assert "agent 3" in (repository.path / "a.txt").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(ProjectRepository, "move", dies)
        with pytest.raises(Died):
            await services.landings.undo(LOCAL, "")
    assert await newest() is LandingState.UNDOING
    await services.landings.take_up()
    assert await newest() is LandingState.LANDED
    await services.landings.undo(LOCAL, "")
    assert repository.state() == first


def _only_moves(lander: GitLander, place: LandingPlace, before: str, after: str) -> None:
    remote, repository = lander._located(place)
    repository.move(place.branch, before, after, "test")
    found = _checkout_of(remote, repository, place.branch)
    assert found is not None
    found.bring(before, after)


async def test_the_branch_that_is_checked_out(services: Services, repository: Repository) -> None:
    """The checkout goes along where it is clean, and what is a person's own stays."""
    repository.write(mine_txt="mine\n", src__b_py="print(1)\n")
    space = await make(services, repository.path, name="desk")
    await work(services, space, f"{WORK}; mkdir -p deep/er; echo d > deep/er/d.txt")
    lines = (repository.path / "a.txt").read_text()
    (repository.path / "a.txt").write_text(lines.replace("line 9", "mine 9"))
    refs, state = repository.git("for-each-ref"), repository.state()
    with pytest.raises(LandingRefused, match=r"changes of its own .*a\.txt"):
        await land(services, space, branch="main")
    assert (refs, state) == (repository.git("for-each-ref"), repository.state())
    (repository.path / "a.txt").write_text(lines)
    (repository.path / "new.txt").write_text("somebody else's\n")
    with pytest.raises(LandingRefused, match=r"new\.txt"):
        await land(services, space, branch="main")
    (repository.path / "new.txt").unlink()
    first = repository.state()
    await land(services, space, branch="main")
    assert repository.git("status", "--porcelain") == "?? mine.txt"
    assert not (repository.path / "old.txt").exists() and (repository.path / "link").is_symlink()
    assert "agent 3" in (repository.path / "a.txt").read_text()
    assert (repository.path / "src/c.py").stat().st_mode & 0o111
    assert (repository.path / "deep/er/d.txt").read_text() == "d\n"
    repository.write(src__c_py="mine\n")
    with pytest.raises(NotUndoable, match="changes of its own"):
        await services.landings.undo(LOCAL, "")
    repository.git("checkout", "-q", "src/c.py")
    await services.landings.undo(LOCAL, "")
    assert repository.state() == first and not (repository.path / "deep").exists()
    assert (repository.path / "mine.txt").read_text() == "mine\n"


async def test_a_checkout_that_is_on_another_branch(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the files as changes of its own, beside those that a person has, and gives them
    back; whatever dies in between."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)
    repository.write(mine_txt="mine\n")
    first = repository.state()
    repository.write(a_txt="mine\n")
    with pytest.raises(LandingRefused, match=r"changes of its own .*a\.txt"):
        await land(services, space, worktree=True)
    assert repository.git("branch", "--list", "carrel/*") == ""
    repository.git("checkout", "-q", "a.txt")
    for number in range(2):
        with monkeypatch.context() as patch:
            if number:
                patch.setattr(CheckoutWriter, "_write", dies)
                with pytest.raises(Died):
                    await land(services, space, worktree=True)
            else:
                await land(services, space, worktree=True)
        await services.landings.take_up()
        assert "agent 3" in (repository.path / "a.txt").read_text()
        assert not (repository.path / "old.txt").exists()
        assert (repository.path / "mine.txt").read_text() == "mine\n"
        assert repository.git("diff", "--cached") == "" and repository.git("diff", "HEAD") != ""
        repository.git("add", "new.txt")
        with monkeypatch.context() as patch:
            if number:
                patch.setattr(CheckoutWriter, "bring", dies)
                with pytest.raises(Died):
                    await services.landings.undo(LOCAL, "")
            else:
                await services.landings.undo(LOCAL, "")
        await services.landings.take_up()
        repository.git("rm", "-q", "--cached", "--ignore-unmatch", "new.txt")
        assert repository.state() == first and not (repository.path / "new.txt").exists()
    bare = repository.path.parent / "bare.git"
    repository.git("clone", "-q", "--bare", ".", str(bare))
    asked = SpaceRequest(Project(ProjectKind.GIT, str(bare)), name="other", follow_git=True)
    other = await services.spaces.create(LOCAL, asked)
    await work(services, other, "echo n > n")
    with pytest.raises(LandingRefused, match="no checkout"):
        await land(services, other, worktree=True)


def dies(*_: object) -> None:
    raise Died


async def test_files_become_folders_and_back(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "rm -r src; echo s > src; rm a.txt; mkdir a.txt; echo x > a.txt/x")
    (repository.path / "src/mine").write_text("mine\n")
    with pytest.raises(LandingRefused, match="src"):
        await land(services, space, branch="main")
    (repository.path / "src/mine").unlink()
    first = repository.state()
    await land(services, space, branch="main")
    assert repository.git("status", "--porcelain") == ""
    assert (repository.path / "src").read_text() == "s\n"
    assert (repository.path / "a.txt/x").read_text() == "x\n"
    await services.landings.undo(LOCAL, "")
    assert repository.state() == first and (repository.path / "src/b.py").exists()


async def test_a_landing_that_the_disk_refuses(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the checkout: all is as it was."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)
    first, refs = repository.state(), repository.git("for-each-ref")
    write = CheckoutWriter._write
    written: list[str] = []

    def full(checkout: CheckoutWriter, file: CheckoutFile) -> None:
        if file.path == "new.txt" and not written:
            written.append(file.path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(checkout, file)

    monkeypatch.setattr(CheckoutWriter, "_write", full)
    with pytest.raises(InsufficientDisk):
        await land(services, space, branch="main")
    assert (repository.state(), repository.git("for-each-ref")) == (first, refs) and written
    assert (await services.landings.list(LOCAL, 1))[0].state is LandingState.UNDONE
    await land(services, space, branch="main")


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "plain"])
async def test_a_full_disk_that_keeps_it_from_being_taken_back(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    """What was there before is not forgotten: the next landing or undo finishes what was begun."""
    if not has_git:
        shutil.rmtree(repository.path / ".git")
    before = {one.name: one.read_text() for one in repository.path.glob("*.txt")}
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo a | tee -a a.txt > new.txt; echo a >> old.txt")
    asked = {"branch": "main"} if has_git else {}
    write = CheckoutWriter._write

    @contextlib.contextmanager
    def full() -> Iterator[None]:
        written: list[str] = []

        def refused(checkout: CheckoutWriter, file: CheckoutFile) -> None:
            written.append(file.path)
            if len(written) > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(checkout, file)

        with monkeypatch.context() as patch:
            patch.setattr(CheckoutWriter, "_write", refused)
            with pytest.raises(LandingHalfDone):
                yield

    with full():
        await land(services, space, **asked)
    with pytest.raises(NothingToLand) if has_git else pytest.raises(LandingRefused):
        await land(services, space, **asked)
    assert (await services.landings.list(LOCAL, 10))[-1].state is LandingState.LANDED
    assert (repository.path / "new.txt").exists()
    with full():
        await services.landings.undo(LOCAL, "")
    with pytest.raises(NotUndoable):
        await services.landings.undo(LOCAL, "")
    assert {one.name: one.read_text() for one in repository.path.glob("*.txt")} == before
    await land(services, space, **asked)


async def test_a_project_without_git(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files themselves change, if nobody changed them meanwhile, and change back."""
    plain = Repository(tmp_path / "plain")
    lines = "".join(f"line {number}\n" for number in range(20))
    plain.write(a_txt=lines, src__b_py="print(1)\n", old_txt="old\n", mine_txt="mine\n")
    (plain.path / "a.txt").chmod(0o600)

    def files() -> dict[str, tuple[str, int]]:
        found = (path for path in plain.path.rglob("*") if not path.is_dir())
        return {
            str(one.relative_to(plain.path)): (
                str(one.readlink()) if one.is_symlink() else one.read_text(),
                one.lstat().st_mode,
            )
            for one in found
        }

    first = files()
    space = await make(services, plain.path, name="desk")
    await work(services, space, WORK.replace("git mv", "mv"))
    with pytest.raises(LandingRefused, match="no branches"):
        await land(services, space, branch="topic")
    (plain.path / "a.txt").write_text("changed\n")
    with pytest.raises(LandingRefused, match=r"changes of its own .*a\.txt"):
        await land(services, space)
    (plain.path / "a.txt").write_text(lines)
    assert files() == first

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(CheckoutWriter, "_write", dies)
        with pytest.raises(Died):
            await land(services, space)
    assert not (plain.path / "old.txt").exists() and not (plain.path / "new.txt").exists()
    left = services.settings.data / "review"
    for name in (".land-x", "kept-x"):
        (left / name).mkdir()
    await services.landings.take_up()
    assert len(list(left.iterdir())) == 1, "only what is in a record is kept"
    now = files()
    assert (await services.landings.list(LOCAL, 1))[0].state is LandingState.LANDED
    assert now["new.txt"][0] == "new\n" and "agent 3" in now["a.txt"][0] and "old.txt" not in now
    assert now["a.txt"][1] & 0o777 == 0o600 and now["src/c.py"][1] & 0o111
    await services.landings.undo(LOCAL, "")
    assert files() == first
    assert not list((services.settings.data / "review").iterdir()), "nothing is kept any more"

    # Somebody changes a file before the next daemon looks: all of it or nothing.
    with monkeypatch.context() as patch:
        patch.setattr(CheckoutWriter, "_write", dies)
        with pytest.raises(Died):
            await land(services, space)
    (plain.path / "new.txt").write_text("mine\n")
    await services.landings.take_up()
    assert (await services.landings.list(LOCAL, 1))[0].state is LandingState.UNDONE
    assert files() == {**first, "new.txt": ("mine\n", (plain.path / "new.txt").lstat().st_mode)}
    # Nor of one that was not even written down.
    (plain.path / "new.txt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(services.store, "write", dies)
        with pytest.raises(Died):
            await land(services, space)
    assert list((services.settings.data / "review").iterdir()) and files() == first
    await services.landings.take_up()
    assert not list((services.settings.data / "review").iterdir()), "nothing is kept any more"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
async def test_what_lands_belongs_to_the_projects_owner(
    services: Services, repository: Repository, ordinary_user: Account
) -> None:
    """As root: git works as the account whose repository it is."""
    folders = (repository.path, *repository.path.rglob("*"))
    for path in folders:
        os.lchown(path, *ordinary_user)
    for path in repository.path.parents:
        if path.owner() == "root" and path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o055)
    space = await make(services, repository.path, name="desk")
    await work(services, space, WORK)
    await land(services, space, branch="main")
    others = [
        str(path.relative_to(repository.path))
        for path in (repository.path, *repository.path.rglob("*"))
        if path.lstat().st_uid != ordinary_user[0]
    ]
    assert others == []


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "checked_out or without_git or meanwhile")


def _given(repository: Repository, account: Account) -> None:
    for path in (repository.path, *repository.path.rglob("*")):
        os.lchown(path, *account)
    for path in repository.path.parents[:-1]:
        path.chmod(path.stat().st_mode | 0o055)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
def test_another_account_reads_nothing_of_roots(
    repository: Repository, ordinary_user: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root: the git that works as the project's account has no variable of ours."""
    _given(repository, ordinary_user)
    monkeypatch.setenv("OWNERS_API_KEY", "a key of root's")
    before = _children()
    with ProjectRepository(repository.path / ".git").contents():
        (git,) = _children() - before
        words = ["cat", f"/proc/{git}/cmdline", f"/proc/{git}/environ"]
        seen = run_as(ordinary_user, words)
    assert seen.returncode == 0 and "cat-file" in seen.stdout
    assert "a key of root's" not in seen.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
def test_another_account_holds_what_git_says(
    repository: Repository, ordinary_user: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can open the output of a git that works as it, and so keep us from seeing its end."""
    _given(repository, ordinary_user)
    oid = repository.git("-c", "safe.directory=*", "rev-parse", "HEAD:a.txt")
    before = _children()
    monkeypatch.setattr(project, "LOCAL_S", 3.0)
    with TemporaryFile() as file, ProjectRepository(repository.path / ".git").contents() as copy:
        copy(oid, file.fileno())
        (git,) = _children() - before
        words = [interpreter_for(ordinary_user).executable, "-c", _HOLD, git]
        uid, gid = ordinary_user
        started = subprocess.Popen(
            words, stdout=subprocess.PIPE, user=uid, group=gid, extra_groups=[]
        )
        with started as holder:
            assert holder.stdout is not None and holder.stdout.readline()
            try:
                with pytest.raises(GitTimeout):
                    copy(oid, file.fileno())
            finally:
                holder.kill()


_HOLD = """
import ctypes, os, signal, sys, time
pid = int(sys.argv[1])
# pidfd_getfd, as a debugger may.
held = ctypes.CDLL(None, use_errno=True).syscall(438, os.pidfd_open(pid), 1, 0)
assert held >= 0, os.strerror(ctypes.get_errno())
os.kill(pid, signal.SIGKILL)
print("held", flush=True)
time.sleep(100)
"""


def _children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


@pytest.mark.parametrize("way", ["gone/../../made", "src/../../made", "gone/.git/hooks", "./made"])
def test_the_projects_git_names_what_is_not_in_the_project(
    repository: Repository, ordinary_user: Account, way: str
) -> None:
    """It takes every name; and whose it is can exchange what was checked when it landed."""
    first = repository.git("rev-parse", "HEAD")
    tree = repository.git("rev-parse", "HEAD:src")
    for name in reversed(way.split("/")):
        tree = _tree_of(repository, name, tree)
    after = repository.git("commit-tree", tree, "-p", first, "-m", "lies")
    if os.geteuid() == 0:
        _given(repository, ordinary_user)
    folder = repository.path / ".git"
    there = sorted(repository.path.parent.rglob("*"))
    checkout = ProjectCheckout(ProjectRepository(folder), folder, repository.path)
    with pytest.raises(LandingRefused, match="not in the project"):
        checkout.check(first, after)
    with pytest.raises(CarrelError):
        checkout.bring_or_leave(first, after)
    with pytest.raises(LandingRefused, match="not in the project"):
        _wanted(ProjectRepository(folder), after)
    assert sorted(repository.path.parent.rglob("*")) == there


@pytest.mark.parametrize("path", ["../made/x", "src/../../made/x", "made/../../x/y"])
def test_a_writer_stays_in_its_folder(repository: Repository, path: str) -> None:
    there = sorted(repository.path.parent.rglob("*"))
    top = os.open(repository.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        writer = CheckoutWriter(top, Owner(os.geteuid(), os.getegid()), lambda _oid, _file: None)
        with pytest.raises((CarrelError, OSError)):
            writer.bring(CheckoutFile(path, Version(0, ""), Version(0o100644, "1" * 40)))
    finally:
        os.close(top)
    inside = {repository.path / "made"}
    assert set(repository.path.parent.rglob("*")) - inside == set(there)


def test_the_projects_git_says_too_much(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_MAX_OUTPUT", 100)
    with pytest.raises(GitFailed, match="more of the project than can be held"):
        ProjectRepository(repository.path / ".git").run("ls-files", "-s")


def _tree_of(repository: Repository, name: str, below: str) -> str:
    return _object(repository, "tree", b"40000 %s\0" % name.encode() + bytes.fromhex(below))


def _object(repository: Repository, kind: str, content: bytes) -> str:
    """Also as git would not make it."""
    words = ("hash-object", "-t", kind, "-w", "--literally", "--stdin")
    done = subprocess.run(
        ["git", *words], cwd=repository.path, input=content, capture_output=True, check=True
    )
    return done.stdout.decode().strip()
