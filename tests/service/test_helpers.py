"""What a space takes over of those that it made, whatever stands in both trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.errors import PathNotFound, TooLarge
from carrel.domain.spaces import Space
from carrel.service import helpers
from carrel.service.helpers import HelperFiles, Taken, acting_in
from tests.service.rig import family_of, make, run


async def pair(services: Services, project: Path, script: str = ":") -> tuple[Space, Space]:
    """A maker and its helper, which both begin with what the script makes of the project."""
    (project / "src").mkdir()
    (project / "src/real.py").write_text("real\n")
    (project / "cfg").symlink_to("src/real.py")
    (project / "d").symlink_to("src")
    maker = await make(services, project)
    helper = await make(services, project, parent=maker.space_id)
    for space in (maker, helper):
        await run(services, space, script)
    return maker, helper


async def take(services: Services, maker: Space, helper: Space, *paths: str) -> Taken:
    files = HelperFiles(family_of(services), services.spaces, services.files)
    return await files.take(maker.space_id, helper.space_id, paths, replace=False)


async def test_no_link_of_the_taker_is_followed(services: Services, project: Path) -> None:
    """What a link leads to has another name, which the taker may have changed."""
    maker, helper = await pair(services, project)
    await run(services, maker, "echo mine > src/real.py")
    await run(
        services,
        helper,
        "rm cfg d; echo theirs > cfg; mkdir d; echo theirs > d/real.py; rm notes/a.txt",
    )
    found = await take(services, maker, helper)
    assert found.written == ("cfg",) and found.deleted == ("notes/a.txt",)
    assert [one.path for one in found.left] == ["d/real.py"] and "link" in found.left[0].why
    said = (await run(services, maker, "cat src/real.py cfg; test -L cfg || echo plain"))[1]
    assert said == "mine\ntheirs\nplain\n"


async def test_what_the_taker_ignores_is_its_own_too(services: Services, project: Path) -> None:
    (project / ".gitignore").write_text(".env\n")
    maker, helper = await pair(services, project, "git init -q; echo first > .env")
    await run(services, maker, "echo mine > .env")
    await run(services, helper, "echo > .gitignore; echo theirs > .env")
    found = await take(services, maker, helper)
    assert ".env" in [one.path for one in found.left]
    assert (await run(services, maker, "cat .env"))[1] == "mine\n"


async def test_paths_and_bounds(
    services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, helper = await pair(services, project)
    await run(services, helper, "mkdir -p a/b; echo 1 > a/b/c; echo 2 > e; echo 3 > f")
    assert (await take(services, maker, helper, "a", "a/b", "e", "./e")).written == ("a/b/c", "e")
    with pytest.raises(PathNotFound, match="'g'"):
        await take(services, maker, helper, "f", "g")
    monkeypatch.setattr(helpers, "MOST", 1)
    with pytest.raises(TooLarge):
        await take(services, maker, helper, "f")


async def test_what_was_taken_already_is_no_conflict(services: Services, project: Path) -> None:
    """A take that was cut short is made again."""
    maker, helper = await pair(services, project)
    await run(services, helper, "echo 1 > a; echo 2 > b; echo 3 > c; chmod 755 c; echo 4 > e")
    await take(services, maker, helper)
    await run(services, maker, "echo mine > b; chmod 644 c; rm e; ln -s a e")
    found = await take(services, maker, helper)
    assert found.written == ("a",)
    assert sorted(one.path for one in found.left) == ["b", "c", "e"]
    assert (await run(services, maker, "cat b; readlink e"))[1] == "mine\na\n"


async def test_a_file_is_read_from_wherever_one_likes(services: Services, project: Path) -> None:
    _maker, helper = await pair(services, project)
    files = HelperFiles(family_of(services), services.spaces, services.files)
    read = (acting_in(helper), helper.space_id, "src/real.py")
    assert await files.read(*read, 2, 2) == b"al"
    assert await files.read(*read, (1 << 62) - 1, 10) == b""


async def test_who_woke_whom_is_forgotten(
    services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, helper = await pair(services, project)
    family = family_of(services)
    now = services.journal.clock()
    for space, at in ((maker, now), (helper, now + 7200)):
        monkeypatch.setattr(services.journal, "clock", lambda at=at: at)
        assert family._may_wake(space)
    assert list(family._woken) == [helper.space_id]
