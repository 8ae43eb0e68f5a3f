"""Lists of spaces.

Removed spaces may outnumber the others a thousand times. Therefore a query has up to two
branches, one over each kind, and each goes along an index in the order of the list: over
labels if there are any, else over the spaces themselves.
"""

from __future__ import annotations

import sqlite3

from carrel.domain.errors import MessageInvalid
from carrel.domain.spaces import Space, SpacePage, SpaceQuery, SpaceState
from carrel.store.cursors import from_cursor, to_cursor
from carrel.store.documents import GREATEST, column, dump, load

PRESENT = frozenset(SpaceState) - {SpaceState.REMOVED}


def page(connection: sqlite3.Connection, query: SpaceQuery) -> SpacePage:
    """Raises `MessageInvalid` for a cursor that is none and a limit below 0."""
    if query.limit < 0:
        raise MessageInvalid("A page cannot have less than no spaces.", hint="Raise the limit.")
    plan = _Plan(query)
    connection.execute("BEGIN")
    try:
        total = connection.execute(plan.total_sql(), plan.values).fetchone()[0]
        rows = connection.execute(plan.page_sql(), plan.values).fetchall()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    spaces = tuple(load(Space, row[0]) for row in rows[: query.limit])
    more = len(rows) > query.limit and bool(spaces)
    after = to_cursor(spaces[-1].created_at, spaces[-1].space_id) if more else ""
    return SpacePage(spaces, after, total)


class _Plan:
    """The SQL for one query. What a caller gave stands in `values` only."""

    def __init__(self, query: SpaceQuery) -> None:
        self.query = query
        self.states = query.states or PRESENT
        self.values: dict[str, str | float] = {
            "limit": min(query.limit, GREATEST - 1) + 1,
            "name": column(query.name),
        }
        if query.space_ids is not None:
            self.values["ids"] = dump([column(one) for one in query.space_ids])
        for number, (key, value) in enumerate(query.labels.items()):
            self.values[f"key{number}"] = column(key)
            self.values[f"value{number}"] = column(value)
        for number, state in enumerate(sorted(self.states)):
            self.values[f"state{number}"] = str(state)
        if query.after:
            self.values["at"], self.values["id"] = from_cursor(query.after)

    def total_sql(self) -> str:
        if not (self.query.labels or self.query.name or self.query.space_ids is not None):
            return f"SELECT coalesce(sum(spaces), 0) FROM tallies WHERE state IN ({self._states()})"
        counts = (f"(SELECT count(*) {source})" for _head, source in self._branches())
        return f"SELECT {' + '.join(counts)}"

    def page_sql(self) -> str:
        parts = " UNION ALL ".join(
            f"SELECT * FROM (SELECT {head}.created_at, {head}.space_id {source}"
            f" {self._after(head)} ORDER BY {head}.created_at DESC, {head}.space_id DESC"
            " LIMIT :limit)"
            for head, source in self._branches()
        )
        return (
            "SELECT spaces.document FROM (SELECT created_at, space_id FROM"
            f" ({parts}) ORDER BY created_at DESC, space_id DESC LIMIT :limit) AS chosen"
            " CROSS JOIN spaces ON spaces.space_id = chosen.space_id"
            " ORDER BY chosen.created_at DESC, chosen.space_id DESC"
        )

    def _branches(self) -> list[tuple[str, str]]:
        """Of each, the table that leads, and the text from FROM on."""
        kinds = []
        if self.states & PRESENT:
            kinds.append(False)
        if SpaceState.REMOVED in self.states:
            kinds.append(True)
        along = self._along_labels if self.query.labels else self._along_spaces
        return [along(removed) for removed in kinds]

    def _along_labels(self, removed: bool) -> tuple[str, str]:
        source = "FROM labels AS led"
        narrowed = not removed and not self.states >= PRESENT
        if narrowed or self.query.name:
            source += " CROSS JOIN spaces AS one ON one.space_id = led.space_id"
        where = [f"led.key = :key0 AND led.value = :value0 AND led.removed = {int(removed)}"]
        where += [
            f"EXISTS (SELECT 1 FROM labels AS other WHERE other.key = :key{number}"
            f" AND other.value = :value{number} AND other.removed = led.removed"
            " AND other.created_at = led.created_at AND other.space_id = led.space_id)"
            for number in range(1, len(self.query.labels))
        ]
        return "led", f"{source} WHERE {' AND '.join(where + self._filters('led', narrowed))}"

    def _along_spaces(self, removed: bool) -> tuple[str, str]:
        narrowed = not removed and not self.states >= PRESENT
        source = "FROM spaces AS one"
        if self.query.space_ids is None and (removed or not self.query.name):
            source += f" INDEXED BY {'spaces_gone' if removed else 'spaces_present'}"
        where = ["one.state = 'removed'" if removed else "one.state <> 'removed'"]
        return "one", f"{source} WHERE {' AND '.join(where + self._filters('one', narrowed))}"

    def _filters(self, head: str, narrowed: bool) -> list[str]:
        filters = []
        if narrowed:
            filters.append(f"one.state IN ({self._states()})")
        if self.query.name:
            # The second half lets SQLite use the index of names, which leaves out empty ones.
            filters.append("one.name = :name AND one.name <> ''")
        if self.query.space_ids is not None:
            filters.append(f"{head}.space_id IN (SELECT value FROM json_each(:ids))")
        return filters

    def _states(self) -> str:
        return ", ".join(f":state{number}" for number in range(len(self.states)))

    def _after(self, head: str) -> str:
        if not self.query.after:
            return ""
        return f"AND ({head}.created_at, {head}.space_id) < (:at, :id)"
