"""A conflict goes to the agent of the space, and what it makes of both lands."""

from __future__ import annotations

import asyncio

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import LandingConflicts, LandingRefused, UnsupportedFrontend
from carrel.domain.spaces import Space
from tests.review.conftest import Repository, land, work
from tests.service.rig import RUN_S, make, run


async def conflicting(services: Services, repository: Repository, agent: str) -> Space:
    space = await make(services, repository.path, name="desk", agent=agent)
    await work(
        services, space, "sed -i 's/line 3$/agent 3/' a.txt; echo more >> old.txt; echo n > n"
    )
    lines = (repository.path / "a.txt").read_text().replace("line 3\n", "person 3\n")
    (repository.path / "old.txt").unlink()
    repository.commit("moved on", a_txt=lines.replace("line 15", "person 15"))
    return space


async def test_the_agent_merges_and_it_lands(services: Services, repository: Repository) -> None:
    space = await conflicting(services, repository, "scripted")
    with pytest.raises(LandingConflicts) as refusal:
        await land(services, space, resolve=True)
    turn = str(refusal.value.details["turn"])
    assert turn in refusal.value.hint
    async with asyncio.timeout(RUN_S):
        done = await services.turns.wait(LOCAL, turn)
    assert "- a.txt" in done.prompt and "- old.txt" in done.prompt
    _, text = await run(services, space, "cat a.txt")
    assert "<<<<<<<" in text and "person 3\n=======\nagent 3\n" in text and "person 15" in text
    assert repository.git("branch", "--list", "carrel/*") == ""
    # The project goes on meanwhile, elsewhere in the same file.
    lines = (repository.path / "a.txt").read_text()
    repository.commit("further", a_txt=lines.replace("line 8", "person 8"))
    await work(
        services,
        space,
        r"sed -i -e '/^<<<<<<<\|^=======\|^>>>>>>>/d' -e 's/^agent 3$/agent too/' a.txt",
    )
    landing = await land(services, space)
    text = repository.git("show", "carrel/desk:a.txt")
    assert "person 3\nagent too\n" in text and "person 15" in text and "person 8" in text
    assert repository.git("show", "carrel/desk:old.txt") == "old\nmore" and landing.files == 3
    space = await services.spaces.get(LOCAL, space.space_id)
    assert not space.merged


async def test_no_agent_can_do_it(services: Services, repository: Repository) -> None:
    """Nothing of the space changes then."""
    space = await conflicting(services, repository, "")
    with pytest.raises(UnsupportedFrontend):
        await land(services, space, resolve=True)
    with pytest.raises(LandingRefused, match="one commit"):
        await land(services, space, resolve=True, commits=True)
    _, text = await run(services, space, "cat a.txt")
    assert "<<<<" not in text
    assert not (await services.spaces.get(LOCAL, space.space_id)).merged
    (repository.path / "new.bin").write_bytes(b"\0person")
    repository.commit("binary")
    await work(services, space, r"printf '\0agent' > new.bin")
    with pytest.raises(LandingConflicts) as refusal:
        await land(services, space, resolve=True)
    assert "by hand" in refusal.value.hint
