"""What happened, told also where a row of the log cannot be read."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

import msgspec
import pytest

from carrel.agents import wire
from carrel.agents.frontends import lines
from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import AgreementNeeded
from carrel.domain.events import Event, EventQuery
from carrel.domain.hub import ANSWER, MESSAGE, QUESTION, SIGNAL
from carrel.domain.nesting import MAX_DEPTH, is_too_deep
from carrel.domain.turns import Told
from carrel.hub.envelopes import Said
from carrel.service.family import Family
from tests.service.rig import make, request

DEEP = 100_000
"""More than any parser takes."""


def nested(depth: int) -> bytes:
    return b'{"data":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


async def test_a_row_that_cannot_be_read_is_told_as_such(services: Services) -> None:
    """And what comes after it is told too, in every view of the log."""
    space = await make(services)
    before = await services.feed.last()
    plain = msgspec.Raw(b'{"text": "after it"}')
    bodies = [nested(DEEP), b'{"n":' + b"9" * 5000 + b"}", b'{"text": no JSON}']
    said = [Said("buffer_custom_x", msgspec.Raw(body), str(n)) for n, body in enumerate(bodies)]
    await services.hub.record(space.space_id, [*said, Said(MESSAGE, plain, "last")])
    events, _ = await services.feed.read(LOCAL, EventQuery(before))
    assert [one.type for one in events] == ["event.unreadable"] * 3 + [MESSAGE]
    assert dict(events[0].data).keys() == {"type", "space_seq", "bytes"}
    assert events[0].data["type"] == "buffer_custom_x" and events[3].data == {"text": "after it"}
    assert [one.seq for one in events] == sorted(one.seq for one in events)
    assert await services.inbox.items(LOCAL) == []
    assert not await services.inbox.agreed(space.space_id, "q", space)


async def test_hundreds_of_readers_of_one_account_hold_up_nobody(services: Services) -> None:
    await make(services)
    tenant = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    reads = [asyncio.create_task(services.feed.read(tenant, EventQuery())) for _ in range(300)]
    await asyncio.sleep(0)
    await services.feed.read(LOCAL, EventQuery())
    assert sum(one.done() for one in reads) < 150
    found = await asyncio.gather(*reads)
    assert len({after for _, after in found}) == 1 and found[0][1] > 0


async def test_who_waits_for_a_space_reads_in_its_share(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in the owner's, which waits for nobody: code in a space may wait hundredfold."""
    space = await make(services)
    accounts, read = list[str](), services.feed.read

    async def noted(caller: Caller, query: EventQuery) -> tuple[Sequence[Event], int]:
        accounts.append(caller.account)
        return await read(caller, query)

    monkeypatch.setattr(services.feed, "read", noted)
    here = (services.spaces, services.journal, services.feed, services.turns, services.inbox)
    family = Family(*here, services.turns._parts.frontends)
    waits = asyncio.create_task(family.wait(space.space_id, "", frozenset({"stopped"}), 60.0))
    while not accounts:
        await asyncio.sleep(0)
    await services.spaces.stop(LOCAL, space.space_id, 0.0)
    assert (await waits).state == "stopped"
    assert set(accounts) == {space.counts_for} != {LOCAL.account}


async def test_nothing_is_kept_in_memory_for_spaces_that_are_gone(services: Services) -> None:
    """However many of them somebody makes, asks in, and removes."""
    space = await make(services)
    words = {QUESTION: "question", SIGNAL: "message"}
    said = [
        Said(type, msgspec.Raw(msgspec.json.encode({name: "well?"})), f"{name}{n}")
        for type, name in words.items()
        for n in range(3)
    ]
    await services.hub.record(space.space_id, said)
    assert len(await services.inbox.items(LOCAL)) == 6
    await services.spaces.remove(LOCAL, space.space_id)
    assert await services.inbox.items(LOCAL) == []
    assert not services.inbox._open and not services.inbox._signals


