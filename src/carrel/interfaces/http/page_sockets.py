"""WebSockets of web pages. A page cannot set headers for one, but may offer protocols:

    new WebSocket(url, ["carrel", "carrel.token." + token])

So the token is in a header, and neither in an address nor in anything that keeps addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Message, Send

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
