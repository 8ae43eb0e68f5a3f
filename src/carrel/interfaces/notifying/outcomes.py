"""The outcome of a request, sent to the address that its caller gave."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from carrel.domain.requests import Webhook
from carrel.interfaces.notifying.webhook import NoRedirect, post
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
        refusal = post(self._opener, webhook.url, body, headers)
        if refusal is not None:
            raise NotSent(f"it {refusal.message}", for_good=refusal.for_good)
