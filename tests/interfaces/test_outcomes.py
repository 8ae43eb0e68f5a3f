"""What can go wrong with an address that outcomes are sent to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from carrel.domain.requests import Webhook
from carrel.interfaces import notifications
from carrel.interfaces.notifications import NoticeWebhook as Notices
from carrel.interfaces.notifications import NotTold, OutcomeSender
from carrel.service.requests.book import NotSent

WAIT_S = 30.0


async def body() -> bytes:
    return b"{}"


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Once, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                while b"{}" not in connection.recv(65536):
                    pass
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        finally:
            thread.join(WAIT_S)


GARBAGE = [b"220 mail.example ESMTP\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000]


@pytest.mark.parametrize("answer", GARBAGE)
async def test_what_is_no_answer_is_tried_again(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(NotSent) as caught:
        await OutcomeSender().send("blue", Webhook(url), body)
    assert not caught.value.for_good
    with answering(answer) as url, pytest.raises(NotTold):
        await Notices(url).tell({})


@pytest.mark.parametrize("url", ["http://127.0.0.1/a b", "http://user:word@127.0.0.1/x"])
async def test_what_is_no_address_is_not(url: str) -> None:
    with pytest.raises(NotSent) as caught:
        await OutcomeSender().send("blue", Webhook(url), body)
    assert caught.value.for_good


@contextlib.contextmanager
def dripping() -> Iterator[str]:
    """Answers each one with a header that never ends, a byte at a time."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as opened:
        listener.settimeout(0.02)

        def serve() -> None:
            found: list[socket.socket] = []
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection = opened.enter_context(listener.accept()[0])
                    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                    found.append(connection)
                for one in found:
                    with contextlib.suppress(OSError):
                        one.sendall(b"y")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        finally:
            over.set()
            thread.join(WAIT_S)


async def test_an_answer_that_never_ends_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "WHOLE_S", 0.2)
    with dripping() as url, pytest.raises(NotSent) as caught:
        await OutcomeSender().send("blue", Webhook(url), body)
    assert not caught.value.for_good


async def test_slow_hosts_of_one_caller_keep_nobody_else_waiting() -> None:
    """What they are to be sent is made when it is sent, and not all in memory until then."""
    sender, made = OutcomeSender(), []

    async def body() -> bytes:
        made.append(b"{}")
        return made[-1]

    with dripping() as url, answering(b"HTTP/1.1 204 -\r\n\r\n") as other:
        sends = [
            asyncio.ensure_future(sender.send("blue", Webhook(url), body))
            for _ in range(2 * notifications.AT_ONCE)
        ]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(WAIT_S):
                await sender.send("red", Webhook(other), body)
            assert len(made) == notifications.AT_ONCE // 2 + 1
        finally:
            for one in sends:
                one.cancel()
            await asyncio.wait(sends)
