"""The gate of a server that binds a port in its sandbox and cannot check a token.

It holds a socket that listens on the host, lets in who belongs to the owner and shows the token,
and moves bytes to the server's port and back. Standard library only, and little of that, for
there is one per instance: it is run as

    python -I -S gate.py --listen FD --diag FD --uids 0,1000 [--bound N]

with the token in CARREL_TOKEN. Its standard input has lines `target HOST PORT`, the newest of
which counts; until the first one, who comes waits. The end of its input does not end it.

The user alone says little: what runs in a sandbox with the machine's network may have the same.
Of the protocol the gate knows the head of the first request on a connection, which must have the
token, a `Host` by which this address was given out, and no `Origin` of a page from elsewhere. The
requests after it are not looked at: a connection belongs to the one who opened it, and a browser
has connections of their own for each name that a page calls us by.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import struct
import sys
from _operator import _compare_digest
from _socket import AF_INET, AF_INET6, IPPROTO_TCP, SO_LINGER, SOL_SOCKET, socket

BOUND = 256
"""Connections that were let in and may be open at once; more wait in the kernel's queue."""
HEADS = 64
"""Connections that have not shown the token yet; one more, and the oldest of them goes."""
ACCEPTED = 512
"""Connections that are accepted at once: strangers who come again and again keep nobody who is let
in from being served, nor, in the kernel's queue, who comes after them."""
MAX_HEAD = 64 * 1024
"""Bytes of the first head."""
MAX_DRAINED = 1024 * 1024
"""Bytes that are read of one who was refused, so that it reads why."""
PIECE = 128 * 1024
"""Bytes that are moved at a time. The place for them is shared: what is idle takes none."""
AGAIN_S = 1.0
"""Until the next try when the kernel had no descriptor for a connection."""
TOKEN = "CARREL_TOKEN"
LINE = 1024
"""Bytes of one line of input."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
GONE = (
    *(errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM, errno.ENETDOWN, errno.ENONET),
    *(errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH),
)
"""What accepting says of the one who came, as accept(2) has it, and not of the listener."""
IN, OUT = select.EPOLLIN, select.EPOLLOUT

# As linux/netlink.h and linux/inet_diag.h have it.
_HEAD = struct.Struct("=IHHII")
_ABOUT = struct.Struct("=BBBBI")
_IDENTITY = struct.Struct("!HH16s16s4s8s")
_HELD = struct.Struct("=II")
_STATE_AT, _IDENTITY_AT, _HELD_AT = 17, 20, 80
_BY_FAMILY, _REQUEST, _ANY_STATE, _NO_COOKIE = 20, 1, 0xFFFFFFFF, b"\xff" * 8
_LOOPBACK = struct.pack("=I", 1)
"""The device, which has this number in every network: the listening socket may be bound to it."""
_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2, _CLOSE_WAIT, _LISTEN = 1, 4, 5, 8, 10
_TCP_INFO = 11
_NOBODY = (0, 0, 0)
_NOTHING = memoryview(b"")
_UNWATCHED = -1
_MAPPED = bytes(10) + b"\xff\xff"
_AT_ONCE = struct.pack("=ii", 1, 0)
_IN_NAMES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"
"""Of headers, as HTTP has it."""

Address = tuple[str, int] | tuple[str, int, int, int]


class Peers:
    """Whose the other end of a connection is, as the kernel tells by `diag`: a sock_diag socket
    of the network in which the connection was made, which nobody else uses."""

    def __init__(self, diag: int, uids: frozenset[int]) -> None:
        self._diag = socket(fileno=diag)
        self._uids = uids
        self._number = 0

    def close(self) -> None:
        self._diag.close()

    def admits(self, client: socket) -> bool:
        return self.inode(client) != 0

    def inode(self, client: socket) -> int:
        """Of the other end's socket; 0 when none of our users has it. A sender that has closed
        already is told as root's, so only what a process still holds counts. Our end must be alive
        *afterwards*: else the answer may be about somebody who was given the same port since."""
        state, uid, inode = self._ask(client.getpeername(), client.getsockname())
        known = (
            uid in self._uids
            and state in (_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2)
            and state_of(client) in (_ESTABLISHED, _CLOSE_WAIT)
        )
        return inode if known else 0

    def knows(self, listener: socket) -> bool:
        here = listener.getsockname()
        nobody = ("::" if packed(here[0])[0] == AF_INET6 else "0.0.0.0", 0)
        return self._ask(here, nobody)[0] == _LISTEN

    def _ask(self, source: Address, target: Address) -> tuple[int, int, int]:
        """State, user and inode of the socket from `source` to `target`; zeros: there is none."""
        (family, start), (_, end) = packed(source[0]), packed(target[0])
        self._number += 1
        identity = _IDENTITY.pack(source[1], target[1], start, end, _LOOPBACK, _NO_COOKIE)
        about = _ABOUT.pack(family, IPPROTO_TCP, 0, 0, _ANY_STATE) + identity
        head = _HEAD.pack(_HEAD.size + len(about), _BY_FAMILY, _REQUEST, self._number, 0)
        try:
            self._diag.send(head + about)
            answer = self._answer()
        except OSError:
            return _NOBODY
        if len(answer) < _HELD_AT + _HELD.size:
            return _NOBODY
        # A listener at that address is found where there is no connection.
        if _IDENTITY.unpack_from(answer, _IDENTITY_AT)[:2] != (source[1], target[1]):
            return _NOBODY
        return (answer[_STATE_AT], *_HELD.unpack_from(answer, _HELD_AT))

    def _answer(self) -> bytes:
        """It is there as soon as the question was taken: there is nothing to wait for."""
        while True:
            answer, sender = self._diag.recvfrom(8192, _socket.MSG_DONTWAIT)
            _, kind, _, number, _ = _HEAD.unpack_from(answer)
            if sender[0] == 0 and number == self._number:
                return answer if kind == _BY_FAMILY else b""


def packed(host: str) -> tuple[int, bytes]:
    """An IPv4 address in IPv6's clothes is an IPv4 address."""
    if ":" not in host:
        return AF_INET, _socket.inet_pton(AF_INET, host)
    raw = _socket.inet_pton(AF_INET6, host.partition("%")[0])
    return (AF_INET, raw[12:]) if raw.startswith(_MAPPED) else (AF_INET6, raw)


