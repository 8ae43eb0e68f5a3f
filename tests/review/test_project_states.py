"""Projects as people have them: the right result, or a refusal that says what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import LandingRefused
from carrel.domain.landing import LandingState
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Space, SpaceRequest
from carrel.review.checkout import ProjectCheckout
from tests.review.conftest import Repository, land, work
from tests.service.rig import make


async def desk(services: Services, place: Path, name: str = "desk") -> Space:
    asked = SpaceRequest(Project(ProjectKind.FOLDER, str(place)), name=name, follow_git=True)
    return await services.spaces.create(LOCAL, asked)


async def test_another_git_is_at_work(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the landing begins, and when its files are written already: nothing has moved."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo n > n.txt; rm old.txt; echo more >> a.txt")
    first, refs = repository.state(), repository.git("for-each-ref")
    lock = repository.path / ".git/index.lock"
    lock.touch()
    with pytest.raises(LandingRefused, match="Another git") as refusal:
        await land(services, space, branch="main")
    assert "remove" in refusal.value.hint
    lock.unlink()
    assert (repository.state(), repository.git("for-each-ref")) == (first, refs)
    check = ProjectCheckout.check

    def late(checkout: ProjectCheckout, *told: str) -> None:
        check(checkout, *told)
        lock.touch()

    with monkeypatch.context() as patch:
        patch.setattr(ProjectCheckout, "check", late)
        with pytest.raises(LandingRefused, match="Another git"):
            await land(services, space, branch="main")
    lock.unlink()
    assert (repository.state(), repository.git("for-each-ref")) == (first, refs)
    assert {one.state for one in await services.landings.list(LOCAL, 9)} == {LandingState.UNDONE}
    lock.touch()
    await land(services, space)
    lock.unlink()
    await land(services, space, branch="main")
    assert repository.git("status", "--porcelain") == ""


@pytest.mark.parametrize("kind", ["detached", "worktree"])
async def test_a_new_branch_begins_where_the_checkout_is(
    services: Services, repository: Repository, tmp_path: Path, kind: str
) -> None:
    """Also if that is on no branch, or if the repository has another checkout elsewhere."""
    place = repository
    if kind == "detached":
        repository.git("checkout", "-q", "--detach")
    else:
        place = Repository(tmp_path / "linked")
        repository.git("worktree", "add", "-q", "-b", "linked", str(place.path))
        place.commit("of the linked one", linked_txt="linked\n")
    space = await desk(services, place.path)
    await work(services, space, "echo n > n.txt; test ! -e linked.txt || echo n >> linked.txt")
    now = place.commit("moved on", later_txt="later\n")
    await land(services, space)
    assert place.git("rev-parse", "carrel/desk^") == now


@pytest.mark.parametrize("kind", ["shallow", "sparse", "submodule", "signed"])
async def test_kinds_of_clones(
    services: Services, repository: Repository, tmp_path: Path, kind: str
) -> None:
    repository.commit("second", a_txt="line 3\n", src__d_py="d\n")
    place = Repository(tmp_path / "clone")
    from_there = f"file://{repository.path}"
    extra = ["--depth=1"] if kind == "shallow" else []
    repository.git("clone", "-q", *extra, from_there, str(place.path))
    if kind == "sparse":
        place.git("sparse-checkout", "set", "--cone", "--sparse-index", "docs")
    elif kind == "submodule":
        allow = ("-c", "protocol.file.allow=always")
        place.git(*allow, "submodule", "--quiet", "add", from_there, "sub")
        place.commit("with a submodule")
    elif kind == "signed":
        for name, value in (("commit.gpgSign", "true"), ("gpg.program", "false")):
            place.git("config", name, value)
    space = await desk(services, place.path)
    await work(services, space, "sed -i 's/line 3$/agent 3/' a.txt; mkdir -p new; echo n > new/n")
    before = place.git("status", "--porcelain")
    await land(services, space)
    assert place.git("show", "carrel/desk:a.txt") == "agent 3"
    names = place.git("diff", "--name-only", "main", "carrel/desk").split("\n")
    assert names == ["a.txt", "new/n"] and place.git("status", "--porcelain") == before
    await land(services, space, branch="main")
    assert (place.path / "a.txt").read_text() == "agent 3\n"
    assert place.git("status", "--porcelain") == before
    await services.landings.undo(LOCAL, "")
    assert (place.path / "a.txt").read_text() == "line 3\n"
    if kind == "submodule":
        await work(services, space, "echo x >> sub/a.txt")
        with pytest.raises(LandingRefused, match="submodule") as refusal:
            await land(services, space, branch="other")
        assert "carrel cp" in refusal.value.hint


async def test_a_partial_clone(services: Services, repository: Repository, tmp_path: Path) -> None:
    """What is missing is asked of no remote."""
    repository.commit("second", a_txt="line 3\n")
    repository.git("config", "uploadpack.allowFilter", "true")
    place = Repository(tmp_path / "clone")
    words = ("clone", "-q", "--filter=blob:none", f"file://{repository.path}")
    repository.git(*words, str(place.path))
    space = await desk(services, place.path)
    await work(services, space, "echo n > n.txt")
    refs = place.git("for-each-ref")
    with pytest.raises(LandingRefused, match="partial clone") as refusal:
        await land(services, space)
    assert "--patch" in refusal.value.hint and place.git("for-each-ref") == refs


async def test_history_that_was_written_anew(services: Services, repository: Repository) -> None:
    """A force-push, and another project at the same path: the work lands on what is there now, and
    the objects are whole; or it is said what is missing."""
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo n > n.txt")
    repository.git("commit", "-q", "--amend", "-m", "anew")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "-q", "--prune=now")
    now = repository.git("rev-parse", "HEAD")
    try:
        await land(services, space)
    except LandingRefused as refusal:
        assert "lost the commit" in refusal.message and "carrel cp" in refusal.hint
    else:
        assert repository.git("rev-parse", "carrel/desk^") == now
    repository.git("fsck", "--strict")
    shutil.rmtree(repository.path)
    repository.path.mkdir()
    repository.git("init", "-q", "-b", "main")
    other = repository.commit("another project", z_txt="z\n")
    refs = repository.git("for-each-ref")
    with pytest.raises(LandingRefused, match="lost the commit") as refused:
        await land(services, space, branch="main")
    assert "carrel cp" in refused.value.hint and repository.git("for-each-ref") == refs
    assert repository.git("rev-parse", "HEAD") == other
    repository.git("fsck", "--strict")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{:064d}\nsize 4\n"


@pytest.mark.parametrize("checkout", ["pointers", "content"])
async def test_pointers_to_large_files(
    services: Services, repository: Repository, checkout: str
) -> None:
    """Whether the checkout has the files or their pointers: what is not changed stays as it is, and
    what is changed or new would have to be stored where only the project's filter puts it."""
    repository.write(_gitattributes="*.dat filter=lfs diff=lfs merge=lfs -text\n")
    repository.commit("large", x_dat=POINTER.format(1))
    for name in ("clean", "smudge"):
        repository.git("config", f"filter.lfs.{name}", "cat")
    if checkout == "content":
        repository.write(x_dat="big\n")
    space = await make(services, repository.path, name="desk")
    await work(services, space, "sed -i 's/line 3$/agent 3/' a.txt")
    before = (repository.path / "x.dat").read_text()
    assert (await land(services, space, branch="main")).files == 1
    assert repository.git("show", "main:x.dat") + "\n" == POINTER.format(1)
    assert (repository.path / "x.dat").read_text() == before
    refs = repository.git("for-each-ref")
    for script in ("echo other > x.dat", "git checkout -q x.dat; echo new > y.dat"):
        if checkout == "content":
            script = script.replace("git checkout -q x.dat", "echo big > x.dat")
        await work(services, space, script)
        with pytest.raises(LandingRefused, match=r"LFS|by a filter") as refusal:
            await land(services, space)
        assert "carrel cp" in refusal.value.hint and repository.git("for-each-ref") == refs
    if checkout == "pointers":
        text = POINTER.format(2)
        await work(services, space, f"rm y.dat; printf '{text}' > x.dat".replace("\n", "\\n"))
        await land(services, space, branch="main")
        assert repository.git("show", "main:x.dat") + "\n" == text


