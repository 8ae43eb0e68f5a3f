"""What a space changed is told, kept and copied out, whatever stands in its tree."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import CopyNotFound, TreeUnavailable, UnexportedChanges
from carrel.domain.spaces import Retention, Space, SpaceState
from carrel.domain.trees import ReviewQuery
from carrel.service import files
from carrel.trees import review
from carrel.trees.review import TreeReviews
from tests.accounts import Account
from tests.service.rig import make, run
from tests.trees.again import run_again

LINKS = {
    ".git": "mkdir s; ln -s /tmp s/.git",
    ".git, around a repository": "git init -q; mv .git real; ln -s real .git",
    ".git/refs": "git init -q; mv .git/refs .git/r; ln -s r .git/refs",
    ".git/objects": "git init -q; mv .git/objects .git/o; ln -s o .git/objects",
    "a pipe": "mkfifo .git",
    "a folder": "mv notes other; ln -s other notes",
}


@pytest.mark.parametrize("kind", LINKS)
async def test_links_in_place_of_folders(services: Services, project: Path, kind: str) -> None:
    space = await make(services, project)
    git = "export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e"
    commit = "test -d .git -o -L .git && git commit -q --allow-empty -m work 2> /dev/null || :"
    record, said = await run(services, space, f"{git}; echo w > w; {LINKS[kind]}; {commit}")
    assert record.exit is not None and record.exit.code == 0, said
    found = await services.spaces.review(LOCAL, space.space_id, ReviewQuery(most=100))
    assert "w" in {change.path for change in found.listed} and found.left_files
    assert bool(found.left_commits) == (kind != "a folder")
    await copied(services, space, ".")
    after = await services.spaces.review(LOCAL, space.space_id)
    assert after.left_files == 0 and bool(after.left_commits) == (kind != "a folder")
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is not None and not removal.lost
    back = await services.spaces.undelete(LOCAL, space.space_id)
    assert (await run(services, back, "cat w"))[1] == "w\n"


@pytest.mark.parametrize("mode", ["0", "111", "444"])
async def test_folders_that_their_owner_may_not_enter(services: Services, mode: str) -> None:
    """The tree's own folder too, and they stay as they are."""
    space = await make(services)
    closed = f"mkdir d; echo w > d/w; chmod {mode} d; echo w > w; chmod {mode} ."
    await run(services, space, closed)
    for _ in range(2):
        found = await services.spaces.review(LOCAL, space.space_id, ReviewQuery(most=100))
        assert {change.path for change in found.listed} == {"d/w", "w"} and found.left_files == 2
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is not None and not removal.lost
    back = await services.spaces.undelete(LOCAL, space.space_id)
    for _ in range(2):
        assert len(await left(services, back)) == 2
        said = (await run(services, back, "stat -c %a d; cat w"))[1]
        assert said == f"{mode}\nw\n"


