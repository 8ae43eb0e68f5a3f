"""Who calls: decided before anything else is looked at.

On the Unix socket the kernel has said who connected (see `connections`). On TCP it takes a
token, and a page in a browser gets nowhere: not by its own origin, and not by a name that
somebody points at this machine. On the port of the older API the kernel is asked who has connected.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrel.api.routes import OPERATIONS
from carrel.domain.access import LOCAL, Caller, working_for
from carrel.domain.errors import AuthenticationFailed, CarrelError, Forbidden, RateLimited
from carrel.interfaces.http.answers import (
    AnswerReader,
    RouteNotFound,
    problem_response,
    reader,
)
from carrel.interfaces.http.connections import OWNERS, not_owners
from carrel.interfaces.http.lifetime import ClientGone
from carrel.interfaces.http.services import ApiOptions
from carrel.service.tokens import Tokens

LOCAL_STATE = "local"
"""Set by the listener on the Unix socket, and by nobody else."""
OLDER_PATHS = frozenset(row.path for row in OPERATIONS if row.group == "sessions")
"""All that there is on the port of the older API."""
OPEN_PATHS = frozenset({"/v1/health"})
TRIES = 20
WINDOW_S = 60.0
"""So many wrong tokens in so much time are a person's mistakes; more are somebody guessing."""
ADDRESSES = 4096
"""Remembered at most; whoever has more addresses can also try from each of them."""
MAX_PORT = 65535
_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)\]|(?P<name>[0-9A-Za-z_.-]+?)\.?)(?::(?P<port>[0-9]{1,5}))?"
)
"""A name may end with the dot of the root, as browsers send it."""
_METHODS = "GET, POST, PUT, PATCH, DELETE"
_HEADERS = "Authorization, Content-Type, Accept, Idempotency-Key, Last-Event-ID, Range"

Clock = Callable[[], float]


class Tries:
    """Wrong tokens by address. Nobody's right one is refused for what others behind the same
    address do: the secret is looked at first, and
    cannot be guessed."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def failed(self, address: str) -> None:
        """Raises `RateLimited` when there were too many before."""
        count, until = self._failed.pop(address, (0, 0.0))
        now = self._clock()
        if now >= until:
            count, until = 0, now + WINDOW_S
        self._failed[address] = (count + 1, until)
        if len(self._failed) > ADDRESSES:
            self._failed.popitem(last=False)
        if count >= TRIES:
            raise RateLimited(
                "Too many wrong tokens came from this address.",
                hint="Wait, and try with the right one.",
                retry_after_s=int(until - now) + 1,
            )


_STRANGER = ""
"""The name of all callers without a token."""


class AccessLayer:
    """Puts the `Caller` into the scope, or answers itself."""

    def __init__(self, app: ASGIApp, tokens: Tokens, options: ApiOptions) -> None:
        self._app = app
        self._tokens = tokens
        self._data = str(options.data)
        self._hosts = frozenset(host.lower() for host in options.hosts)
        self._origins = options.origins
        self._tries = Tries()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = _single(scope["headers"])
        origin = headers.get(b"origin")
        try:
            if OWNERS in scope.get("state", {}):
                _check_older(scope, origin)
            self._check_origin(origin)
            if origin is not None:
                if _is_preflight(scope, headers):
                    await _allow(origin)(scope, receive, send)
                    return
                send = _with_origin(send, origin)
            found = scope["carrel.caller"] = await self._caller(scope, headers)
            reader.set(AnswerReader(found, self._data))
            working_for.set(_STRANGER if found is None else found.account)
        except CarrelError as error:
            await problem_response(error)(scope, receive, send)
            return
        if scope["type"] == "http" and "carrel.recheck" in scope:
            await Leash(scope, receive, send).run(self._app)
        else:
            await self._app(scope, receive, choosing(scope, send))

    def _check_origin(self, origin: bytes | None) -> None:
        if origin is not None and origin.decode("latin-1") not in self._origins:
            raise Forbidden(
                "Web pages may not call the daemon.",
                hint="Have the page's origin added to `allowed_origins`.",
            )

    async def _caller(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Caller | None:
        if scope.get("state", {}).get(LOCAL_STATE) is True:
            return LOCAL
        self._check_host(scope, headers.get(b"host", b""))
        is_owners = scope.get("state", {}).get(OWNERS)
        if is_owners is not None:
            return await _owner(scope, is_owners)
        if scope["path"] in OPEN_PATHS:
            return None
        header = headers.get(b"authorization")
        secret = offered_secret(scope) if header is None else ""
        secret = secret or _bearer(header)
        client = scope.get("client")
        address = str(client[0]) if client else ""
        try:
            caller = await self._tokens.caller(secret)
        except AuthenticationFailed:
            self._tries.failed(address)
            raise
        know = scope.get("state", {}).get("know")
        if know is not None:
            know(caller.account)
        scope["carrel.recheck"] = functools.partial(self._tokens.caller, secret)
        return caller

    def _check_host(self, scope: Scope, host: bytes) -> None:
        """A name that a stranger's DNS points here is in no list. An address that is the
        connection's own needs none: no name was asked for it."""
        name = _host_name(host.decode("latin-1"))
        server = scope.get("server")
        if name in self._hosts or _is_loopback(name) or (server and name == server[0]):
            return
        raise Forbidden(
            "The daemon does not accept calls under this host name.",
            hint="Have it added to `allowed_hosts`, or call 127.0.0.1.",
        )