@pytest.mark.parametrize("kind", ["tool", "told"])
def test_what_agents_write_is_no_deeper(kind: str) -> None:
    """Such a line is one that nobody understands, and kept as text."""
    for depth, known in ((MAX_DEPTH - 1, True), (MAX_DEPTH, False), (900, False)):
        line = b'{"type":"log","payload":' + nested(depth) + b"}"
        found: object = lines.decode(line) if kind == "tool" else wire.read_told(line)
        assert (found is not None) is known, depth
        assert isinstance(found, dict | Told | None)


def test_the_depth_is_that_of_the_parser() -> None:
    """Whatever strings have in them."""
    chance = random.Random(7)

    def made(depth: int) -> object:
        if depth == 0:
            return chance.choice(['"[', "}\\", '\\\\"{', '\\"', "[[[", 1, None])
        beside = [made(chance.randrange(min(2, depth))) for _ in range(chance.randrange(2))]
        inner = [made(depth - 1), *beside]
        chance.shuffle(inner)
        return inner if chance.random() < 0.5 else {f'{n}{{"\\': one for n, one in enumerate(inner)}

    for depth in [*range(MAX_DEPTH - 3, MAX_DEPTH + 4)] * 20:
        assert is_too_deep(json.dumps(made(depth))) is (depth > MAX_DEPTH)
    for text in ("[" * 10_000, "]" * 100 + "[" * 65, '{"a":' * 65, "[[]," * 65 + "1" + "]" * 65):
        assert is_too_deep(text)
    for text in ('"' + "[" * 1000, '"\\"' + "{" * 1000 + '"', "[]" * 10_000, "", "[[],1]" * 1000):
        assert not is_too_deep(text)


async def test_the_words_of_one_space_do_not_push_out_those_of_another(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrel.service.inbox.MOST_SIGNALS", 5)
    quiet, loud = await make(services), await make(services)
    word = msgspec.Raw(b'{"message": "look"}')
    await services.hub.record(quiet.space_id, [Said(SIGNAL, word, "mine")])
    await services.hub.record(loud.space_id, [Said(SIGNAL, word, str(n)) for n in range(50)])
    found = [one.item_id for one in await services.inbox.items(LOCAL)]
    assert found == ["mine", *map(str, range(45, 50))]
    assert await services.inbox.dismiss(LOCAL) == 6
    assert await services.inbox.items(LOCAL) == []


async def test_the_words_of_many_spaces_of_one_account_are_so_many(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quiet one among them keeps its own, and so does everybody else."""
    monkeypatch.setattr("carrel.service.inbox.MOST_SIGNALS", 5)
    monkeypatch.setattr("carrel.service.inbox.MOST_OF_ACCOUNT", 8)
    blue = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    spaces = [await services.spaces.create(blue, request(None)) for _ in range(3)]
    other = await make(services)
    word = msgspec.Raw(b'{"message": "look"}')
    for place, (space, count) in enumerate(zip([*spaces, other], (1, 9, 9, 9), strict=True)):
        said = [Said(SIGNAL, word, f"{place}.{number}") for number in range(count)]
        await services.hub.record(space.space_id, said)
    found = [one.item_id for one in await services.inbox.items(LOCAL)]
    assert found == [
        "0.0",
        *(f"{place}.{number}" for place in (1, 2) for number in range(6, 9)),
        *(f"3.{number}" for number in range(4, 9)),
    ]


async def test_an_answer_of_who_may_not_agree_is_none(services: Services) -> None:
    """Also one that is in the log already."""
    space_id, text = (await make(services)).space_id, "May it?"
    with pytest.raises(AgreementNeeded) as asked:
        await services.inbox.require(space_id, text, "")
    number = str(asked.value.details["question_id"])
    blue = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    await services.hub.say_for(blue, space_id, {"answer": "yes"}, ANSWER, number)
    assert [one.item_id for one in await services.inbox.items(LOCAL)] == [number]
    await services.inbox.answer(LOCAL, number, "yes")
    await services.inbox.require(space_id, text, number)
