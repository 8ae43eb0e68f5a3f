"""Answers: JSON, without a loss for names that are no UTF-8; errors as problem details (RFC
9457), with the status that follows from their kind; and the layer in which unforeseen errors
end.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from carrel.domain.access import Caller
from carrel.domain.errors import CarrelError, RequestError, declared
from carrel.interfaces.http.lifetime import ClientGone
from carrel.service import access

JSON = "application/json"
View = dict[str, Any]
_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        # A lone surrogate stands for a byte that is no UTF-8: see `operations.query_fields`.
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


@dataclass(frozen=True)
class AnswerReader:
    """Who reads what is answered. The daemon's folders are named to its owner only."""

    caller: Caller | None = None
    data: str = ""

    @property
    def is_owner(self) -> bool:
        return self.caller is not None and access.is_owner(self.caller)


_NOBODY = AnswerReader()
reader: ContextVar[AnswerReader] = ContextVar("reader", default=_NOBODY)
"""Of the request that is being answered: set for each of them where its caller is found out."""


def concealed(value: Any) -> Any:
    """Something in Carrel's own words, as it may be read. Never for what is others' own."""
    who = reader.get()
    return access.concealed(who.caller, who.data, value)


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type=JSON)


def bytes_answer(data: bytes, headers: Mapping[str, str], status: int = 200) -> Response:
    """What somebody's program wrote: never to be looked at as a page."""
    safe: dict[str, Any] = {"X-Content-Type-Options": "nosniff", **headers}
    return Response(data, status, safe, media_type="application/octet-stream")


# Problem details

PROBLEM = "application/problem+json"

STATUS = {code: one.kind.status for code, one in declared().items()} | {
    # Of HTTP itself.
    "route_not_found": 404,
    "method_not_allowed": 405,
    "range_not_satisfiable": 416,
    "request_timeout": 408,
    "header_too_large": 431,
}
_OWN = frozenset({"type", "title", "status", "code", "detail", "hint"})


class RouteNotFound(RequestError):
    code = "route_not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class RangeNotSatisfiable(RequestError):
    code = "range_not_satisfiable"


def status_of(code: str) -> int:
    return STATUS.get(code, 500)


def details_of(error: CarrelError) -> dict[str, object]:
    """The problem as members of a JSON object."""
    status = status_of(error.code)
    problem: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code,
        "detail": concealed(error.message),
    }
    if error.hint:
        problem["hint"] = concealed(error.hint)
    for name, value in error.details.items():
        if name not in _OWN:
            problem[name] = concealed(_plain(value))
    return problem


def internal(log_id: str) -> CarrelError:
    """For what nobody foresaw: the client gets a number to look for, and nothing else."""
    return CarrelError(
        "Something went wrong in the daemon.",
        hint=f"Its log has more: look for {log_id}.",
        log=log_id,
    )


def problem_response(error: CarrelError, headers: dict[str, str] | None = None) -> Response:
    own = dict(headers or {})
    if error.code == "authentication_failed":
        own["WWW-Authenticate"] = "Bearer"
    if error.code == "rate_limited":
        own.setdefault("Retry-After", str(error.details.get("retry_after_s", 60)))
    body = encode(details_of(error))
    return Response(body, status_of(error.code), own, media_type=PROBLEM)


def _plain(value: object) -> object:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError):
        return str(value)


# Unforeseen errors: in the log with a number, and as that number at the client

GONE = 499
"""No status of HTTP: nobody gets it, it is for the figures."""
_log = logging.getLogger("carrel.http")


class BrokenOff(Exception):
    """An answer that has begun cannot be completed: the client is to see that it is not
    whole. Raised where the reason was already told."""


class ErrorLayer:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except (ClientDisconnect, ClientDisconnected, ClientGone):
            # There is nobody to tell, but the server and the figures want an answer.
            if not begun and scope["type"] == "http":
                await Response(status_code=GONE)(scope, receive, send)
        except CarrelError as error:
            await _answer(problem_response(error), begun, scope, receive, send)
        except BrokenOff:
            _break_off(scope)
        except Exception as error:
            what = f"{scope.get('method', 'WS')} {scope['path']}"
            response = problem_response(foreseen(error, what))
            await _answer(response, begun, scope, receive, send)


def foreseen(error: Exception, what: str) -> CarrelError:
    """The error itself; one that nobody foresaw goes to the log, and its number to the
    client."""
    if isinstance(error, CarrelError):
        return error
    number = secrets.token_hex(4)
    _log.error("%s: %s failed", number, what, exc_info=error)
    return internal(number)


async def _answer(
    response: ASGIApp, begun: bool, scope: Scope, receive: Receive, send: Send
) -> None:
    if begun:
        _break_off(scope)
    else:
        await response(scope, receive, send)


def _break_off(scope: Scope) -> None:
    """The connection goes, so that half an answer does not look like a whole one."""
    abort = scope.get("state", {}).get("abort")
    if abort is not None:
        abort()
