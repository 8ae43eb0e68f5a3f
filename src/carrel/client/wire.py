"""HTTP/1.1 as the client speaks it: bytes in, bytes out, and no socket.

The sync and the async client share this core and differ only in how they move the bytes.
It is our own because of what it costs: `carrel ls` is a program that starts, asks and ends,
and the standard library's client alone takes longer to import than all of that.

    parser = ResponseParser()
    while not parser.done:
        for piece in parser.receive(sock.recv(65536)):
            …                             # parts of the body; `parser.head` is there

An empty read is the end of the connection, and is given to `receive` too.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HEAD = 64 * 1024
"""More than any answer of the daemon; a peer that sends more is not one."""
MAX_LINE = 1024
"""Of the size of a chunk, with whatever extensions somebody adds."""
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")
_ESCAPED = tuple(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in range(256))
_CONTROL = frozenset(chr(byte) for byte in (*range(32), 127))
_HEX = frozenset(b"0123456789abcdefABCDEF")


class WireError(Exception):
    """The other side does not speak HTTP as we know it, or went away within an answer."""


class Head:
    """The beginning of an answer. Names of `headers` are lower-case."""

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers

    @property
    def kind(self) -> str:
        """The media type, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def quote(text: str) -> str:
    """For a path or a query. Bytes that are no UTF-8 survive, as `os.fsdecode` gives them."""
    return "".join([_ESCAPED[byte] for byte in text.encode("utf-8", "surrogateescape")])


def segment(text: str) -> str:
    """For one part of a path: what holds a slash, or is all dots, stays one part."""
    quoted = quote(text).replace("/", "%2F")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def target(path: str, query: Iterable[tuple[str, object]] = ()) -> str:
    """What stands in the request line. Truth values are written as the API does."""
    words = [f"{name}={quote(_plain(value))}" for name, value in query]
    return f"{path}?{'&'.join(words)}" if words else path


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def request_head(method: str, where: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"{method} {where} HTTP/1.1"]
    for name, value in headers:
        if not _CONTROL.isdisjoint(value):
            raise ValueError(f"The header {name} holds control characters.")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def chunk(data: bytes) -> bytes:
    """One piece of a body whose length is not known before; empty: its end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ResponseParser:
    """One answer. `head` is there when it was received, `done` when all of it was."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.done = False
        self.reusable = False
        """Whether another request may follow on this connection (once `done`)."""
        self._buffer = bytearray()
        self._left: int | None = None
        self._chunked = False
        self._in_chunk = False
        self._trailers = False

    @property
    def begun(self) -> bool:
        return self.head is not None or bool(self._buffer)

    @property
    def rest(self) -> bytes:
        """What came after the answer: the first bytes of a WebSocket."""
        return bytes(self._buffer)

    def receive(self, data: bytes) -> list[bytes]:
        """Parts of the body. Raises `WireError`."""
        if not data:
            self._end()
            return []
        self._buffer += data
        if self.head is None:
            self._take_head()
        return self._body() if self.head is not None and not self.done else []

    def _end(self) -> None:
        """The connection ended, which is also how a body without a length does."""
        if self.done:
            return
        if self.head is None or self._chunked or self._left is not None:
            raise WireError("The connection was closed within an answer.")
        self.done = True

    def _take_head(self) -> None:
        while self.head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end > MAX_HEAD or (end < 0 and len(self._buffer) > MAX_HEAD):
                raise WireError("The answer's head is too large.")
            if end < 0:
                return
            head = parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            # Anything from 102 to 199, and 100, only announces that the answer will come.
            if head.status == 101 or head.status >= 200:
                self.head = head
                self._plan_body(head)

    def _plan_body(self, head: Head) -> None:
        headers = head.headers
        self.reusable = headers.get("connection", "").lower() != "close"
        if head.status in (101, 204, 304):
            self.done = True
        elif "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise WireError("The answer comes in an encoding that nobody asked for.")
            self._chunked = True
        elif "content-length" in headers:
            length = headers["content-length"]
            if not (length.isascii() and length.isdigit()):
                raise WireError("The answer's length is no number.")
            self._left = int(length)
            self.done = self._left == 0
        else:
            self.reusable = False

    def _body(self) -> list[bytes]:
        if self._chunked:
            return self._chunks()
        if self._left is None:
            return [self._cut(len(self._buffer))] if self._buffer else []
        return self._sized()

    def _sized(self) -> list[bytes]:
        assert self._left is not None
        piece = self._cut(min(self._left, len(self._buffer)))
        self._left -= len(piece)
        self.done = self._left == 0
        return [piece] if piece else []

    def _cut(self, count: int) -> bytes:
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        return piece

    def _chunks(self) -> list[bytes]:
        pieces: list[bytes] = []
        while not self.done:
            if self._left:
                piece = self._cut(min(self._left, len(self._buffer)))
                if not piece:
                    break
                self._left -= len(piece)
                pieces.append(piece)
                continue
            line = self._line()
            if line is None:
                break
            self._between(line)
        return pieces

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > MAX_LINE or (end < 0 and len(self._buffer) > MAX_LINE):
            raise WireError("A line between parts of the answer is too long.")
        if end < 0:
            return None
        line = self._cut(end)
        del self._buffer[:2]
        return line

    def _between(self, line: bytes) -> None:
        """The line after a chunk, one that begins the next, or a trailer."""
        if self._trailers:
            self.done = not line
        elif self._in_chunk:
            if line:
                raise WireError("A part of the answer is longer than it said.")
            self._in_chunk = False
        else:
            size = line.partition(b";")[0].strip()
            if not size or not _HEX.issuperset(size):
                raise WireError("The size of a part of the answer is no number.")
            self._left = int(size, 16)
            self._in_chunk = self._left > 0
            self._trailers = self._left == 0


def parse_head(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(status) != 3 or not status.isdecimal():
        raise WireError("The answer is not HTTP.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise WireError("A header of the answer cannot be read.")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Head(int(status), headers)
