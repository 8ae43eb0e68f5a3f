"""HTTP routes of the contract's operations: decode, call the service, encode."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from carrel.api import types, wire
from carrel.api.routes import OPERATIONS, Operation
from carrel.domain.errors import MessageInvalid
from carrel.interfaces.http.answers import answer
from carrel.interfaces.http.lifetime import while_wanted
from carrel.interfaces.http.responses import HeldResponse
from carrel.interfaces.http.services import caller, serving
from carrel.service.access import is_owner

T = TypeVar("T")
_JSON = re.compile(r"application/(?:[^;/]+\+)?json\s*(?:;|$)", re.IGNORECASE)


ByHand = Mapping[str, Callable[[Request], Awaitable[Response]]]


def routes(by_hand: ByHand) -> list[Route]:
    """`by_hand` are operations that need more of HTTP than their row says, by name."""
    for row in OPERATIONS:
        for name in filter(None, (row.body, row.query)):
            wire.prepare(types.find(name))
    return [
        route(row.method, row.path, by_hand.get(row.name) or _endpoint(row)) for row in OPERATIONS
    ]


def named(path: str) -> list[str]:
    """What a path has places for."""
    return re.findall(r"{(\w+)(?::path)?}", path)


class _Route(Route):
    """The figures are by its path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def route(method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    made = _Route(path, endpoint, methods=[method])
    assert made.methods is not None
    # Where there is GET, the framework adds it.
    made.methods.discard("HEAD")
    return made


def _endpoint(row: Operation) -> Callable[[Request], Awaitable[Response]]:
    query = types.find(row.query) if row.query else None
    body = types.find(row.body) if row.body else None
    names = named(row.path)

    async def endpoint(request: Request) -> Response:
        given: list[Any] = [request.path_params[name] for name in names]
        if query is not None:
            given.append(query_of(request, query))
        if body is not None:
            given.append(await body_of(request, body, optional=row.optional))
        here, who = serving(request), caller(request)
        group = getattr(here.services.operations, row.group)
        work = partial(getattr(group, row.verb), who, *given)
        if row.is_list and not is_owner(who):
            return await _in_turn(request, here.lists.of(who.account), work)
        done = await (while_wanted(request, here.closing, work()) if row.waits else work())
        return answer(done, row.status)

    return endpoint


async def _in_turn(
    request: Request, turns: AbstractAsyncContextManager[None], work: Callable[[], Awaitable[Any]]
) -> Response:
    """Others than the owner wrote what is in the list, and their client reads it as slowly as it
    likes: neither its memory nor its time is more than their share."""
    async with AsyncExitStack() as turn:
        await turn.enter_async_context(turns)
        done = await work()
        begun = time.thread_time()
        found = answer(done)
        spend = request.scope.get("state", {}).get("turn")
        if spend is not None:
            await spend(time.thread_time() - begun)
        return HeldResponse(found, turn.pop_all())


def query_of(connection: HTTPConnection, kind: type[T]) -> T:
    return wire.from_query(query_fields(connection.scope["query_string"]), kind)


async def body_of(request: Request, kind: type[T], *, optional: bool = False) -> T:
    data = await request.body()
    if optional and (not data or data.strip() == b"null"):
        return kind()
    sent = request.headers.get("Content-Type", "")
    if not _JSON.match(sent.strip()):
        raise MessageInvalid(
            "The body has to be JSON.", hint="Send Content-Type: application/json.", field="body"
        )
    return wire.from_json(data, kind)


def key_of(request: Request, longest: int = 255) -> str:
    """The `Idempotency-Key`; empty when there is none. `MessageInvalid`."""
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > longest or not re.fullmatch(r"[ -~]*", key):
        raise MessageInvalid(
            "The idempotency key cannot be used.",
            hint=f"Use up to {longest} printable ASCII characters.",
            field="header.idempotency-key",
        )
    return key


# Text that names files and arguments, where not everything is UTF-8.
#
# A byte that is no UTF-8 is the lone surrogate U+DC80 to U+DCFF, as `os.fsdecode` has it. In
# JSON that is the escape `\udc80` to `\udcff`, both ways; in a query it is the byte itself,
# percent-encoded. So every name goes out and comes back as it is.


def query_fields(query: bytes) -> dict[str, list[str]]:
    """All values of all parameters, in the same way."""
    found: dict[str, list[str]] = {}
    for part in query.split(b"&"):
        if part:
            key, _, value = (
                unquote_to_bytes(one) for one in part.replace(b"+", b" ").partition(b"=")
            )
            found.setdefault(key.decode("utf-8", "surrogateescape"), []).append(
                value.decode("utf-8", "surrogateescape")
            )
    return found
