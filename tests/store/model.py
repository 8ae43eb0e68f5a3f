"""What the store should do, in plain dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from carrel.domain.access import TokenRecord
from carrel.domain.errors import NameTaken
from carrel.domain.events import Event, EventQuery, NewEvent
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.spaces import Space, SpaceQuery, SpaceState, Trashed
from carrel.domain.store import Claim, Forget, Record, Step

GONE = SpaceState.REMOVED


class Model:
    def __init__(self) -> None:
        self.spaces: dict[str, Space] = {}
        self.runs: dict[str, RunRecord] = {}
        self.steps: dict[tuple[str, str, str], Step] = {}
        self.claims: dict[tuple[str, str], Claim] = {}
        self.tokens: dict[str, TokenRecord] = {}
        self.trash: dict[str, Trashed] = {}
        self.events: list[Event] = []

    def write(self, records: Sequence[Record]) -> list[Event]:
        """Raises `NameTaken`, and then changes nothing."""
        before, count = deepcopy(vars(self)), len(self.events)
        try:
            for record in records:
                self._put(record)
        except NameTaken:
            vars(self).update(before)
            raise
        return self.events[count:]

    def _put(self, record: Record) -> None:
        match record:
            case Space():
                self._check_name(record)
                self.spaces[record.space_id] = record
            case RunRecord():
                self.runs[record.run_id] = record
            case NewEvent(type=kind, space_id=space_id, data=data, at=at):
                self.events.append(Event(len(self.events) + 1, kind, space_id, data, at))
            case Step():
                key = (record.space_id, record.operation, record.name)
                if key in self.steps and self.steps[key].begun_at != record.begun_at:
                    del self.steps[key]
                self.steps[key] = record
            case Claim():
                self.claims[record.caller, record.key] = record
            case TokenRecord():
                self.tokens[record.token_id] = record
            case Trashed():
                self.trash[record.space.space_id] = record
            case Forget():
                self._forget(record)

    def _check_name(self, space: Space) -> None:
        for other in self.spaces.values():
            if (
                space.name
                and (other.name, other.realm) == (space.name, space.realm)
                and other.space_id != space.space_id
                and GONE not in (space.state, other.state)
            ):
                raise NameTaken(space.name)

    def _forget(self, what: Forget) -> None:
        self.steps = {k: one for k, one in self.steps.items() if one.space_id != what.steps_of}
        self.claims = {k: one for k, one in self.claims.items() if one.space_id != what.claims_of}
        self.runs = {k: one for k, one in self.runs.items() if one.space_id != what.runs_of}
        self.trash.pop(what.trash_of, None)

    def prune(self, before: float) -> int:
        old = {
            one.space_id
            for one in self.spaces.values()
            if one.state == GONE
            and (one.updated_at if one.removed_at is None else one.removed_at) < before
            and one.space_id not in self.trash
        }
        for space_id in old:
            del self.spaces[space_id]
            self._forget(Forget(steps_of=space_id, claims_of=space_id, runs_of=space_id))
        return len(old)

    def listed(self, query: SpaceQuery) -> list[Space]:
        """All pages of it."""
        states = query.states or frozenset(SpaceState) - {GONE}
        found = [
            one
            for one in self.spaces.values()
            if one.state in states
            and query.labels.items() <= one.labels.items()
            and query.name in ("", one.name)
            and (query.space_ids is None or one.space_id in query.space_ids)
        ]
        return _newest(found, "space_id")

    def found(self, word: str, realm: str, among: SpaceQuery) -> list[Space]:
        if word in self.spaces:
            return [self.spaces[word]]
        seen = SpaceQuery(labels=among.labels, space_ids=among.space_ids)
        present = self.listed(seen)
        if named := [one for one in present if word and one.name == word]:
            own = [one for one in named if one.realm == realm]
            return own or sorted(named, key=lambda one: one.realm)
        begun = [one for one in present if word and one.space_id.startswith(word)]
        return sorted(begun, key=lambda one: one.space_id)

    def ran(self, space_id: str, live: bool) -> list[RunRecord]:
        ended = (RunState.ENDED, RunState.FAILED)
        found = [
            one
            for one in self.runs.values()
            if space_id in ("", one.space_id) and not (live and one.state in ended)
        ]
        return _newest(found, "run_id")

    def happened(self, query: EventQuery) -> list[Event]:
        found = [
            one
            for one in self.events
            if one.seq > query.after
            and (query.space_ids is None or one.space_id in query.space_ids)
            and (query.types is None or one.type in query.types)
        ]
        return found[: query.limit]


def _newest(records: list[Any], key: str) -> list[Any]:
    return sorted(records, key=lambda one: (one.created_at, getattr(one, key)), reverse=True)
