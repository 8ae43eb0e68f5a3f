"""What can go wrong with an address that outcomes are sent to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from carrel.domain.requests import Webhook
from carrel.interfaces.notifications import NoticeWebhook as Notices
from carrel.interfaces.notifications import NotTold, OutcomeSender
from carrel.service.requests.book import NotSent

WAIT_S = 30.0


@contextmanager
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
        await OutcomeSender().send(Webhook(url), b"{}")
    assert not caught.value.for_good
    with answering(answer) as url, pytest.raises(NotTold):
        await Notices(url).tell({})


@pytest.mark.parametrize("url", ["http://127.0.0.1/a b", "http://user:word@127.0.0.1/x"])
async def test_what_is_no_address_is_not(url: str) -> None:
    with pytest.raises(NotSent) as caught:
        await OutcomeSender().send(Webhook(url), b"{}")
    assert caught.value.for_good