def _check_older(scope: Scope, origin: bytes | None) -> None:
    """Without a token, no page is believed, whatever the settings say of its origin."""
    if scope["type"] != "http" or scope["path"] not in OLDER_PATHS:
        known = " and ".join(sorted(OLDER_PATHS, reverse=True))
        raise RouteNotFound("There is nothing at this path.", hint=f"This port has {known}.")
    if origin is not None:
        raise Forbidden("Web pages may not call this port.", hint="Use the port of `listen`.")


async def _owner(scope: Scope, is_owners: Callable[[], Awaitable[bool]]) -> Caller:
    if not await is_owners():
        raise not_owners()
    scope["state"]["know"](LOCAL.account)
    return LOCAL


def _single(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers that matter here. One that comes twice is joined, so it matches nothing."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in (b"host", b"origin", b"authorization", b"access-control-request-method"):
            found[name] = value if name not in found else found[name] + b", " + value
    return found


def _bearer(header: bytes | None) -> str:
    kind, _, secret = (header or b"").decode("latin-1").partition(" ")
    if kind.lower() != "bearer" or not secret.strip():
        raise AuthenticationFailed(
            "A token is needed here.", hint="Send Authorization: Bearer <token>."
        )
    return secret.strip()


def _host_name(host: str) -> str:
    """Without the port and the brackets; empty for what is no `host[:port]` as a whole."""
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > MAX_PORT:
        return ""
    return (found["six"] or found["name"]).lower()


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_preflight(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    asks = b"access-control-request-method" in headers
    return scope["type"] == "http" and scope["method"] == "OPTIONS" and asks


def _cors(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def _allow(origin: bytes) -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Origin": origin.decode("latin-1"),
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _HEADERS,
            "Vary": "Origin",
        },
    )


def _with_origin(send: Send, origin: bytes) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_cors(origin)]}
        await send(message)

    return sending


RECHECK_S = 15.0
"""So long a token that was revoked may go on with what it has begun."""


class Leash:
    """What a token has begun over plain HTTP ends with the token, as if its client had gone:
    uploads, downloads, commands and whatever else is waited for."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._over = asyncio.Event()
        self._answered = False

    async def run(self, app: ASGIApp) -> None:
        watch: list[asyncio.Task[None]] = []
        # Nearly all are done by then, and cost a timer only.
        timer = asyncio.get_running_loop().call_later(
            RECHECK_S, lambda: watch.append(asyncio.create_task(self._look()))
        )
        try:
            await app(self._scope, self._receiving, self._sending)
        except (ClientGone, ClientDisconnect):
            if not self._over.is_set():
                raise
        finally:
            timer.cancel()
            for task in watch:
                task.cancel()
        if self._over.is_set() and not self._answered:
            try:
                await still_allowed(self._scope)
            except CarrelError as error:
                await problem_response(error)(self._scope, self._receive, self._send)

    async def _look(self) -> None:
        try:
            while True:
                await still_allowed(self._scope)
                await asyncio.sleep(RECHECK_S)
        except CarrelError:
            self._over.set()

    async def _receiving(self) -> Message:
        over = asyncio.ensure_future(self._over.wait())
        coming = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({over, coming}, return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if self._over.is_set() else coming.result()
        finally:
            over.cancel()
            coming.cancel()

    async def _sending(self, message: Message) -> None:
        if not self._over.is_set():
            self._answered = True
            await self._send(message)


async def still_allowed(scope: Mapping[str, Any]) -> None:
    """For streams that go on for long: raises `AuthenticationFailed` when the token of their
    beginning was revoked meanwhile, or its time is over."""
    recheck = scope.get("carrel.recheck")
    if recheck is not None:
        await recheck()


# WebSockets of web pages. A page cannot set headers for one, but may offer protocols:
#
#     new WebSocket(url, ["carrel", "carrel.token." + token])
#
# So the token is in a header, and neither in an address nor in anything that keeps addresses.

PROTOCOL = "carrel"
"""What is chosen: browsers close a connection on which none of their offers was."""
TOKEN = f"{PROTOCOL}.token."


def offered_secret(scope: Mapping[str, Any]) -> str:
    """Empty when there is none."""
    offered = (one.removeprefix(TOKEN) for one in _offers(scope) if one.startswith(TOKEN))
    return next(offered, "")


def choosing(scope: Mapping[str, Any], send: Send) -> Send:
    """Sends as `send` does, and says which protocol was chosen; never the one with the token."""
    if PROTOCOL not in _offers(scope):
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "websocket.accept" and not message.get("subprotocol"):
            message = {**message, "subprotocol": PROTOCOL}
        await send(message)

    return sending


def _offers(scope: Mapping[str, Any]) -> list[str]:
    return list(scope.get("subprotocols", ())) if scope["type"] == "websocket" else []
