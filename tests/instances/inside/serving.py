"""A server behind one of the programs that ask for a token, started for a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

WAIT_S = 60.0
TOKEN = "t0ken-of-this-test"
STOP_S = 20.0


def port_in(path: Path, process: subprocess.Popen[Any]) -> int:
    """As soon as it is there."""
    until = time.monotonic() + WAIT_S
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    return int(path.read_text())


class Served(NamedTuple):
    url: str
    inside_url: str
    process: subprocess.Popen[str]
    log: Path


@contextlib.contextmanager
def served(
    folder: Path,
    program: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """`program` is the interpreter and our file. What it says is in `Served.log`."""
    port_file, log = folder / "inside-port", folder / "log"
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener, log.open("w") as said:
        number = listener.fileno()
        process = subprocess.Popen(
            [*program, "--fd", str(number), "--inside", str(port_file), "--", *command],
            pass_fds=(number,),
            env={**os.environ, "CARREL_TOKEN": TOKEN, **(env or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            text=True,
        )
        port = listener.getsockname()[1]
    try:
        inside = port_in(port_file, process)
        url = "http://127.0.0.1:{}/mcp"
        yield Served(url.format(port), url.format(inside), process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(WAIT_S)


@contextlib.asynccontextmanager
async def connected(url: str, token: str = TOKEN, **options: Any) -> AsyncIterator[Client]:
    """The official SDK's client, with the token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        asyncio.timeout(WAIT_S),
        httpx2.AsyncClient(headers=headers, timeout=WAIT_S) as http,
        Client(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client
