"""Answers of servers that never come to an end of their headers: no more is kept than it may be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager

import pytest

from carrel.instances.handshake import MAX_HEAD, HandshakeRequest, HttpError, asked

WAIT_S = 60.0
BEGUN = b"HTTP/1.1 200 OK\r\n"
CHUNKED = BEGUN + b"Transfer-Encoding: chunked\r\n\r\n"
FLOOD = 64 << 20
"""As much as a loaded machine sends in seconds: whoever takes it all has no bound."""


@asynccontextmanager
async def says(pieces: Iterable[bytes]) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that answers so to whatever it is asked; how much of it went out in the end."""
    sent: list[int] = []
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                count += len(piece)
        except ConnectionError:
            pass
        finally:
            sent.append(count)
            writer.close()
            gone.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", sent
        await gone.wait()


def flood(begun: bytes, piece: bytes) -> Iterator[bytes]:
    return itertools.chain([begun], itertools.repeat(piece, FLOOD // len(piece)))


async def read(url: str) -> bytes:
    async with asked(HandshakeRequest("GET", url)) as answer:
        return await answer.body()


ENDLESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "headers": lambda: flood(BEGUN, b"X-More: of the same\r\n" * 100),
    "one header": lambda: flood(BEGUN + b"X-Long: ", b"x" * 4096),
    "one name": lambda: flood(BEGUN, b"x" * 4096),
    "trailers": lambda: flood(CHUNKED + b"1\r\nx\r\n0\r\n", b"X-More: of the same\r\n" * 100),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_does_not_end_is_given_up(kind: str) -> None:
    async with asyncio.timeout(WAIT_S), says(ENDLESS[kind]()) as (url, sent):
        with pytest.raises(HttpError, match="headers are too long"):
            await read(url)
    assert sent[0] < FLOOD


async def test_what_is_long_and_ends_is_read() -> None:
    """Of a long body nothing counts as its head, whatever pieces it comes in."""
    head = BEGUN + b"X-Long: " + b"x" * (MAX_HEAD // 2) + b"\r\nContent-Length: 300000\r\n\r\n"
    async with asyncio.timeout(WAIT_S), says([head, *[b"y" * 1000] * 300]) as (url, _):
        assert await read(url) == b"y" * 300_000
    chunks = [b"10\r\n0123456789abcdef\r\n"] * 20_000
    async with asyncio.timeout(WAIT_S), says([CHUNKED, *chunks, b"0\r\n\r\n"]) as (url, _):
        assert await read(url) == b"0123456789abcdef" * 20_000
