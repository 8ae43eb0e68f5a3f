"""Files of one space's work are brought into another: all or none, and back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    CarrelError,
    InsufficientDisk,
    LandingHalfDone,
    MessageInvalid,
    NotUndoable,
    PathNotFound,
    SpaceNotFound,
    StateConflict,
    TakeRefused,
)
from carrel.domain.events import EventQuery, EventType
from carrel.domain.spaces import Space
from carrel.domain.takes import UndoRecord, UndoState
from carrel.domain.trees import DIRECT
from carrel.review.checkout import CheckoutFile, CheckoutWriter, ProjectCheckout
from carrel.service.takes import TakeRequest
from tests.review.conftest import Repository
from tests.service.rig import make, run

LOOK = (
    "find . -path ./.git -prune -o -type f -printf '%P %m ' -exec sh -c 'cat \"$1\" | tr \"\\n\" ,'"
    " x {} ';' -printf '\\n' -o -type l -printf '%P -> %l\\n' | cat -v | sort"
)


async def look(services: Services, space: Space) -> str:
    return (await run(services, space, LOOK))[1]


async def take(
    services: Services, source: Space, target: Space, *paths: str, force: bool = False
) -> UndoRecord:
    request = TakeRequest(source.space_id, target.space_id, paths, force)
    return (await services.takes.take(LOCAL, request))[0]


async def pair(services: Services, project: Path) -> tuple[Space, Space]:
    return await make(services, project, name="one"), await make(services, project, name="two")


async def test_files_folders_links_and_deletions(
    services: Services, repository: Repository
) -> None:
    one, two = await pair(services, repository.path)
    script = (
        "sed -i 's/line 3/agent 3/' a.txt; rm old.txt; mkdir -p lib/deep; echo new > lib/deep/n;"
        " echo x > lib/x.log; ln -s /etc/passwd lib/link; chmod +x src/b.py;"
        r" printf 'odd\0' > lib/$(printf 'o \377\nd'); echo no > not-this"
    )
    await run(services, one, script)
    await run(services, two, "echo mine > mine.txt")
    before = await look(services, two)
    taken = await take(services, one, two, "a.txt", "old.txt", "lib", "src/b.py")
    assert taken.state is UndoState.DONE and taken.files == 6
    after = await look(services, two)
    assert "agent 3" in after and "old.txt" not in after and "lib/deep/n 644 new," in after
    assert "lib/link -> /etc/passwd" in after and "src/b.py 755" in after and "mine.txt" in after
    assert "x.log" not in after and "not-this" not in after and "lib/o M-^?" in after
    left = await services.spaces.review(LOCAL, "one")
    assert left.left == ("added not-this",), "what was taken is not lost with the space"
    undone = await services.takes.undo(taken.undo_id)
    assert undone.state is UndoState.UNDONE and await look(services, two) == before
    assert (await services.spaces.review(LOCAL, "one")).left_files > 1
    with pytest.raises(NotUndoable, match="already"):
        await services.takes.undo(taken.undo_id)
    assert list((services.settings.data / "takes").iterdir()) == []
    types = frozenset({EventType.TAKEN, EventType.TAKE_UNDONE})
    told = await services.store.events(EventQuery(types=types))
    assert [one.type for one in told] == ["take.done", "take.undone"]


async def test_what_the_other_has_in_its_own_way_stays(
    services: Services, repository: Repository
) -> None:
    one, two = await pair(services, repository.path)
    await run(services, one, "echo one > a.txt; echo same > same; echo n > new; rm old.txt")
    await run(services, two, "echo two > a.txt; echo same > same; echo k >> old.txt")
    before = await look(services, two)
    for paths in (("a.txt", "new"), ("old.txt",), (".",)):
        with pytest.raises(TakeRefused, match="in its own way"):
            await take(services, one, two, *paths)
        assert await look(services, two) == before
    with pytest.raises(TakeRefused, match="all of this"):
        await take(services, one, two, "same")
    with pytest.raises(PathNotFound):
        await take(services, one, two, "src/b.py")
    taken = await take(services, one, two, ".", force=True)
    assert await look(services, two) == await look(services, one)
    await services.takes.undo(taken.undo_id)
    assert await look(services, two) == before


async def test_a_renamed_file_and_an_ignored_one(
    services: Services, repository: Repository
) -> None:
    one, two = await pair(services, repository.path)
    await run(services, one, "mv old.txt older.txt; echo x > x.log")
    await take(services, one, two, "older.txt", "./x.log")
    shown = await look(services, two)
    assert "older.txt" in shown and "old.txt" not in shown and "x.log" in shown


async def test_a_project_that_moved_on_is_not_overwritten(
    services: Services, repository: Repository
) -> None:
    """The second space began with a later state of the file, and did not change it itself."""
    one = await make(services, repository.path, name="one")
    await run(services, one, "echo one > a.txt; echo n > new")
    repository.commit("later", a_txt="later\n")
    two = await make(services, repository.path, name="two")
    with pytest.raises(TakeRefused):
        await take(services, one, two, "a.txt")
    await take(services, one, two, "new")


async def test_no_link_is_followed(services: Services, repository: Repository) -> None:
    outside = repository.path.parent / "outside"
    outside.mkdir()
    (outside / "deep").mkdir()
    one, two = await pair(services, repository.path)
    await run(services, one, "mkdir d; echo evil > d/f; echo evil > deep")
    await run(services, two, f"ln -s {outside} d; ln -s {outside}/deep deep")
    for paths in (("d",), ("deep",)):
        with pytest.raises(CarrelError):
            await take(services, one, two, *paths)
    with pytest.raises(CarrelError):
        await take(services, one, two, "d", force=True)
    await take(services, one, two, "deep", force=True)
    assert (await run(services, two, "cat deep"))[1] == "evil\n"
    assert sorted(os.listdir(outside)) == ["deep"] and not os.listdir(outside / "deep")


async def test_odd_kinds_in_the_way(services: Services, repository: Repository) -> None:
    one, two = await pair(services, repository.path)
    await run(services, one, "echo a > p; echo b > f; mkfifo only")
    await run(services, two, "mkfifo p; mkdir f; echo keep > f/keep")
    for path in ("p", "f", "only"):
        with pytest.raises(TakeRefused):
            await take(services, one, two, path, force=True)
    assert "f/keep" in await look(services, two)


async def test_who_may(services: Services, repository: Repository) -> None:
    one, two = await pair(services, repository.path)
    await run(services, one, "echo a > new")
    for scope in (Scope(ScopeKind.SPACE, one.space_id), Scope(ScopeKind.SPACE, two.space_id)):
        with pytest.raises(SpaceNotFound):
            await services.takes.take(Caller("x", scope), TakeRequest("one", "two", ("new",)))
    with pytest.raises(MessageInvalid):
        await take(services, one, one, "new")
    await services.spaces.stop(LOCAL, "two")
    taken = await take(services, one, two, "new")
    await services.spaces.remove(LOCAL, "two", force=True)
    with pytest.raises(NotUndoable, match="is gone"):
        await services.takes.undo(taken.undo_id)
    direct = await make(services, driver=DIRECT, place=str(repository.path))
    with pytest.raises(StateConflict, match="no copy of how it was"):
        await take(services, direct, one, "a.txt")


async def test_an_undo_that_would_lose_work_is_refused(
    services: Services, repository: Repository
) -> None:
    one, two = await pair(services, repository.path)
    await run(services, one, "echo one > a.txt; echo n > new")
    taken = await take(services, one, two, "a.txt", "new")
    await run(services, two, "echo more >> a.txt")
    shown = await look(services, two)
    with pytest.raises(NotUndoable, match=r"a\.txt"):
        await services.takes.undo(taken.undo_id)
    assert await look(services, two) == shown
    await run(services, two, "sed -i '$d' a.txt")
    assert (await services.takes.undo(taken.undo_id)).state is UndoState.UNDONE


async def test_full_disk_and_killed_daemon(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write in turn fails: the other space is as before. When the way back fails too, the next
    take finishes what was begun."""
    one, two = await pair(services, repository.path)
    await run(services, one, "rm old.txt; for n in 1 2 3; do echo $n > n$n; done; echo c > a.txt")
    before = await look(services, two)
    real = CheckoutWriter.bring
    for failing in range(1, 6):
        calls = 0

        def bring(self: CheckoutWriter, file: CheckoutFile, at: int = failing) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise InsufficientDisk("No room.", hint="Make some.")
            real(self, file)

        monkeypatch.setattr(CheckoutWriter, "bring", bring)
        with pytest.raises(InsufficientDisk):
            await take(services, one, two, ".")
        assert await look(services, two) == before
        assert not list((services.settings.data / "takes").iterdir())
    monkeypatch.setattr(CheckoutWriter, "bring", real)
    leave = ProjectCheckout.bring

    def half(self: ProjectCheckout, first: str, last: str, **how: bool) -> None:
        if how.get("whole"):
            leave(self, first, last, whole=True)
        raise InsufficientDisk("No room.", hint="Make some.")

    monkeypatch.setattr(ProjectCheckout, "bring", half)
    with pytest.raises(LandingHalfDone):
        await take(services, one, two, ".")
    monkeypatch.setattr(ProjectCheckout, "bring", leave)
    await services.takes.take_up()
    assert await look(services, two) == await look(services, one)
    [done] = [row for row in await services.takes.list(10) if row.state is UndoState.DONE]
    await services.takes.undo(done.undo_id)
    assert await look(services, two) == before


async def test_line_ends_are_bytes(services: Services, repository: Repository) -> None:
    """Settling twice writes the same."""
    one, two = await pair(services, repository.path)
    await run(services, one, r"printf 'a\r\nb\r\n' > old.txt")
    await run(services, two, r"printf 'a\nb\n' > old.txt")
    taken = await take(services, one, two, "old.txt", force=True)
    await services.store.write(type(taken)(**{**vars(taken), "state": UndoState.BEGUN}))
    await services.takes.take_up()
    assert (await run(services, two, "od -c old.txt"))[1] == (
        await run(services, one, "od -c old.txt")
    )[1]


async def test_two_at_once(services: Services, repository: Repository) -> None:
    one, two = await pair(services, repository.path)
    three = await make(services, repository.path, name="three")
    await run(services, one, "echo one > a.txt")
    await run(services, three, "echo three > a.txt")
    found = await asyncio.gather(
        *(take(services, each, two, "a.txt") for each in (one, three)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in found) == ["TakeRefused", "UndoRecord"]