def state_of(end: socket) -> int:
    return end.getsockopt(IPPROTO_TCP, _TCP_INFO, 8)[0]


class HeadRules:
    """What the first head on a connection must have. `uvicorn_shim.py` has the same rules for
    requests that a server has parsed; the two files are run apart, and nothing else is there."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token.encode()
        self._names = frozenset(b"%s:%d" % (name, port) for name in (b"127.0.0.1", b"localhost"))

    def problem(self, head: bytes) -> bytes:
        """The status that it is refused with; empty: it is in order."""
        line, *fields = head.split(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            return b"400 Bad Request"
        found: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"authorization": []}
        for field in fields:
            name, colon, value = field.partition(b":")
            if not colon or not name or name.translate(None, _IN_NAMES):
                return b"400 Bad Request"
            found.get(name.lower(), []).append(value.strip(b" \t"))
        # What another parser takes for the end of a line; and a target with a name of its own.
        if any(byte in one for one in (line, *fields) for byte in (b"\r", b"\n", b"\0")):
            return b"400 Bad Request"
        if not words[0].isalpha() or not words[1].startswith(b"/"):
            return b"400 Bad Request"
        if len(found[b"host"]) != 1 or found[b"host"][0].lower() not in self._names:
            return b"421 Misdirected Request"
        if not all(map(is_local, found[b"origin"])) or len(found[b"origin"]) > 1:
            return b"403 Forbidden"
        return b"" if self._shown(found[b"authorization"]) else b"401 Unauthorized"

    def _shown(self, given: list[bytes]) -> bool:
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and _compare_digest(token.strip(b" "), self._token)


def is_local(origin: bytes) -> bool:
    """Of a page that this machine serves."""
    for scheme in (b"http://", b"https://"):
        for host in (b"127.0.0.1", b"localhost", b"[::1]"):
            rest = origin.lower().removeprefix(scheme + host)
            if len(rest) < len(origin) and (not rest or (rest[:1] == b":" and rest[1:].isdigit())):
                return True
    return False


def refusal(status: bytes) -> bytes:
    told = (b"authentication_failed", b"This needs the token.")
    if not status.startswith(b"401"):
        told = (b"forbidden", b"This server is not called like that.")
    body = b'{"code":"%s","message":"%s"}' % told
    return (
        b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"www-authenticate: Bearer\r\nconnection: close\r\n\r\n%s" % (status, len(body), body)
    )


class SocketEnd:
    """One of the two sockets of a pair."""

    __slots__ = ("drained", "ended", "events", "head", "left", "other", "shut", "socket")

    def __init__(self, own: socket, other: SocketEnd | None) -> None:
        own.setblocking(False)
        own.setsockopt(IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self.socket = own
        self.other = other
        self.left = _NOTHING
        """What it did not take yet. While there is some, the other end is not read."""
        self.ended = False
        """It says no more."""
        self.shut = False
        """It was told that the other says no more."""
        self.events = _UNWATCHED
        self.head = bytearray()
        """Of a client: what it sent before it was let in."""
        self.drained = 0
        """… and how much since it was refused."""

    def write(self, piece: memoryview) -> memoryview:
        """What of it was not taken."""
        try:
            return piece[self.socket.send(piece) :]
        except BlockingIOError:
            return piece


class Gate:
    def __init__(self, listener: socket, peers: Peers, rules: HeadRules, bound: int) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._peers = peers
        self._rules = rules
        self._bound = bound
        self._poll = select.epoll()
        self._ends: dict[int, SocketEnd] = {}
        self._heads: dict[int, SocketEnd] = {}
        """Who was not let in yet, or was refused and may still read that; the oldest first."""
        self._clients = 0
        self._waiting: list[SocketEnd] = []
        """Who was let in and is not led on yet: there may be no target."""
        self._target: tuple[str, int] | None = None
        self._input = b""
        self._place = memoryview(bytearray(PIECE))
        self._listens = False
        self._exhausted = False

    def run(self) -> None:
        try:
            self._poll.register(0, IN)
        except PermissionError:  # a file: it can only be read
            while self._told():
                pass
        while True:
            self._listen(self._clients < self._bound and not self._exhausted)
            woken = dict(self._poll.poll(AGAIN_S if self._exhausted else -1))
            self._exhausted = False
            # What opens descriptors comes last, or an event may meet another's number.
            for number, events in woken.items():
                if (end := self._ends.get(number)) is not None:
                    if number in self._heads:
                        self._hear(end)
                    else:
                        self._move(end, events)
            if 0 in woken and not self._told():
                self._poll.unregister(0)
            if self._listener.fileno() in woken:
                self._accept()
            self._lead()

    def _listen(self, wanted: bool) -> None:
        if wanted != self._listens:
            if wanted:
                self._poll.register(self._listener.fileno(), IN)
            else:
                self._poll.unregister(self._listener.fileno())
            self._listens = wanted

    def _told(self) -> bool:
        """Whether there may be more to read."""
        piece = os.read(0, LINE)
        *lines, self._input = (self._input + piece).split(b"\n")
        if len(self._input) > LINE:
            raise GateError("a line of its input is too long")
        if lines:
            self._target = told_target(lines[-1])
        return piece != b""

    def _lead(self) -> None:
        """Who was let in, to the server."""
        if self._target is None:
            return
        waiting, self._waiting = self._waiting, []
        for client in waiting:
            if client.socket.fileno() in self._ends:
                self._connect(client, self._target)

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            if self._clients >= self._bound:
                return
            try:
                number, _ = self._listener._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._exhausted = True
                    return
                if error.errno in GONE:
                    continue
                raise
            self._admit(socket(fileno=number))

    def _admit(self, came: socket) -> None:
        """Whatever is wrong with it is wrong with this one alone: who has reset the connection
        already has no address any more."""
        try:
            if not self._peers.admits(came):
                came.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
                came.close()
                return
            client = SocketEnd(came, None)
        except OSError:
            came.close()
            return
        self._ends[came.fileno()] = self._heads[came.fileno()] = client
        if len(self._heads) > HEADS:
            self._drop(next(iter(self._heads.values())), reset=True)
        try:
            self._watch(client, IN)
        except OSError:
            self._drop(client, reset=True)
            return
        self._hear(client)

    def _hear(self, client: SocketEnd) -> None:
        """Until its first head is whole. Who was refused is read on, or it might not read why."""
        try:
            count = client.socket.recv_into(self._place)
            if client.shut:
                client.drained += count
                if not count or client.drained > MAX_DRAINED:
                    self._drop(client, reset=count > 0)
                return
            start = max(0, len(client.head) - 3)
            client.head += self._place[:count]
            end = client.head.find(b"\r\n\r\n", start)
            if 0 <= end <= MAX_HEAD:
                self._judge(client, bytes(client.head[:end]))
            elif not count or len(client.head) > MAX_HEAD:
                self._drop(client, reset=True)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client, reset=True)

    def _judge(self, client: SocketEnd, head: bytes) -> None:
        if status := self._rules.problem(head):
            client.write(memoryview(refusal(status)))
            client.socket.shutdown(_socket.SHUT_WR)
            client.shut = True
            client.head.clear()
            return
        del self._heads[client.socket.fileno()]
        self._clients += 1
        self._watch(client, 0)
        self._waiting.append(client)

    def _connect(self, client: SocketEnd, target: tuple[str, int]) -> None:
        try:
            server = SocketEnd(socket(AF_INET6 if ":" in target[0] else AF_INET), client)
            client.other = server
            server.left, client.head = memoryview(bytes(client.head)), bytearray()
            self._ends[server.socket.fileno()] = server
            if server.socket.connect_ex(target) not in (0, errno.EINPROGRESS):
                raise ConnectionError
            self._watch(client, 0)
            self._watch(server, OUT)
        except OSError:
            self._drop(client, reset=True)

    def _move(self, end: SocketEnd, events: int) -> None:
        other = end.other
        if other is None or events & select.EPOLLERR or not events & (IN | OUT):
            self._drop(end, reset=True)
            return
        try:
            if events & OUT and end.left:
                end.left = end.write(end.left)
            if events & IN and not end.ended and not other.left:
                count = end.socket.recv_into(self._place)
                end.ended = count == 0
                if rest := other.write(self._place[:count]):
                    other.left = memoryview(bytes(rest))
            self._settle(end, other)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(end, reset=True)

    def _settle(self, *pair: SocketEnd) -> None:
        ways = (pair, pair[::-1])
        for end, other in ways:
            if other.ended and not end.left and not end.shut:
                end.socket.shutdown(_socket.SHUT_WR)
                end.shut = True
        if pair[0].shut and pair[1].shut:
            self._drop(pair[0], reset=False)
            return
        for end, other in ways:
            events = 0 if end.ended or other.left else IN
            events |= OUT if end.left else 0
            # What has ended both ways would wake us for ever.
            self._watch(end, events or (_UNWATCHED if end.shut else 0))

    def _watch(self, end: SocketEnd, events: int) -> None:
        if events == end.events:
            return
        number = end.socket.fileno()
        if end.events == _UNWATCHED:
            self._poll.register(number, events)
        elif events == _UNWATCHED:
            self._poll.unregister(number)
        else:
            self._poll.modify(number, events)
        end.events = events

    def _drop(self, end: SocketEnd, *, reset: bool) -> None:
        if self._heads.pop(end.socket.fileno(), None) is None:
            self._clients -= 1
        for one in (end, end.other):
            if one is None:
                continue
            del self._ends[one.socket.fileno()]
            if reset:
                one.socket.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
            one.socket.close()
            one.other = None


class GateError(Exception):
    """What it was given cannot be used."""


def told_target(line: bytes) -> tuple[str, int]:
    try:
        word, host, port = line.decode("ascii").split()
        packed(host)
        if word != "target" or not 0 < int(port) < 65536:
            raise ValueError
    except (ValueError, OSError):
        raise GateError(f"its input says {line[:80]!r}") from None
    return host, int(port)


def options(words: list[str]) -> dict[str, str]:
    known = {"--listen": "", "--diag": "", "--uids": "", "--bound": str(BOUND)}
    given = dict(zip(words[::2], words[1::2], strict=True))
    if not given.keys() <= known.keys():
        raise GateError("usage: gate.py --listen FD --diag FD --uids UID,… [--bound N]")
    return known | given


def main(words: list[str]) -> None:
    given = options(words)
    token = os.environ.pop(TOKEN, "")
    if not token:
        raise GateError(f"{TOKEN} is not set")
    uids = frozenset(map(int, given["--uids"].split(",")))
    peers = Peers(int(given["--diag"]), uids)
    listener = socket(fileno=int(given["--listen"]))
    if not peers.knows(listener):
        raise GateError(
            "the kernel does not tell of the listening socket: --diag is of another network"
        )
    rules = HeadRules(token, listener.getsockname()[1])
    Gate(listener, peers, rules, int(given["--bound"])).run()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (GateError, OSError, ValueError) as error:
        sys.exit(f"carrel: the gate ended: {error}")
