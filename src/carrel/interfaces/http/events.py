"""What happens to spaces: as a stream from any point of the log, or what there is."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from carrel.api.types.admin import EventInfo, EventList, EventsQuery
from carrel.api.types.common import moment
from carrel.domain.access import LOCAL, Caller
from carrel.domain.errors import MessageInvalid
from carrel.domain.events import Event, EventQuery, EventType
from carrel.interfaces.http.answers import answer, concealed
from carrel.interfaces.http.operations import query_of
from carrel.interfaces.http.responses import EventStream, Told, comment, told
from carrel.interfaces.http.services import ApiContext, caller, serving

BATCH = 500
GAP = "gap"
"""Told once, first, when events after the one that the client names are no longer kept."""
_OWN = frozenset(EventType)


async def read(request: Request) -> Response:
    here, who = serving(request), caller(request)
    asked = query_of(request, EventsQuery)
    wanted = EventQuery(
        after=0,
        space_ids=await _space_ids(here, who, asked.space),
        types=frozenset(asked.type) or None,
        limit=asked.limit,
    )
    start = start_of(request.headers.get("Last-Event-ID"), asked.after)
    accept = request.headers.get("Accept", "")
    if "application/json" in accept and "text/event-stream" not in accept:
        query = EventQuery(start or 0, wanted.space_ids, wanted.types, asked.limit)
        events, reached = await here.services.feed.read(who, query)
        return answer(EventList(events=tuple(info(one) for one in events), next=reached))
    return EventStream(_follow(here, who, wanted, start), here.closing)


def info(event: Event) -> EventInfo:
    return EventInfo(
        seq=event.seq,
        type=event.type,
        space=event.space_id,
        at=moment(event.at),
        # What others say in it is theirs.
        data=concealed(event.data) if event.type in _OWN else event.data,
    )


async def _follow(here: ApiContext, who: Caller, wanted: EventQuery, start: int | None) -> Told:
    """What is there goes out in large pieces, what comes then one by one."""
    feed = here.services.feed
    last = await feed.last()
    after = last if start is None else start
    # Something is sent at once: clients know then that they listen, and from where on, so
    # that one whose connection breaks before the first event misses none.
    yield (b"id: %d\n" % after if start is None else b"") + comment("listening")
    if start is not None and (gap := await _gap(here, start, last)) is not None:
        yield told(GAP, gap)
        after = min(start, last)
    while True:
        query = EventQuery(after, wanted.space_ids, wanted.types, BATCH)
        events, reached = await feed.read(who, query)
        if reached == after:
            break
        after = reached
        if events:
            yield b"".join(_told(event) for event in events)
    query = EventQuery(after, wanted.space_ids, wanted.types, BATCH)
    async for event in feed.follow(who, query):
        yield _told(event)


async def _gap(here: ApiContext, start: int, last: int) -> dict[str, int] | None:
    """Numbers are dense, so the next one there is tells whether any are missing."""
    if start > last:
        return {"after": start, "first": last + 1}
    found, _ = await here.services.feed.read(LOCAL, EventQuery(after=start, limit=1))
    if found and found[0].seq > start + 1:
        return {"after": start, "first": found[0].seq}
    return None


def _told(event: Event) -> bytes:
    return told(event.type, info(event), event.seq)


def start_of(last_event_id: str | None, after: int | None) -> int | None:
    if last_event_id is None or last_event_id == "":
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit()) or len(last_event_id) > 18:
        raise MessageInvalid(
            "Last-Event-ID is a number.", hint="Send the id of the last event.", field="header"
        )
    return int(last_event_id)


async def _space_ids(here: ApiContext, who: Caller, words: Sequence[str]) -> frozenset[str] | None:
    if not words:
        return None
    return frozenset([(await here.services.spaces.get(who, word)).space_id for word in words])
