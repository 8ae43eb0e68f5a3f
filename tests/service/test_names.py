"""Names are taken among those of who gave them: nobody learns the names of others by trying."""

from __future__ import annotations

import dataclasses

import pytest

from carrel.api.types.admin import NewToken
from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    Forbidden,
    KeyReused,
    NameTaken,
    SpaceAmbiguous,
    SpaceNotFound,
    StateConflict,
)
from carrel.domain.spaces import Space
from carrel.service.family import Child
from carrel.service.spaces import SpaceChanges
from tests.service.rig import family_of, make, request, run

BLUE = Caller("tk_blue", Scope(ScopeKind.LABEL, "team=blue"))
TOO = Caller("tk_blue_too", Scope(ScopeKind.LABEL, "team=blue"))
RED = Caller("tk_red", Scope(ScopeKind.LABEL, "team=red"))


def token_of(space: Space) -> Caller:
    return Caller("tk_one", Scope(ScopeKind.SPACE, space.space_id))


async def named(services: Services, caller: Caller, name: str) -> Space:
    return await services.spaces.create(caller, request(name=name))


async def test_a_name_is_taken_by_ones_own(services: Services) -> None:
    owners = await make(services, name="desk")
    blue, red = await named(services, BLUE, "desk"), await named(services, RED, "desk")
    for caller in (LOCAL, BLUE, TOO, RED):
        with pytest.raises(NameTaken):
            await named(services, caller, "desk")
    for caller, space in ((LOCAL, owners), (BLUE, blue), (TOO, blue), (RED, red)):
        assert (await services.spaces.get(caller, "desk")).space_id == space.space_id
    await services.spaces.remove(BLUE, "desk", force=True)
    # It is gone for them, and nobody else's is theirs instead.
    with pytest.raises(SpaceNotFound):
        await services.spaces.get(BLUE, "desk")
    assert (await services.spaces.get(RED, "desk")).space_id == red.space_id


async def test_the_owner_finds_those_of_others_by_name(services: Services) -> None:
    blue = await named(services, BLUE, "desk")
    assert (await services.spaces.get(LOCAL, "desk")).space_id == blue.space_id
    red = await named(services, RED, "desk")
    with pytest.raises(SpaceAmbiguous) as caught:
        await services.spaces.get(LOCAL, "desk")
    assert caught.value.hint == "Use the id."
    assert blue.space_id in caught.value.message and red.space_id in caught.value.message
    owners = await make(services, name="desk")
    assert (await services.spaces.get(LOCAL, "desk")).space_id == owners.space_id


async def test_what_the_owner_made_for_a_token_is_found_by_it(services: Services) -> None:
    given = await make(services, name="desk", labels={"team": "blue"})
    assert (await services.spaces.get(BLUE, "desk")).space_id == given.space_id
    own = await named(services, BLUE, "desk")
    assert (await services.spaces.get(BLUE, "desk")).space_id == own.space_id
    assert (await services.spaces.get(LOCAL, "desk")).space_id == given.space_id


async def test_a_relabelled_space_keeps_its_name(services: Services) -> None:
    space = await named(services, BLUE, "desk")
    await services.spaces.update(LOCAL, "desk", SpaceChanges(labels={"team": "red"}))
    assert (await services.spaces.get(RED, "desk")).space_id == space.space_id
    with pytest.raises(SpaceNotFound):
        await services.spaces.get(BLUE, "desk")
    own = await named(services, RED, "desk")
    assert (await services.spaces.get(RED, "desk")).space_id == own.space_id


async def test_renaming_tells_nothing(services: Services) -> None:
    """Whoever made the space: the name is of who gave it."""
    await make(services, name="secret")
    own = await named(services, BLUE, "mine")
    other = await named(services, BLUE, "other")
    alone = await make(services, name="alone")
    await services.spaces.update(token_of(alone), "alone", SpaceChanges(name="secret"))
    await services.spaces.update(BLUE, "mine", SpaceChanges(name="secret"))
    with pytest.raises(NameTaken):
        await services.spaces.update(TOO, other.space_id, SpaceChanges(name="secret"))
    await services.spaces.update(LOCAL, own.space_id, SpaceChanges(name="mine"))
    renamed = await services.spaces.update(TOO, other.space_id, SpaceChanges(name="secret"))
    assert (await services.spaces.get(BLUE, "secret")).space_id == renamed.space_id
    with pytest.raises(NameTaken):
        await services.spaces.update(LOCAL, own.space_id, SpaceChanges(name="secret"))


async def test_only_its_maker_and_the_owner_rename_a_space(services: Services) -> None:
    given = await make(services, name="given", labels={"team": "blue"})
    own = await named(services, BLUE, "own")
    moved = await named(services, RED, "moved")
    await services.spaces.update(LOCAL, "moved", SpaceChanges(labels={"team": "blue"}))
    for space in (given, moved):
        with pytest.raises(Forbidden):
            await services.spaces.update(BLUE, space.space_id, SpaceChanges(name="new"))
        change = SpaceChanges(name=space.name, description="mine")
        kept = await services.spaces.update(BLUE, space.space_id, change)
        assert (kept.name, kept.realm, kept.description) == (space.name, space.realm, "mine")
    child = await family_of(services).spawn(own.space_id, Child(name="child"))
    for caller, space in ((TOO, own), (TOO, child), (token_of(given), given), (LOCAL, moved)):
        name = f"new-{space.name}"
        renamed = await services.spaces.update(caller, space.space_id, SpaceChanges(name=name))
        assert renamed.name == name


