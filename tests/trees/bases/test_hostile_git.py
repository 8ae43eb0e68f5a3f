"""Whatever a project's git folder names, nothing outside of the project gets into a base."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from carrel.domain.errors import ProjectChanged, ProjectInvalid
from carrel.domain.projects import GitReach, Progress
from carrel.domain.trees import Base
from carrel.trees.bases.store import BaseStore
from tests.accounts import Account
from tests.trees.again import run_again
from tests.trees.bases.helpers import request, write
from tests.trees.git.repositories import commit, git, make_repository

SECRET = b"what nobody may read"
OID = "ab" + "c" * 38


def outside(tmp_path: Path) -> Path:
    """A folder of the owner's, with the names of git's own files in it."""
    folder = tmp_path / "outside"
    for name in (
        "secret",
        "config",
        "packed-refs",
        f"{OID[:2]}/{OID[2:]}",
        f"pack/pack-{OID}.pack",
        f"pack/pack-{OID}.idx",
        f"pack/pack-{OID}.promisor",
        "refs/heads/main",
        "logs/HEAD",
    ):
        write(folder / name, SECRET)
    return folder


Plant = Callable[[Path, Path], None]


def link_in(name: str, target: str) -> Plant:
    def plant(git_folder: Path, there: Path) -> None:
        place = git_folder / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(target.format(there))

    return plant


def whole_link(git_folder: Path, there: Path) -> None:
    shutil.rmtree(git_folder)
    git_folder.symlink_to(there)


def pointer(text: str) -> Plant:
    def plant(git_folder: Path, there: Path) -> None:
        shutil.rmtree(git_folder)
        git_folder.write_text(f"gitdir: {text.format(there)}\n")

    return plant


def fake_repository(git_folder: Path, there: Path) -> None:
    """In the project, but made of links."""
    inner = git_folder.parent / "inner"
    inner.mkdir()
    (inner / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("objects", "refs", "logs"):
        (inner / name).symlink_to(there)
    pointer(str(inner))(git_folder, there)


def shared(git_folder: Path, there: Path) -> None:
    (git_folder / "commondir").write_text(f"{there}\n")


def borrowed(text: str) -> Plant:
    def plant(git_folder: Path, there: Path) -> None:
        write(git_folder / "objects/info/alternates", text.format(there))

    return plant


PLANTS: dict[str, Plant] = {
    "file": link_in("s", "{}/secret"),
    "folder": link_in("d", "{}"),
    "relative": link_in("r", "../../../outside/secret"),
    "through proc": link_in("p", "/proc/self/root{}/secret"),
    "hooks": link_in("hooks", "{}"),
    "objects": link_in("objects", "{}"),
    "refs": link_in("refs", "{}/refs"),
    "packed refs": link_in("packed-refs", "{}/packed-refs"),
    "settings": link_in("config", "{}/config"),
    "index": link_in("index", "{}/secret"),
    "worktrees": link_in("worktrees", "{}"),
    "modules": link_in("modules", "{}"),
    "all of it": whole_link,
    "pointer": pointer("{}"),
    "pointer to the root": pointer("/"),
    "pointer through proc": pointer("/proc/self/root{}"),
    "pointer to a pipe": pointer("/dev/stdin"),
    "repository of links": fake_repository,
    "common folder": shared,
    "alternates": borrowed("{}\n"),
    "quoted alternates": borrowed('"{}"\n'),
    "relative alternates": borrowed("../../../../outside\n"),
}


def holds(base: Base, what: bytes) -> list[str]:
    """The files of a base that have something in them. By its layers: to mount them is not
    for everybody."""
    return [
        os.path.join(folder, name)
        for layer in base.layers
        for folder, _, names in os.walk(layer)
        for name in names
        if os.path.isfile(path := os.path.join(folder, name))
        and not os.path.islink(path)
        and what in Path(path).read_bytes()
    ]


def in_base(base: Base, path: str) -> Path | None:
    """Where an entry is, in the uppermost layer that has one; not behind a link."""
    found = (layer / path for layer in base.layers if os.path.lexists(layer / path))
    inside = (one for one in found if not any(above.is_symlink() for above in one.parents))
    return next(inside, None)


@pytest.mark.parametrize("reach", list(GitReach))
@pytest.mark.parametrize("kind", PLANTS)
def test_nothing_outside_is_read(
    store: BaseStore, tmp_path: Path, kind: str, reach: GitReach
) -> None:
    there = outside(tmp_path)
    project = tmp_path / "project"
    for folder in (project, project / "lib"):
        write(folder / ".git/HEAD", "ref: refs/heads/main\n")
        for name in ("objects", "refs", "logs"):
            (folder / ".git" / name).mkdir()
        PLANTS[kind](folder / ".git", there)
    base = store.build(request(project, git_reach=reach))
    assert not holds(base, SECRET)
    # Nor is anything written there.
    assert (there / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("reach", [GitReach.NONE, GitReach.AGREED])
@pytest.mark.parametrize("kind", ["all of it", "pointer", "common folder", "objects", "refs"])
def test_nor_a_repository_of_somebody_who_did_not_say_so(
    store: BaseStore, tmp_path: Path, kind: str, reach: GitReach
) -> None:
    there = make_repository(tmp_path / "there")
    git(there, "tag", "-a", "-m", "a tag", "v1")
    project = make_repository(tmp_path / "project")
    PLANTS[kind](project / ".git", there / ".git")
    base = store.build(request(project, git_reach=reach))
    tag = git(there, "rev-parse", "v1").strip()
    assert not holds(base, tag.encode())
    assert not in_base(base, f".git/objects/{tag[:2]}/{tag[2:]}")
    assert base.skipped


def test_links_in_a_git_folder_stay_links(store: BaseStore, tmp_path: Path) -> None:
    there = outside(tmp_path)
    project = make_repository(tmp_path / "project")
    (project / ".git/s").symlink_to(there / "secret")
    (project / ".git/description").unlink(missing_ok=True)
    (project / ".git/description").symlink_to("HEAD")
    base = store.build(request(project, git_reach=GitReach.AGREED))
    assert os.readlink(base.layers[0] / ".git/s") == str(there / "secret")
    assert os.readlink(base.layers[0] / ".git/description") == "HEAD"
    assert [one.path for one in base.skipped] == [".git/s"]


def test_what_is_left_out_is_told_with_the_way_to_have_it(store: BaseStore, tmp_path: Path) -> None:
    for there in (make_repository(tmp_path / "lender"), tmp_path / "nowhere"):
        project = make_repository(tmp_path / f"at-{there.name}")
        (project / ".git/objects/info/alternates").write_text(f"{there}/.git/objects\n")
        skipped = store.build(request(project, git_reach=GitReach.AGREED)).skipped
        # The same words whether it is there or not.
        assert [one.why.replace(str(there), "X") for one in skipped] == [
            "borrows from X/.git/objects, outside of the project; left out; "
            "`carrel new --follow-git` takes what git needs from there"
        ]


def test_agreement_is_for_these_folders_only(store: BaseStore, tmp_path: Path) -> None:
    first, second = make_repository(tmp_path / "first"), make_repository(tmp_path / "second")
    write(second / "only here", SECRET)
    commit(second, "only here")
    git(tmp_path, "clone", "-q", "--shared", str(first), "project")
    project = tmp_path / "project"
    agreed = store.build(request(project, git_reach=GitReach.AGREE))
    assert not agreed.skipped
    assert store.build(request(project, git_reach=GitReach.AGREED)).base_id == agreed.base_id
    with (project / ".git/objects/info/alternates").open("a") as listed:
        listed.write(f"{second}/.git/objects\n")
    again = store.build(request(project, git_reach=GitReach.AGREED))
    assert [str(second) in one.why for one in again.skipped] == [True]
    oid = git(second, "rev-parse", "HEAD:only here").strip()
    assert not in_base(again, f".git/objects/{oid[:2]}/{oid[2:]}")
    # Nobody else has a share of it.
    other = store.build(request(project))
    assert len(other.skipped) == 2


def test_a_worktree_is_believed_only_if_its_repository_names_it(
    store: BaseStore, tmp_path: Path
) -> None:
    main = make_repository(tmp_path / "main")
    git(main, "worktree", "add", "-q", "-b", "feature", str(tmp_path / "genuine"))
    forged = tmp_path / "forged"
    forged.mkdir()
    shutil.copy(tmp_path / "genuine/.git", forged / ".git")
    for project, has in ((tmp_path / "genuine", True), (forged, False)):
        base = store.build(request(project, git_reach=GitReach.AGREED))
        assert bool(in_base(base, ".git/HEAD")) == has
        assert bool(base.skipped) != has
    # Who is not the owner gets no repository that lies elsewhere.
    base = store.build(request(tmp_path / "genuine"))
    assert not in_base(base, ".git")


def test_only_what_git_needs_comes_from_elsewhere(store: BaseStore, tmp_path: Path) -> None:
    main = make_repository(tmp_path / "main")
    linked = tmp_path / "linked"
    git(main, "worktree", "add", "-q", "-b", "feature", str(linked))
    git(main, "remote", "add", "origin", "https://user:password@example.org/x.git")
    git(main, "config", "core.sshCommand", "steal")
    git(main, "config", "include.path", "/etc/passwd")
    write(main / ".git/hooks/post-checkout", SECRET)
    write(main / ".git/credentials", SECRET)
    write(main / f".git/objects/{OID[:2]}/{OID[2:]}", SECRET)
    (main / ".git/refs/heads/link").symlink_to(outside(tmp_path) / "secret")
    base = store.build(request(linked, git_reach=GitReach.AGREED))
    assert not holds(base, SECRET)
    settings = (base.layers[0] / ".git/config").read_text()
    assert os.path.islink(base.layers[0] / ".git/refs/heads/link")
    assert "https://example.org/x.git" in settings
    assert not any(word in settings for word in ("password", "steal", "include"))
    assert [one.why for one in base.skipped] == ["is not the git object that its name says"]


def test_carrels_own_data_is_never_followed(store: BaseStore, data: Path, tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project")
    listed = project / ".git/objects/info/alternates"
    for there in (data, data / "bases", data.parent):
        listed.write_text(f"{there}\n")
        with pytest.raises(ProjectInvalid, match="own data"):
            store.build(request(project, git_reach=GitReach.AGREE))
    with pytest.raises(ProjectInvalid, match="own data"):
        store.build(request(data / "bases"))


@pytest.mark.parametrize("name", [".git", ".git/refs", "src"])
def test_a_folder_that_becomes_a_link_while_it_is_read(
    store: BaseStore, tmp_path: Path, name: str
) -> None:
    there = outside(tmp_path)
    project = make_repository(tmp_path / "project")
    for below in ("heads", "src"):
        for number in range(100):
            write(there / below / f"f{number}", SECRET)
    swapped: list[Progress] = []

    def swap(step: Progress) -> None:
        if step.stage == "copying" and not swapped:
            swapped.append(step)
            (project / name).rename(tmp_path / "moved")
            (project / name).symlink_to(there)

    try:
        base = store.build(request(project, git_reach=GitReach.AGREED), swap)
    except ProjectChanged:
        return
    finally:
        assert swapped
    assert not holds(base, SECRET)


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    wanted = "(outside_is_read and agreed) or believed_only or only_what or becomes_a_link"
    run_again(__file__, ordinary_user, data, "-k", wanted)
