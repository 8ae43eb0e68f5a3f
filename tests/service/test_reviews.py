"""What a space changed is told, kept and copied out, whatever stands in its tree."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import TreeUnavailable, UnexportedChanges
from carrel.domain.spaces import Retention, SpaceState
from carrel.domain.trees import ReviewQuery
from carrel.trees.review import TreeReviews
from tests.service.rig import make, run

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
    for _ in await services.files.archive(LOCAL, space.space_id, "."):
        pass
    after = await services.spaces.review(LOCAL, space.space_id)
    assert after.left_files == 0 and bool(after.left_commits) == (kind != "a folder")
    removal = await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert removal.kept is not None and not removal.lost
    back = await services.spaces.undelete(LOCAL, space.space_id)
    assert (await run(services, back, "cat w"))[1] == "w\n"


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


async def test_what_was_only_staged_is_kept(services: Services, project: Path) -> None:
    words = ["git", "init", "-q", str(project)]
    await asyncio.to_thread(lambda: subprocess.run(words, check=True, timeout=60))
    space = await make(services, project)
    await run(services, space, "echo work > s; git add s; rm s")
    removal = await services.spaces.remove(LOCAL, space.space_id)
    assert removal.kept is not None
    back = await services.spaces.undelete(LOCAL, space.space_id)
    assert (await run(services, back, "git show :s"))[1] == "work\n"
