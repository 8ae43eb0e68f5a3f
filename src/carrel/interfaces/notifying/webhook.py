"""A webhook: each notice is sent to an address of the administrator's, as JSON."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, InvalidURL

from carrel.interfaces.notifying.notifier import Notice, NotTold

WAIT_S = 10.0
LATER = (408, 425, 429)
"""Refusals that say: not now."""


class Webhook:
    """Implements `Way`. At least once: whoever answers too late gets it again."""

    def __init__(self, address: str) -> None:
        self._address = address
        # Where it points is the administrator's choice, and is not sent on by the other side.
        self._opener = urllib.request.build_opener(NoRedirect)

    async def tell(self, notice: Notice) -> None:
        await asyncio.to_thread(self._post, json.dumps(notice).encode())

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "carrel"}
        refusal = post(self._opener, self._address, body, headers)
        if refusal is not None:
            raise NotTold(f"the webhook {refusal.message}", for_good=refusal.for_good)


@dataclass(frozen=True)
class Refusal:
    """Why something did not arrive, after the name of who was to have it, and whether another
    try is of no use."""

    message: str
    for_good: bool = False


def post(
    opener: urllib.request.OpenerDirector, url: str, body: bytes, headers: dict[str, str]
) -> Refusal | None:
    """Blocking."""
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with opener.open(request, timeout=WAIT_S) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        with error:
            for_good = error.code < 500 and error.code not in LATER
        return Refusal(f"answered {error.code}", for_good)
    except (OSError, ValueError, HTTPException) as error:
        return Refusal(f"cannot be reached: {error}", isinstance(error, InvalidURL))
    return None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None
