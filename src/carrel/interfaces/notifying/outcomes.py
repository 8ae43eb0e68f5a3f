"""The outcome of a request, sent to the address that its caller gave."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, InvalidURL

from carrel.domain.requests import Webhook
from carrel.interfaces.notifying.webhook import LATER, WAIT_S, NoRedirect
from carrel.service.requests.parts import NotSent

AT_ONCE = 8
SIGNATURE = "Carrel-Signature"
"""`sha256=` and the HMAC of the body with the caller's secret, in hexadecimal."""


class OutcomeSender:
    """Implements `Sender`. At least once: whoever answers too late gets it again."""

    def __init__(self) -> None:
        # Where it points was checked; nobody on the way may point elsewhere.
        self._opener = urllib.request.build_opener(NoRedirect)
        # Not those of the daemon, which all else would wait for behind a host that is silent.
        self._threads = ThreadPoolExecutor(AT_ONCE, "carrel-outcomes")

    async def send(self, webhook: Webhook, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._post, webhook, body)

    def _post(self, webhook: Webhook, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "carrel"}
        if webhook.secret:
            signed = hmac.new(webhook.secret.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE] = f"sha256={signed}"
        request = urllib.request.Request(webhook.url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=WAIT_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            with error:
                for_good = error.code < 500 and error.code not in LATER
            raise NotSent(f"it answered {error.code}", for_good=for_good) from None
        except (OSError, ValueError, HTTPException) as error:
            for_good = isinstance(error, InvalidURL)
            raise NotSent(f"it cannot be reached: {error}", for_good=for_good) from None