async def test_undeleting_tells_nothing(services: Services) -> None:
    """The one that comes back has its name, whoever else has it now; but not its own's."""

    async def gone(caller: Caller, space: Space) -> None:
        await run(services, space, "echo > new")
        await services.spaces.remove(caller, space.space_id, force=True)

    await gone(BLUE, await named(services, BLUE, "desk"))
    await make(services, name="desk")
    back = await services.spaces.undelete(BLUE, "desk")
    assert (back.name, back.guest) == ("desk", True)
    # Nor has it a share of the machine of its own.
    assert back.counts_for == "team=blue"
    await gone(BLUE, back)
    await named(services, BLUE, "desk")
    assert (await services.spaces.undelete(BLUE, "desk")).name != "desk"
    # And it is the caller's own that comes back, though another's went later.
    owners = await services.spaces.get(LOCAL, "desk")
    await gone(LOCAL, owners)
    await gone(BLUE, await services.spaces.get(BLUE, "desk"))
    assert (await services.spaces.undelete(LOCAL, "desk")).restored_from == owners.space_id


async def test_a_token_of_one_space_makes_no_other_by_restoring(services: Services) -> None:
    space = await make(services)
    await run(services, space, "echo > new")
    await services.spaces.remove(LOCAL, space.space_id, force=True)
    token = Caller("tk_1", Scope(ScopeKind.SPACE, space.space_id))
    with pytest.raises(Forbidden):
        await services.spaces.undelete(token, space.space_id)
    other = Caller("tk_2", Scope(ScopeKind.SPACE, "sp_other"))
    with pytest.raises(SpaceNotFound):
        await services.spaces.undelete(other, space.space_id)
    assert (await services.spaces.undelete(LOCAL, space.space_id)).restored_from == space.space_id


async def test_what_an_agent_names_tells_it_nothing(services: Services) -> None:
    family = family_of(services)
    await make(services, name="secret")
    own = await make(services, name="own")
    blue = await named(services, BLUE, "desk")
    for parent in (own, blue):
        child = await family.spawn(parent.space_id, Child(name="secret"))
        assert family.member(parent.space_id, "secret").space_id == child.space_id
        with pytest.raises(NameTaken):
            await family.spawn(parent.space_id, Child(name="secret"))
        # In its family a name is one space.
        for taken in (parent.name, "secret"):
            with pytest.raises(NameTaken):
                await family.spawn(child.space_id, Child(name=taken))
    assert (await services.spaces.get(BLUE, "secret")).parent == blue.space_id
    assert (await services.spaces.get(LOCAL, "secret")).parent == ""


async def test_keys_are_of_the_request_as_it_was_asked(services: Services) -> None:
    asked = request(name="desk")
    made = [await services.spaces.create(one, asked, key="k") for one in (BLUE, RED, BLUE, RED)]
    assert [one.space_id for one in made[:2]] == [one.space_id for one in made[2:]]
    assert made[0].space_id != made[1].space_id
    with pytest.raises(KeyReused):
        await services.spaces.create(BLUE, dataclasses.replace(asked, name="x"), key="k")
    labels = SpaceChanges(labels={"team": "green"})
    await services.spaces.update(LOCAL, made[0].space_id, labels)
    with pytest.raises(SpaceNotFound):
        await services.spaces.create(BLUE, asked, key="k")


async def test_a_name_of_ones_own_is_no_share_of_ones_own(services: Services) -> None:
    """A token has one with all spaces that it makes and all that come of them, and so has a
    family of the owner's."""
    family = family_of(services)
    blue, own = await named(services, BLUE, "desk"), await make(services, name="own")
    for space, account in ((blue, "team=blue"), (own, own.space_id)):
        renamed = await services.spaces.update(
            token_of(space), space.space_id, SpaceChanges(name="mine")
        )
        child = await family.spawn(space.space_id, Child())
        assert {one.counts_for for one in (space, renamed, child)} == {account}


async def test_a_label_tells_nobody_how_others_tokens_are_called(services: Services) -> None:
    """Whoever guesses their labels."""
    token = await services.tokens.create(LOCAL, NewToken(name="secret", scope="label:user=bob"))
    await services.tokens.caller(token.secret)
    space = await services.spaces.create(BLUE, request(labels={"user": "bob"}))
    for caller, told in ((BLUE, False), (LOCAL, True)):
        with pytest.raises(StateConflict) as refused:
            await services.spaces.update(
                caller, space.space_id, SpaceChanges(labels={"team": "blue"})
            )
        assert ("secret" in str(refused.value)) is told