async def test_signed_commits(services: Services, repository: Repository) -> None:
    """The project's stay as they are. What the agent signed lands by another name, unsigned."""
    signed = sign(repository)
    space = await make(services, repository.path, name="desk")
    own = "git cat-file commit HEAD | sed '/^committer/a gpgsig x' | git hash-object -t commit -w"
    script = f"git reset -q --hard $({own} --stdin); git cat-file commit HEAD | grep -q gpgsig"
    await work(services, space, f"echo n > n.txt; git add -A; git commit -qm own; {script}")
    await land(services, space, branch="main", commits=True)
    assert repository.git("rev-parse", "main^") == signed
    assert "gpgsig" in repository.git("cat-file", "commit", signed)
    assert "gpgsig" not in repository.git("cat-file", "commit", "main")
    repository.git("fsck", "--strict")
    await services.landings.undo(LOCAL, "")
    assert repository.git("rev-parse", "main") == signed


def sign(repository: Repository) -> str:
    """Gives the last commit a signature."""
    head, _, message = repository.git("cat-file", "commit", "HEAD").partition("\n\n")
    lines = "-----BEGIN SSH SIGNATURE-----\n U1NI\n -----END SSH SIGNATURE-----"
    file = repository.path.parent / "signed"
    file.write_text(f"{head}\ngpgsig {lines}\n\n{message}\n")
    signed = repository.git("hash-object", "-t", "commit", "-w", str(file))
    repository.git("reset", "-q", "--hard", signed)
    return signed


@pytest.mark.parametrize("commits", [False, True], ids=["squash", "commits"])
async def test_objects_of_another_hash(services: Services, tmp_path: Path, commits: bool) -> None:
    place = Repository(tmp_path / "new")
    place.path.mkdir()
    place.git("init", "-q", "-b", "main", "--object-format=sha256")
    first = place.commit("first", a_txt="line 3\n", old_txt="old\n")
    space = await make(services, place.path, name="desk")
    script = "git config user.name n; git config user.email m; echo n > n; git add -A; git commit"
    await work(services, space, f"{script} -qm own; sed -i 's/line 3$/agent 3/' a.txt; rm old.txt")
    before = place.git("for-each-ref")
    try:
        await land(services, space, branch="main", commits=commits)
    except LandingRefused as refusal:
        assert commits and "--squash" in refusal.hint and place.git("for-each-ref") == before
        return
    assert len(place.git("rev-parse", "main")) == 64
    assert place.git("rev-list", "--count", f"{first}..main") == str(1 + commits)
    assert (place.path / "a.txt").read_text() == "agent 3\n"
    assert place.git("status", "--porcelain") == ""
    place.git("fsck", "--strict")
    await services.landings.undo(LOCAL, "")
    assert place.git("rev-parse", "main") == first and (place.path / "old.txt").exists()
