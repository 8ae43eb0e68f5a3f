"""What nobody foresaw ends here: in the log with a number, and as that number at the client."""

from __future__ import annotations

import logging
import secrets

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from carrel.domain.errors import CarrelError
from carrel.interfaces.http.closing import ClientGone
from carrel.interfaces.http.problems import internal, problem_response

GONE = 499
"""No status of HTTP: nobody gets it, it is for the figures."""
_log = logging.getLogger("carrel.http")


class BrokenOff(Exception):
    """An answer that has begun cannot be completed: the client is to see that it is not
    whole. Raised where the reason was already told."""


class Guard:
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