async def test_what_cannot_be_compared_is_kept(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, and clean-up goes on with the others."""
    old = Retention(ttl_s=1800)
    asked = await make(services, retention=old)
    forced = await make(services, retention=Retention(ttl_s=1800, discard=True))
    for space in (asked, forced):
        await run(services, space, "echo precious > w; echo more > v")

    def refuse(*_: object) -> None:
        raise TreeUnavailable("The machine refused to compare the tree.")

    monkeypatch.setattr(TreeReviews, "review", refuse)
    services.journal.clock = lambda: time.time() + 3600
    report = await services.collector.run(LOCAL, dry_run=True)
    told = {action.target: action for action in report.actions}
    assert told[forced.space_id].done and not told[asked.space_id].done
    assert "refused to compare" in told[asked.space_id].why
    await services.collector.run(LOCAL)
    states = [(await services.spaces.get(LOCAL, space.space_id)).state for space in (asked, forced)]
    assert states == [SpaceState.READY, SpaceState.REMOVED]
    removal = await services.spaces.remove(LOCAL, asked.space_id, force=True)
    assert removal.changes == 2 and removal.kept is not None and removal.kept.changes == 2
    monkeypatch.undo()
    for space in (asked, forced):
        back = await services.spaces.undelete(LOCAL, space.space_id)
        assert (await run(services, back, "cat w"))[1] == "precious\n"
        with pytest.raises(UnexportedChanges):
            await services.spaces.remove(LOCAL, back.space_id)


STAGE = "mkdir -p d/e; echo work > d/e/s; git add d/e/s"
STAGED = {
    "deleted": (f"{STAGE}; rm d/e/s", 1, 0),
    "reverted": ("cp a /tmp/a; echo 2 > a; git add a; cat /tmp/a > a", 1, 0),
    "packed": (f"{STAGE}; rm d/e/s; git gc -q", 1, 0),
    "in a compressed index": (f"git update-index --index-version 4; {STAGE}; rm d/e/s", 1, 0),
    "in a further checkout": (f"git worktree add -q --detach /tmp/w; cd /tmp/w; {STAGE}", 1, 0),
    "in a submodule": (
        "git init -q lib; git -C lib commit -q --allow-empty -m l; git submodule -q add ./lib lib;"
        "git submodule absorbgitdirs 2> /dev/null; cd lib; echo w > s; git add s; rm s",
        # With .gitmodules.
        2,
        1,
    ),
    "worked on": (f"{STAGE}; echo more >> d/e/s", 1, 0),
    "committed": (f"{STAGE}; git commit -qm w; rm d/e/s", 0, 1),
    "committed and reverted": ("cp a /tmp/a; echo 2 > a; git commit -qam w; cat /tmp/a > a", 0, 1),
    "in the base": ("cp a b; git add b; rm b", 0, 0),
    "not yet": ("echo work > s; git add -N s; rm s", 0, 0),
    "looked at": ("touch a; git status; git hash-object -w a", 0, 0),
}


@pytest.mark.parametrize("kind", STAGED)
async def test_staged_work_counts_until_it_is_copied_out(
    services: Services, project: Path, kind: str
) -> None:
    """If it is nowhere else: neither in a file that changed, nor in a commit, nor in the base."""
    begin = (
        "git init -q && echo 1 > a && git add . && git -c user.name=n -c user.email=e commit -qm 1"
    )
    words = ["sh", "-c", begin]
    await asyncio.to_thread(lambda: subprocess.run(words, cwd=project, check=True, timeout=60))
    space = await make(services, project)
    script, files, commits = STAGED[kind]
    record, said = await run(services, space, f"set -e; {script}")
    assert record.exit is not None and record.exit.code == 0, said
    found = await services.spaces.review(LOCAL, space.space_id)
    assert (found.left_files, found.left_commits) == (files, commits), found.left
    assert await copied(services, space, ".") == []
    await services.spaces.remove(LOCAL, space.space_id)


async def test_what_was_only_staged_is_kept(services: Services, project: Path) -> None:
    words = ["git", "init", "-q", str(project)]
    await asyncio.to_thread(lambda: subprocess.run(words, check=True, timeout=60))
    space = await make(services, project)
    await run(services, space, "echo work > s; git add s; rm s")
    with pytest.raises(UnexportedChanges) as caught:
        await services.spaces.remove(LOCAL, space.space_id)
    assert caught.value.details["first"] == ["staged s"]
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is not None
    back = await services.spaces.undelete(LOCAL, space.space_id)
    assert (await run(services, back, "git show :s"))[1] == "work\n"


SUBMODULE = """
git init -q && git init -q lib && git -C lib commit -q --allow-empty -m 1
git submodule -q add --name {name} ./lib lib && git submodule absorbgitdirs 2> /dev/null
git commit -qm 2
"""
COMMIT = "git checkout -qb b; echo work > s; git add s; git commit -qm w; git checkout -q -"
IN_SUBMODULE = {
    "a/lib": ("echo work > s; git add s; rm s", (1, 0), "git show :s"),
    "docs/index": (COMMIT, (0, 1), "git show b:s"),
    "x/logs": (COMMIT, (0, 1), "git show b:s"),
    "lib": ("echo work > ../.git/modules/lib/note", (0, 0), "cat ../.git/modules/lib/note"),
}


@pytest.mark.parametrize("name", IN_SUBMODULE)
async def test_work_that_only_a_submodule_has(services: Services, project: Path, name: str) -> None:
    """Its folder is called as the submodule is, with slashes and as git's own files are."""
    whose = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    begin = f"export {' '.join(f'GIT_{one}=n' for one in whose)}; set -e; "
    words = ["sh", "-c", begin + SUBMODULE.format(name=name)]
    await asyncio.to_thread(lambda: subprocess.run(words, cwd=project, check=True, timeout=60))
    space = await make(services, project)
    script, expected, again = IN_SUBMODULE[name]
    record, said = await run(services, space, f"{begin} cd lib; {script}")
    assert record.exit is not None and record.exit.code == 0, said
    found = await services.spaces.review(LOCAL, space.space_id)
    assert (found.left_files, found.left_commits) == expected, found.left
    assert {one.repository for one in found.commits} == ({name} if expected[1] else set())
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is not None
    back = await services.spaces.undelete(LOCAL, space.space_id)
    assert (await run(services, back, f"cd lib; {again}"))[1] == "work\n"


async def left(services: Services, space: Space) -> list[str]:
    return list((await services.spaces.review(LOCAL, space.space_id)).left)


async def copied(services: Services, space: Space, path: str) -> list[str]:
    ticket, pieces = await services.files.archive(LOCAL, space.space_id, path, zstd=False)
    for _ in pieces:
        pass
    await services.files.copied(LOCAL, space.space_id, ticket)
    return await left(services, space)


async def test_what_was_sent_is_copied_out(services: Services, project: Path) -> None:
    """New files, files of the project in a folder that was moved, and deletions."""
    (project / "deep" / "er").mkdir(parents=True)
    (project / "deep" / "er" / "b").write_text("b")
    space = await make(services, project)
    work = "mkdir -p new/repo; echo x > new/x; mkdir into; mv deep into/moved; rm notes/a.txt"
    git = "git init -q; git config user.name n; git config user.email e; echo y > y; git add y"
    script = f"{work}; cd new/repo; {git}; git commit -qm work"
    record, said = await run(services, space, script)
    assert record.exit is not None and record.exit.code == 0, said
    commit = next(one for one in await left(services, space) if one.startswith("commit "))
    moved = [one for one in await left(services, space) if "into/moved" in one]
    gone = "deleted notes/a.txt"
    assert moved and gone in await left(services, space)
    assert not any("into/" in one for one in await copied(services, space, "into/moved/er"))
    assert gone in await copied(services, space, "new/x")
    assert gone not in await copied(services, space, "notes")
    assert await left(services, space) == ["added new/repo/y", commit]
    assert await copied(services, space, "new") == []
    await run(services, space, "echo more >> new/x; rm into/moved/er/b")
    assert sorted(await left(services, space)) == ["added new/x", "deleted deep/er/b"]


async def test_what_changes_while_it_is_sent_is_not(services: Services, project: Path) -> None:
    space = await make(services, project)
    await run(services, space, "for i in a b c; do head -c 600000 /dev/urandom > $i; done")
    ticket, pieces = await services.files.archive(LOCAL, space.space_id, ".", zstd=False)
    next(iter(pieces))
    with pytest.raises(CopyNotFound):
        await services.files.copied(LOCAL, space.space_id, ticket)
    await run(services, space, "echo more >> a; rm c; echo new > d; echo late > 1")
    assert sum(map(len, pieces)) > 600_000
    assert len(await left(services, space)) == 4
    await services.files.copied(LOCAL, space.space_id, ticket)
    assert await left(services, space) == ["added 1", "added a", "added d"]


async def test_the_newest_of_what_was_copied_out_has_room(
    services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await make(services, project)
    monkeypatch.setattr(review, "_MAX_TAKEN", 500)
    for number in range(20):
        await run(services, space, f"echo {number} > work; echo {number} > other")
        assert await copied(services, space, ".") == []


def test_copies_that_nobody_has_heard_of_again_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_COPIES", 3)
    monkeypatch.setattr(files, "MAX_SENT", 100)
    now = 0.0
    copies = files.Copies(lambda: now)

    def sent(account: str, content: bytes) -> str:
        copy = copies.begin(account, "sp_a", lambda: content)
        copy.sent()
        return copy.ticket

    def known(account: str, *tickets: str) -> list[bytes | None]:
        found: list[bytes | None] = []
        for ticket in tickets:
            try:
                found.append(copies.take(account, "sp_a", ticket))
            except CopyNotFound:
                found.append(None)
        return found

    theirs = sent("b", b"other")
    many = [sent("a", b"%d" % number) for number in range(4)]
    assert known("a", *many) == [None, b"1", b"2", b"3"]
    assert known("a", *[sent("a", bytes(60)) for _ in range(2)]) == [None, bytes(60)]
    assert known("a", sent("a", bytes(101)), theirs) == [None, None]
    ours = sent("a", b"late")
    now = files.COPY_S
    assert known("b", theirs) == [b"other"]
    now += 1
    assert known("a", ours) == [None]


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "may_not_enter")
