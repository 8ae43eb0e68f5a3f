"""Connections to the listener's port, and on into a space, by asyncssh.

The listener is the server of one connection and the client of another, to the `sshd` in the space.
Both have keys of their own. What lies above them, the messages of channels and forwards, is handed
on whole: who sends it and who answers is OpenSSH on both sides, so a terminal, a window, a signal,
an exit status and an end of a stream are what they are without a listener, and so is the flow
control of each channel. Only the kinds of channels are looked at.

A connection that takes nothing holds back the other one: no more than what was read at once is
kept here.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import asyncssh
from asyncssh.connection import SSHConnection
from asyncssh.packet import SSHPacket, SSHPacketLogger
from asyncssh.public_key import decode_ssh_public_key

KEXINIT, NEWKEYS, IGNORE, UNIMPLEMENTED = 20, 21, 2, 3
GLOBAL_REQUEST, REQUEST_SUCCESS, REQUEST_FAILURE = 80, 81, 82
CHANNEL_OPEN, OPEN_FAILURE = 90, 92
PROHIBITED = 1
"""The reason of an OPEN_FAILURE: administratively prohibited."""
FROM_CLIENT = frozenset({b"session", b"direct-tcpip", b"direct-streamlocal@openssh.com"})
FROM_SPACE = frozenset({b"forwarded-tcpip", b"forwarded-streamlocal@openssh.com"})
"""Which channels either side may open."""
AGENT = frozenset({b"auth-agent@openssh.com"})
"""… and the space, where a person has switched it on: the client's SSH agent."""
KEY_EXCHANGES = ("mlkem768x25519-sha256", "curve25519-sha256", "curve25519-sha256@libssh.org")
OLDER_EXCHANGES = ("ecdh-sha2-nistp256", "ecdh-sha2-nistp384")
CIPHERS = (
    *("aes128-ctr", "aes256-ctr", "aes192-ctr"),
    *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
)
"""Without chacha20-poly1305, which takes three times as long here; who has that has these."""
SPEAKS = "OpenSSH_9.2 Carrel"
"""Clients look at it to know what the other end understands, and that is OpenSSH."""
MACS = (
    *("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"),
    *("hmac-sha2-256", "hmac-sha2-512"),
)
SIGNATURES = (
    *("ssh-ed25519", "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"),
    *("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
MOST_BEFORE_LOGIN = 1 << 16
"""Bytes that somebody unknown may send; a login takes a few thousand."""
TURN = 32
"""Messages of one connection until the others have their turn: a buffer has thousands of small
ones."""
MOST_OWED = 1000
"""Answers of ours that one side gets when new keys are agreed upon."""
MOST_KEPT = 64 << 20
"""Bytes for one side that are kept while it agrees upon new keys, and the other one does, too."""
FLUSH_S = 30.0
"""For the last bytes of one side to be taken by the other."""

Entry = Callable[["FromClient"], Awaitable["ToSpace"]]
"""Leads who has logged in into the space."""


class _AllChannels(dict[int, Any]):
    """asyncssh looks up who has a channel: the connection itself has all of them."""

    def __init__(self, connection: object) -> None:
        self._connection = connection

    def __missing__(self, number: int) -> object:
        return self._connection


class RelayedConnection(SSHConnection):
    """One of the two."""

    other: RelayedConnection | None = None
    wire: asyncio.Transport | None = None

    def _relay(self) -> None:
        """Called by the constructors of both."""
        self._channels = cast(Any, _AllChannels(self))
        self._reasons: set[str] = set()
        """Why nothing more is to be read from this side now."""
        self._left = TURN
        self._agreeing = self._is_full = False
        self._owed = self._kept = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast(asyncio.Transport, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None = None) -> None:
        super().connection_lost(exc)
        if self.other is not None:
            self.other.finish()

    def finish(self) -> None:
        """Ends when the other side has what was sent to it."""
        wire = self.wire
        if wire is None or wire.is_closing():
            return
        wire.close()
        asyncio.get_running_loop().call_later(FLUSH_S, wire.abort)

    # Not faster than the other side takes it

    def pause_writing(self) -> None:
        self._is_full = True
        if self.other is not None:
            self.other.hold("full")

    def resume_writing(self) -> None:
        self._is_full = False
        self.go_on("answers")
        if self.other is not None:
            self.other.go_on("full")

    def answer(self, pkttype: int, *args: bytes) -> None:
        """What the other side has no part in. Who asks and takes no answers is not heard any
        more. While keys are agreed upon, it must be; then there are so many. Raises
        `ProtocolError`."""
        self._owed += self._agreeing
        if self._owed > MOST_OWED:
            raise asyncssh.ProtocolError("Too many questions.")
        self.send_packet(pkttype, *args)
        if self._is_full:
            self.hold("answers")

    # Not more than the others have

    def _recv_pkthdr(self) -> bool:
        if not self._left:
            if "turn" not in self._reasons:
                self.hold("turn")
                asyncio.get_running_loop().call_soon(self._next_turn)
            return False
        self._left -= 1
        return super()._recv_pkthdr()

    def _next_turn(self) -> None:
        self._left = TURN
        self.go_on("turn")
        if self.wire is not None and not self.wire.is_closing():
            self._recv_data()

    def hold(self, reason: str) -> None:
        self._reasons.add(reason)
        self._read_or_wait()

    def go_on(self, reason: str) -> None:
        self._reasons.discard(reason)
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """When both sides agree upon keys at once, each of them is read: neither would end else."""
        if self.wire is None or self.wire.is_closing():
            return
        if not self._reasons or (self._agreeing and self._reasons == {"keys"}):
            self.wire.resume_reading()
        else:
            self.wire.pause_reading()

    def send_packet(
        self, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None
    ) -> None:
        if pkttype == IGNORE:
            # Sent before each other one, for ciphers that are not offered here.
            return
        if pkttype == KEXINIT:
            self._agreeing = True
            self._read_or_wait()
            if self.other is not None:
                # While new keys are agreed upon, what is for this side is kept.
                self.other.hold("keys")
        super().send_packet(pkttype, *args, handler=handler)
        if pkttype == UNIMPLEMENTED and self._is_full:
            self.hold("answers")
        if pkttype == NEWKEYS:
            self._agreeing, self._owed, self._kept = False, 0, 0
            self._read_or_wait()
            if self.other is not None:
                asyncio.get_running_loop().call_soon(self.other.go_on, "keys")

    def hand_on(self, packet: SSHPacket) -> None:
        assert self.other is not None
        payload = packet.get_full_payload()
        self.other._kept += len(payload) if self.other._agreeing else 0
        if self.other._kept > MOST_KEPT:
            raise asyncssh.ProtocolError("New keys are not agreed upon.")
        self.other.send_packet(payload[0], payload[1:])

    def opens(self, packet: SSHPacket, kinds: frozenset[bytes]) -> None:
        kind, sender = packet.get_string(), packet.get_uint32()
        if kind in kinds:
            self.hand_on(packet)
            return
        why = b"This is not done here."
        answer = struct.pack(">III", sender, PROHIBITED, len(why)) + why + bytes(4)
        self.answer(OPEN_FAILURE, answer)


class FromClient(RelayedConnection, asyncssh.SSHServerConnection):
    """A client's connection to the port."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: asyncssh.SSHServerConnectionOptions,
        entry: Entry,
        gone: Callable[[FromClient], None],
    ) -> None:
        super().__init__(loop, options)
        self._relay()
        self._entry = entry
        self._gone = gone
        self._came = 0
        self.known = False
        """Who it is has been shown."""
        self.key = b""
        """With which key."""

    def connection_lost(self, exc: Exception | None = None) -> None:
        super().connection_lost(exc)
        self._gone(self)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if not self.known:
            self._came += len(data)
            if self._came > MOST_BEFORE_LOGIN:
                self.abort()
                return
        super().data_received(data, datatype)

    async def validate_public_key(
        self, username: str, key_data: bytes, msg: bytes, signature: bytes
    ) -> bool:
        if msg and _first(signature) not in SIGNATURES:
            return False
        good = await super().validate_public_key(username, key_data, msg, signature)
        if good and msg:
            # One may be written in several ways, and is one all the same.
            self.key = decode_ssh_public_key(key_data).public_data
        return good

    def process_packet(self, pkttype: int, pktid: int, packet: SSHPacket) -> bool | Awaitable[None]:
        if pkttype < GLOBAL_REQUEST or pkttype in (REQUEST_SUCCESS, REQUEST_FAILURE):
            # Answers are to our own questions whether it is still there.
            return super().process_packet(pkttype, pktid, packet)
        if self.other is None:
            return self._enter(pkttype, packet)
        self._pass(pkttype, packet)
        return True

    async def _enter(self, pkttype: int, packet: SSHPacket) -> None:
        self.hold("entry")
        other = await self._entry(self)
        if self.wire is None or self.wire.is_closing():
            other.finish()
            return
        self.other, other.other = other, self
        self._pass(pkttype, packet)
        self.go_on("entry")

    def _pass(self, pkttype: int, packet: SSHPacket) -> None:
        if pkttype == CHANNEL_OPEN:
            self.opens(packet, FROM_CLIENT)
        else:
            self.hand_on(packet)


class ToSpace(RelayedConnection, asyncssh.SSHClientConnection):
    """The connection to the `sshd` in the space, which may be a hostile one."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: asyncssh.SSHClientConnectionOptions,
        *,
        agent: bool,
    ) -> None:
        super().__init__(loop, options)
        self._relay()
        self._kinds = FROM_SPACE | AGENT if agent else FROM_SPACE

    def process_packet(self, pkttype: int, pktid: int, packet: SSHPacket) -> bool | Awaitable[None]:
        if pkttype < GLOBAL_REQUEST:
            return super().process_packet(pkttype, pktid, packet)
        if pkttype == GLOBAL_REQUEST:
            # Its own host keys are not the listener's, and the client is asked by the listener
            # whether it is still there.
            packet.get_string()
            if packet.get_boolean():
                self.answer(REQUEST_FAILURE)
        elif self.other is None:
            raise asyncssh.ProtocolError("Nobody is there yet.")
        elif pkttype == CHANNEL_OPEN:
            self.opens(packet, self._kinds)
        else:
            self.hand_on(packet)
        return True


class _Arrival(asyncssh.SSHClient):
    """Whether the login in the space was one."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done

    def auth_completed(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or asyncssh.ConnectionLost("It hung up."))


async def enter(
    sock: Any, host: str, identity: Any, known_hosts: bytes, client: str, *, agent: bool
) -> ToSpace:
    """As the client of the `sshd` at the other end, for a client that says of itself what `client`
    says. Raises `asyncssh.Error`, OSError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    options = asyncssh.SSHClientConnectionOptions(
        config=None,
        client_factory=lambda: _Arrival(done),
        host=host,
        username="carrel",
        client_keys=[identity],
        agent_path=None,
        known_hosts=asyncssh.import_known_hosts(known_hosts.decode()),
        preferred_auth="publickey",
        client_version=_speaks(client),
        kex_algs=("curve25519-sha256", "curve25519-sha256@libssh.org"),
        encryption_algs=("aes128-gcm@openssh.com",),
        mac_algs=MACS,
        compression_algs=None,
    )
    connection = ToSpace(loop, options, agent=agent)
    await loop.create_connection(lambda: connection, sock=sock)
    try:
        await done
    except BaseException:
        connection.abort()
        raise
    return connection


def _speaks(client: str) -> str:
    """The `sshd` looks at it as well."""
    word = client.removeprefix("SSH-2.0-").partition(" ")[0]
    return word if word.isascii() and word.isprintable() and word else "Carrel"


def _first(signature: bytes) -> str:
    """The kind of a signature."""
    length = int.from_bytes(signature[:4], "big")
    return signature[4 : 4 + length].decode("ascii", "replace")
