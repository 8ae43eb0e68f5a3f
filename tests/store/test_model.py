"""Random work on a store and on plain dictionaries side by side comes to the same, also over
closings and crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carrel.domain.errors import NameTaken
from carrel.domain.events import Event, EventQuery, EventType, NewEvent
from carrel.domain.runs import RunState
from carrel.domain.spaces import Space, SpaceQuery, SpaceState
from carrel.domain.store import Claim, Forget, Record, Step
from carrel.store import SqliteStore, open_store
from tests.sampling import examples
from tests.store import records
from tests.store.model import Model
from tests.store.records import space_id

Kind = TypeVar("Kind")

NUMBERS = st.integers(0, 7)
IDS = NUMBERS.map(space_id)
TIMES = st.sampled_from([0.0, 1.5, 2.0, 3.25])
NAMES = st.sampled_from(["", "a", "b", "sp_", "%", "ö", space_id(1)])
LABELS = st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from(["1", "2", "%"]))
REALMS = st.sampled_from(["", "", "k=1", "k=2"])
STATES = st.sampled_from(SpaceState) | st.just(SpaceState.REMOVED)

SPACES = st.builds(
    lambda number, state, name, labels, at, removed_at, realm: records.space(
        number, state, name=name, labels=labels, created_at=at, removed_at=removed_at, realm=realm
    ),
    *(NUMBERS, STATES, NAMES, LABELS, TIMES, st.none() | TIMES, REALMS),
)
RUNS = st.builds(
    lambda number, state, of, at: records.run(number, state, of=of, created_at=at),
    *(NUMBERS, st.sampled_from(RunState), NUMBERS, TIMES),
)
EVENTS = st.builds(
    NewEvent,
    st.sampled_from(EventType),
    IDS | st.just(""),
    st.dictionaries(st.text(max_size=3), st.integers(-(2**53), 2**53) | st.text(max_size=3)),
    st.floats(1.0, 2e9),
)
WORDS = st.sampled_from(["x", "y"])
STEPS = st.builds(Step, IDS, WORDS, WORDS, TIMES, st.none() | TIMES)
CLAIMS = st.builds(Claim, WORDS, WORDS, st.binary(max_size=4), IDS, TIMES)
MAYBE = IDS | st.just("")
FORGET = st.builds(Forget, MAYBE, MAYBE, MAYBE, MAYBE)
TRASHED = st.builds(lambda n, at: records.trashed(n, trashed_at=at), NUMBERS, TIMES)
WRITES: st.SearchStrategy[list[Record]] = st.lists(
    st.one_of(
        SPACES, SPACES, RUNS, EVENTS, STEPS, CLAIMS, NUMBERS.map(records.token), TRASHED, FORGET
    ),
    max_size=5,
)
QUERIES = st.builds(
    SpaceQuery,
    st.frozensets(STATES, max_size=3) | st.just(frozenset(SpaceState)),
    st.just({}) | LABELS,
    st.just("") | NAMES,
    st.none() | st.frozensets(IDS),
    st.integers(1, 4),
)


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.heard: list[Event] = []
        self.folder = Path(tempfile.mkdtemp(prefix="carrel-store-"))
        self.generation = 0
        self.runner = asyncio.Runner()
        self.context: AbstractAsyncContextManager[SqliteStore]
        self.store: SqliteStore
        self.open()

    def do(self, work: Coroutine[Any, Any, Kind]) -> Kind:
        return self.runner.run(work)

    def open(self) -> None:
        self.context = open_store(self.folder / f"{self.generation}.db")
        self.store = self.do(self.context.__aenter__())
        self.store.on_events(self.heard.extend)

    def close(self) -> None:
        self.do(self.context.__aexit__(None, None, None))

    def teardown(self) -> None:
        self.close()
        self.runner.close()
        shutil.rmtree(self.folder)

    @rule(writes=st.lists(WRITES, min_size=1, max_size=4))
    def write(self, writes: list[list[Record]]) -> None:
        """At once, so that they are committed together."""

        async def together() -> list[Sequence[Event] | BaseException]:
            calls = (self.store.write(*one) for one in writes)
            return await asyncio.gather(*calls, return_exceptions=True)

        for one, result in zip(writes, self.do(together()), strict=True):
            try:
                expected = self.model.write(one)
            except NameTaken:
                assert isinstance(result, NameTaken), result
            else:
                assert not isinstance(result, BaseException), result
                assert list(result) == expected

    @rule(before=TIMES)
    def prune(self, before: float) -> None:
        assert self.do(self.store.prune(before)) == self.model.prune(before)

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

    @rule(query=QUERIES)
    def list_spaces(self, query: SpaceQuery) -> None:
        async def every_page() -> tuple[list[Space], set[int]]:
            spaces: list[Space] = []
            page = await self.store.spaces(query)
            totals = {page.total}
            spaces += page.spaces
            while page.next:
                after = SpaceQuery(
                    query.states,
                    query.labels,
                    query.name,
                    query.space_ids,
                    query.limit,
                    page.next,
                )
                page = await self.store.spaces(after)
                totals.add(page.total)
                spaces += page.spaces
            return spaces, totals

        expected = self.model.listed(query)
        assert self.do(every_page()) == (expected, {len(expected)})

    @rule(
        word=NAMES | IDS | IDS.map(lambda one: one[:-1]) | st.sampled_from(["sp_a", "s", "_"]),
        realm=REALMS,
        among=QUERIES,
    )
    def find(self, word: str, realm: str, among: SpaceQuery) -> None:
        found = self.model.found(word, realm, among)
        assert self.do(self.store.find(word, realm, among)) == found

    @rule(of=MAYBE, live=st.booleans())
    def list_runs(self, of: str, live: bool) -> None:
        assert self.do(self.store.runs(of, live=live)) == self.model.ran(of, live)

    @rule(
        after=st.integers(0, 9),
        of=st.none() | st.frozensets(IDS, max_size=3),
        types=st.none() | st.frozensets(st.sampled_from(EventType), max_size=4),
        limit=st.integers(0, 5),
    )
    def read_events(
        self, after: int, of: frozenset[str] | None, types: frozenset[str] | None, limit: int
    ) -> None:
        query = EventQuery(after, of, types, limit)
        assert self.do(self.store.events(query)) == self.model.happened(query)

    @invariant()
    def same(self) -> None:
        self.do(self._same())

    async def _same(self) -> None:
        store, model = self.store, self.model
        counted = Counter(one.state for one in model.spaces.values())
        assert await store.count() == {state: counted[state] for state in SpaceState}
        for number in range(8):
            name = space_id(number)
            assert await store.space(name) == model.spaces.get(name)
            steps = [one for one in model.steps.values() if one.space_id == name]
            assert await store.steps(name) == steps
            run_id = records.run(number).run_id
            assert await store.run(run_id) == model.runs.get(run_id)
        for caller, key in (("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")):
            assert await store.claim(caller, key) == model.claims.get((caller, key))
        tokens = sorted(model.tokens.values(), key=lambda one: one.created_at)
        assert await store.tokens() == tokens
        trash = sorted(model.trash.values(), key=lambda one: (one.trashed_at, one.space.space_id))
        assert await store.trash() == trash
        assert self.heard == model.events
        assert await store.last_seq() == len(model.events)


Comparison.TestCase.settings = settings(
    max_examples=examples(8, exhaustive=40),
    stateful_step_count=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestComparison = Comparison.TestCase
