"""Who may come over HTTP: by the Host and Origin that are named, by token."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable

import psutil
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WEB_PORT = 80


def known_as(host: str, port: int, also: Iterable[str]) -> TransportSecuritySettings:
    """What requests may call this server: a page whose name was made to lead here calls it
    something else."""
    names = [*LOOPBACK, *_names(host), *also]
    hosts = [f"[{name}]" if ":" in name else name for name in dict.fromkeys(names)]
    found = [f"{name}:{port}" for name in hosts] + (hosts if port == WEB_PORT else [])
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=found,
        allowed_origins=[f"http://{one}" for one in found],
    )


def _names(host: str) -> list[str]:
    """Of all addresses when it listens on all."""
    try:
        every = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        every = False
    if not every:
        return [host]
    families = (socket.AF_INET, socket.AF_INET6)
    found = [one for several in psutil.net_if_addrs().values() for one in several]
    return [socket.gethostname(), *(one.address for one in found if one.family in families)]


class Bearer:
    """Lets in who has the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._admits(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        problem = {"code": "authentication_failed", "message": "This needs the token."}
        answer = JSONResponse(problem, 401, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = f"{scheme.lower()} {token}".encode()
        return hmac.compare_digest(given, self._wanted)
