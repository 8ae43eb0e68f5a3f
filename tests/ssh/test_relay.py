"""What of a hostile `sshd` comes through the listener."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import asyncssh
import pytest
from asyncssh.packet import SSHPacket

from carrel.ssh.relay import (
    CHANNEL_OPEN,
    GLOBAL_REQUEST,
    OPEN_FAILURE,
    REQUEST_FAILURE,
    RelayedConnection,
    enter,
)

WAIT_S = 30.0
NUMBER = 7


def _text(word: bytes) -> bytes:
    return struct.pack(">I", len(word)) + word


class Client(RelayedConnection):
    """In the place of who came: what is handed on to it is kept."""

    def __init__(self) -> None:
        self._relay()
        self.got: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        self.got.put_nowait((pkttype, b"".join(args)))

    def finish(self) -> None:
        self.send_packet(0)


class HostileServer(asyncssh.SSHServer):
    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return True


class HostileConnection(asyncssh.SSHServerConnection):
    """It says what it likes, and keeps what it is answered."""

    def __init__(self, options: asyncssh.SSHServerConnectionOptions) -> None:
        super().__init__(asyncio.get_running_loop(), options)
        self.answers: asyncio.Queue[int] = asyncio.Queue()

    def process_packet(self, pkttype: int, pktid: int, packet: SSHPacket) -> bool | Awaitable[None]:
        if pkttype in (OPEN_FAILURE, REQUEST_FAILURE):
            self.answers.put_nowait(pkttype)
            return True
        return super().process_packet(pkttype, pktid, packet)


Behind = Callable[[bool], Awaitable[tuple[HostileConnection, Client]]]


@pytest.fixture
def behind() -> Behind:
    """A hostile server and the client that it can reach; whether the agent of keys is lent."""

    async def make(agent: bool) -> tuple[HostileConnection, Client]:
        key = asyncssh.generate_private_key("ssh-ed25519")
        options = asyncssh.SSHServerConnectionOptions(
            config=None, server_factory=HostileServer, server_host_keys=[key]
        )
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        hostile = HostileConnection(options)
        await loop.connect_accepted_socket(lambda: hostile, theirs)
        known = b"* " + key.export_public_key()
        inner = await enter(ours, "sp_x.carrel", key, known, "SSH-2.0-Any", agent=agent)
        client = Client()
        inner.other = client
        return hostile, client

    return make


async def test_it_gets_no_agent_and_no_display(behind: Behind) -> None:
    async with asyncio.timeout(WAIT_S):
        hostile, client = await behind(False)
        for kind in (b"auth-agent@openssh.com", b"x11", b"session", b"direct-tcpip", b""):
            hostile.send_packet(CHANNEL_OPEN, _text(kind), struct.pack(">III", NUMBER, 9, 9))
            assert await hostile.answers.get() == OPEN_FAILURE, kind
        assert client.got.empty()
        # What the client asked for comes through as it is.
        opened = (_text(b"forwarded-tcpip"), struct.pack(">III", NUMBER, 9, 9))
        hostile.send_packet(CHANNEL_OPEN, *opened)
        assert await client.got.get() == (CHANNEL_OPEN, b"".join(opened))
        hostile.abort()


async def test_it_gets_the_agent_that_is_lent(behind: Behind) -> None:
    async with asyncio.timeout(WAIT_S):
        hostile, client = await behind(True)
        opened = (_text(b"auth-agent@openssh.com"), struct.pack(">III", NUMBER, 9, 9))
        hostile.send_packet(CHANNEL_OPEN, *opened)
        assert await client.got.get() == (CHANNEL_OPEN, b"".join(opened))
        hostile.abort()


async def test_it_says_nothing_of_host_keys(behind: Behind) -> None:
    """Its own are not the listener's: a client would keep them for that."""
    async with asyncio.timeout(WAIT_S):
        hostile, client = await behind(False)
        hostile.send_packet(GLOBAL_REQUEST, _text(b"hostkeys-00@openssh.com"), b"\0", _text(b"x"))
        hostile.send_packet(GLOBAL_REQUEST, _text(b"keepalive@openssh.com"), b"\1")
        assert await hostile.answers.get() == REQUEST_FAILURE
        assert client.got.empty()
        hostile.abort()


async def test_its_end_is_the_end(behind: Behind) -> None:
    async with asyncio.timeout(WAIT_S):
        hostile, client = await behind(False)
        hostile.send_packet(CHANNEL_OPEN, b"\0\0")
        assert cast(Any, await client.got.get())[0] == 0
