"""Random work on a log and on plain lists side by side comes to the same, also over closings
and crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carrel.domain.hub import Dropped, Keep, Message, Placed, PlaceQuery, Replay, Span
from carrel.store.messages import SqliteLog, open_log
from tests.sampling import examples

Kind = TypeVar("Kind")

SPACES = st.sampled_from(["sp_a", "sp_b", "sp_c"])
CONSUMERS = st.sampled_from(["x", "y", "ö"])
TYPES = st.sampled_from(["buffer_a", "buffer_b", "c"])
TIMES = st.sampled_from([0.0, 1.1, 2.5, 1_700_000_000.123456])
BODIES = st.binary(max_size=12).map(lambda body: body.replace(b"\n", b""))
SEQS = st.integers(-1, 12)

DRAFTS = st.lists(
    st.tuples(
        SPACES,
        st.sampled_from([1] * 15 + [0, 2]),
        TYPES,
        TIMES,
        st.just([b""]) | st.lists(BODIES, min_size=1, max_size=5),
        st.integers(0, 9),
    ),
    max_size=6,
)
"""Messages, one or several at once, with how far after the last of its space each is."""

KEEPS = st.builds(
    Keep,
    st.sampled_from([0, 0, 1, 2, 5]),
    st.sampled_from([0, 0, 1, 10, 40]),
    st.sampled_from([0.0, 0.0, 0.5, 1.5, 1e9]),
)


class Model:
    def __init__(self) -> None:
        self.kept: list[Placed] = []
        self.runs: dict[int, int] = {}
        """The last place of all that were said at once, by place."""
        self.lasts: dict[str, int] = {}
        self.seen: dict[tuple[str, str], int] = {}
        self.place = 0
        self.origin = 0

    def of(self, space_id: str) -> list[Placed]:
        return [one for one in self.kept if one.space_id == space_id]

    def append(self, messages: Sequence[Message]) -> list[int] | None:
        lasts = dict(self.lasts)
        placed: list[Placed] = []
        runs: dict[int, int] = {}
        for one in messages:
            if one.seq - one.together != lasts.get(one.space_id, 0):
                return None
            end = self.place + len(placed) + one.together
            for seq, body in enumerate(one.body.split(b"\n"), lasts.get(one.space_id, 0) + 1):
                place = self.place + len(placed) + 1
                placed.append(Placed(place, one.space_id, seq, one.type, one.at, body))
                runs[place] = end
            lasts[one.space_id] = one.seq
        self.kept += placed
        self.runs |= runs
        self.lasts = lasts
        self.place += len(placed)
        self.origin = max([self.origin, *(one.origin for one in messages)])
        return [one.place for one in placed]

    def acknowledge(self, consumer: str, space_id: str, seq: int) -> int:
        last = self.lasts.setdefault(space_id, 0)
        seq = max(self.seen.get((consumer, space_id), 0), min(seq, last))
        self.seen[consumer, space_id] = seq
        return seq

    def consumers(self, space_id: str) -> dict[str, int]:
        return {consumer: seq for (consumer, of), seq in self.seen.items() if of == space_id}

    def span(self, space_id: str) -> Span:
        kept = self.of(space_id)
        last = self.lasts[space_id]
        return Span(last - len(kept) + 1, last, self.size(kept))

    def size(self, messages: list[Placed]) -> int:
        """Each but the last that was said at once has a line break."""
        return sum(len(one.body) + (self.runs[one.place] != one.place) for one in messages)

    def run(self, one: Placed) -> list[Placed]:
        return [other for other in self.kept if self.runs[other.place] == self.runs[one.place]]

    def replay(self, query: Replay) -> tuple[list[bytes], int]:
        page: list[Placed] = []
        begun: list[Placed] = []
        for one in self.of(query.space_id):
            if one.seq <= query.after or len(page) == query.limit:
                continue
            if one not in begun:
                if self.size(begun) >= query.max_bytes:
                    break
                begun += self.run(one)
            page.append(one)
        return [one.body for one in page], page[-1].seq if page else query.after

    def read(self, query: PlaceQuery) -> list[Placed]:
        found = [
            one
            for one in self.kept
            if one.place > query.after
            and (query.space_ids is None or one.space_id in query.space_ids)
            and (query.types is None or one.type in query.types)
        ]
        return found[: query.limit]

    def since(self, space_id: str, at: float) -> int:
        fresh = (one.seq - 1 for one in self.of(space_id) if one.at >= at)
        return next(fresh, self.lasts.get(space_id, 0))

    def compact(self, keep: Keep, now: float, only: str | None) -> list[Dropped]:
        return [
            dropped
            for space_id in self.lasts
            if only in (None, space_id) and (dropped := self._compact(space_id, keep, now))
        ]

    def _compact(self, space_id: str, keep: Keep, now: float) -> Dropped | None:
        kept = self.of(space_id)
        gone: list[Placed] = []
        while (
            kept
            and len(kept) > len(run := self.run(kept[0]))
            and (
                (keep.messages and len(kept) > keep.messages)
                or (keep.bytes and self.size(kept) > keep.bytes)
                or (keep.seconds and kept[0].at < now - keep.seconds)
            )
        ):
            gone += run
            kept = kept[len(run) :]
        if not gone:
            return None
        self.kept = [one for one in self.kept if one not in gone]
        last = gone[-1].seq
        missed = {name: seq for name, seq in self.consumers(space_id).items() if seq < last}
        return Dropped(space_id, gone[0].seq, last, missed)

    def forget(self, space_id: str) -> None:
        self.kept = [one for one in self.kept if one.space_id != space_id]
        self.lasts.pop(space_id, None)
        self.seen = {key: seq for key, seq in self.seen.items() if key[1] != space_id}


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.folder = Path(tempfile.mkdtemp(prefix="carrel-hub-"))
        self.generation = 0
        self.runner = asyncio.Runner()
        self.context: AbstractAsyncContextManager[SqliteLog]
        self.log: SqliteLog
        self.open()

    def do(self, work: Coroutine[Any, Any, Kind]) -> Kind:
        return self.runner.run(work)

    def open(self) -> None:
        self.context = open_log(self.folder / f"{self.generation}.db")
        self.log = self.do(self.context.__aenter__())

    def close(self) -> None:
        self.do(self.context.__aexit__(None, None, None))

    def teardown(self) -> None:
        self.close()
        self.runner.close()
        shutil.rmtree(self.folder)

    @rule(
        drafts=st.lists(DRAFTS, min_size=1, max_size=4),
        consumer=CONSUMERS,
        space_id=SPACES,
        seq=SEQS,
        sync=st.booleans(),
    )
    def append(
        self, drafts: list[list[Any]], consumer: str, space_id: str, seq: int, sync: bool
    ) -> None:
        """At once, so that they are committed together, and an acknowledgement after them."""
        batches, expected = [], []
        for draft in drafts:
            lasts = dict(self.model.lasts)
            batch = []
            for of, step, type, at, bodies, origin in draft:
                number = lasts.get(of, 0) + step + len(bodies) - 1
                body = b"\n".join(bodies)
                batch.append(Message(of, number, type, at, body, origin, len(bodies)))
                lasts[of] = number
            batches.append(batch)
            expected.append(self.model.append(batch))

        async def together() -> list[Any]:
            calls = (self.log.append(batch, sync=sync) for batch in batches)
            last = self.log.acknowledge(consumer, space_id, seq)
            return await asyncio.gather(*calls, last, return_exceptions=True)

        *places, cursor = self.do(together())
        assert cursor == self.model.acknowledge(consumer, space_id, seq)
        for found, wanted in zip(places, expected, strict=True):
            if wanted is None:
                assert isinstance(found, ValueError), found
            else:
                assert list(found) == wanted

    @rule(keep=KEEPS, now=TIMES, only=st.none() | SPACES)
    def compact(self, keep: Keep, now: float, only: str | None) -> None:
        found = self.do(self.log.compact(keep, now, only))
        expected = self.model.compact(keep, now, only)
        assert {one.space_id: one for one in found} == {one.space_id: one for one in expected}
        assert len(found) == len(expected)

    @rule(space_id=SPACES)
    def forget(self, space_id: str) -> None:
        self.do(self.log.forget(space_id))
        self.model.forget(space_id)

    @rule(consumer=CONSUMERS)
    def forget_consumer(self, consumer: str) -> None:
        self.do(self.log.forget_consumer(consumer))
        self.model.seen = {key: seq for key, seq in self.model.seen.items() if key[0] != consumer}

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()

    @rule()
    def crash(self) -> None:
        """Goes on with the files as they are now."""
        before = self.folder / f"{self.generation}.db"
        self.generation += 1
        for suffix in ("", "-wal"):
            shutil.copy(f"{before}{suffix}", self.folder / f"{self.generation}.db{suffix}")
        self.close()
        self.open()

    @rule(
        queries=st.lists(
            st.builds(Replay, SPACES, st.integers(0, 12), st.integers(1, 4), st.integers(1, 40)),
            min_size=1,
            max_size=20,
        )
    )
    def replay(self, queries: list[Replay]) -> None:
        async def together() -> list[tuple[Sequence[bytes], int]]:
            return await asyncio.gather(*(self.log.replay(query) for query in queries))

        for query, (bodies, last) in zip(queries, self.do(together()), strict=True):
            assert (list(bodies), last) == self.model.replay(query)

    @rule(
        query=st.builds(
            PlaceQuery,
            st.integers(0, 30),
            st.none() | st.frozensets(SPACES),
            st.none() | st.frozensets(TYPES),
            st.integers(0, 10),
        )
    )
    def read(self, query: PlaceQuery) -> None:
        assert list(self.do(self.log.read(query))) == self.model.read(query)

    @rule(space_id=SPACES, at=TIMES)
    def since(self, space_id: str, at: float) -> None:
        assert self.do(self.log.since(space_id, at)) == self.model.since(space_id, at)

    @invariant()
    def same(self) -> None:
        self.do(self._same())

    async def _same(self) -> None:
        log, model = self.log, self.model
        assert await log.spans() == {space_id: model.span(space_id) for space_id in model.lasts}
        assert await log.last_place() == model.place
        assert await log.first_place() == (model.kept[0].place if model.kept else 0)
        assert await log.last_origin() == model.origin
        for space_id in ("sp_a", "sp_b", "sp_c"):
            assert await log.consumers(space_id) == model.consumers(space_id)
        for consumer in ("x", "y", "ö"):
            seen = {of: seq for (name, of), seq in model.seen.items() if name == consumer}
            assert await log.cursors(consumer) == seen


Comparison.TestCase.settings = settings(
    max_examples=examples(8, exhaustive=40),
    stateful_step_count=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestComparison = Comparison.TestCase
