"""Where the server may listen over HTTP; known before the SDK is loaded, which takes most of a
second."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from carrel.domain.errors import Forbidden, MessageInvalid


@dataclass(frozen=True)
class Http:
    host: str
    port: int
    """0 is any that is free."""
    token: str = ""
    """Empty: everybody who reaches it is let in."""
    names: Sequence[str] = ()
    """By which the server is known beside its addresses."""
    made: bool = False
    """Nobody knows the token yet."""

    @classmethod
    def at(cls, address: str, token: str, names: Sequence[str], *, guarded: bool = False) -> Http:
        """`address` is HOST:PORT, with brackets around an IPv6 address. A token is made when
        none is given, unless something before it asks who comes: it is `guarded`. Raises
        `MessageInvalid`, and `Forbidden` where others could come and there is no token."""
        host, port = parse_address(address)
        check_token(host, token)
        made = not token and not guarded
        if made:
            token = secrets.token_urlsafe(32)
        return cls(host, port, token, names, made)


def parse_address(text: str) -> tuple[str, int]:
    """`MessageInvalid`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise MessageInvalid(
            f"{text[:80]!r} is no address to listen on.", hint="For example: 127.0.0.1:0"
        )
    return host, int(port)


def check_token(host: str, token: str) -> None:
    """Raises `Forbidden`."""
    if not token and not _is_loopback(host):
        raise Forbidden(
            f"Others could reach {host}, and no token is required.",
            hint="Set CARREL_MCP_TOKEN, or listen on 127.0.0.1.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
