"""What happens to spaces: as a stream from any point of the log, or what there is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from pydantic import StringConstraints
from starlette.responses import Response

from carrel.domain.access import LOCAL, Caller
from carrel.domain.errors import MessageInvalid
from carrel.domain.events import Event, EventQuery
from carrel.interfaces.http.documenting import EVENT_STREAM, SPACE, errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.admin import EventList
from carrel.interfaces.http.serving import Serving, caller, serving
from carrel.interfaces.http.streams import EventStream, Told, comment, told
from carrel.interfaces.http.views import event_view

BATCH = 500
GAP = "gap"
"""Told once, first, when events after the one that the client names are no longer kept."""

TypeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.]{0,99}$")]
"""One of Carrel's own (`space.state`), or of a message on the hub (`buffer_…`)."""

router = APIRouter(tags=["events"])


@router.get(
    "/v1/events",
    response_model=EventList,
    responses={
        **errors(*SPACE),
        200: {
            "description": "A stream; with `Accept: application/json` what there is",
            "content": EVENT_STREAM,
        },
    },
)
async def read_events(
    request: Request,
    space: Annotated[list[str], Query(max_length=100)] = [],  # noqa: B006
    type: Annotated[list[TypeName], Query(max_length=100)] = [],  # noqa: B006
    after: Annotated[int | None, Query(ge=0, lt=1 << 62)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = BATCH,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """`limit` is for `application/json` only."""
    here, who = serving(request), caller(request)
    wanted = EventQuery(
        after=0,
        space_ids=await _space_ids(here, who, space),
        types=frozenset(type) or None,
        limit=limit,
    )
    start = start_of(last_event_id, after)
    if "application/json" in accept and "text/event-stream" not in accept:
        query = EventQuery(start or 0, wanted.space_ids, wanted.types, limit)
        events, reached = await here.services.feed.read(who, query)
        return answer({"events": [event_view(one) for one in events], "next": reached})
    return EventStream(_follow(here, who, wanted, start), here.closing)


async def _follow(here: Serving, who: Caller, wanted: EventQuery, start: int | None) -> Told:
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


async def _gap(here: Serving, start: int, last: int) -> dict[str, int] | None:
    """Numbers are dense, so the next one there is tells whether any are missing."""
    if start > last:
        return {"after": start, "first": last + 1}
    found, _ = await here.services.feed.read(LOCAL, EventQuery(after=start, limit=1))
    if found and found[0].seq > start + 1:
        return {"after": start, "first": found[0].seq}
    return None


def _told(event: Event) -> bytes:
    return told(event.type, event_view(event), event.seq)


def start_of(last_event_id: str | None, after: int | None) -> int | None:
    if last_event_id is None or last_event_id == "":
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit()) or len(last_event_id) > 18:
        raise MessageInvalid(
            "Last-Event-ID is a number.", hint="Send the id of the last event.", field="header"
        )
    return int(last_event_id)


async def _space_ids(here: Serving, who: Caller, words: list[str]) -> frozenset[str] | None:
    if not words:
        return None
    return frozenset([(await here.services.spaces.get(who, word)).space_id for word in words])
