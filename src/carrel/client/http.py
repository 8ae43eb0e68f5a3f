"""HTTP/1.1 as the client speaks it: bytes in, bytes out, and no socket; requests by their names in
the contract, and answers.

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

import json

from carrel.api.routes import BY_NAME

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from carrel.client.address import Address


MAX_HEAD = 64 * 1024
"""More than any answer of the daemon; a peer that sends more is not one."""
MAX_LINE = 1024
"""Of the size of a chunk, with whatever extensions somebody adds."""
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")
_ESCAPED = tuple(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in range(256))
_CONTROL = frozenset(chr(byte) for byte in (*range(32), 127))
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ProtocolError(Exception):
    """The other side does not speak HTTP as we know it, or went away within an answer."""


class HttpHead:
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
    """What stands in the request line. Truth values are written as the API does; what is None is
    left out."""
    words = [f"{name}={quote(_plain(value))}" for name, value in query if value is not None]
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
        self.head: HttpHead | None = None
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
        """Parts of the body. Raises `ProtocolError`."""
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
            raise ProtocolError("The connection was closed within an answer.")
        self.done = True

    def _take_head(self) -> None:
        while self.head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end > MAX_HEAD or (end < 0 and len(self._buffer) > MAX_HEAD):
                raise ProtocolError("The answer's head is too large.")
            if end < 0:
                return
            head = parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            # Anything from 102 to 199, and 100, only announces that the answer will come.
            if head.status == 101 or head.status >= 200:
                self.head = head
                self._plan_body(head)

    def _plan_body(self, head: HttpHead) -> None:
        headers = head.headers
        self.reusable = headers.get("connection", "").lower() != "close"
        if head.status in (101, 204, 304):
            self.done = True
        elif "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise ProtocolError("The answer comes in an encoding that nobody asked for.")
            self._chunked = True
        elif "content-length" in headers:
            length = headers["content-length"]
            if not (length.isascii() and length.isdigit()):
                raise ProtocolError("The answer's length is no number.")
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
            raise ProtocolError("A line between parts of the answer is too long.")
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
                raise ProtocolError("A part of the answer is longer than it said.")
            self._in_chunk = False
        else:
            size = line.partition(b";")[0].strip()
            if not size or not _HEX.issuperset(size):
                raise ProtocolError("The size of a part of the answer is no number.")
            self._left = int(size, 16)
            self._in_chunk = self._left > 0
            self._trailers = self._left == 0


def parse_head(data: bytes) -> HttpHead:
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(status) != 3 or not status.isdecimal():
        raise ProtocolError("The answer is not HTTP.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ProtocolError("A header of the answer cannot be read.")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return HttpHead(int(status), headers)


# Requests and answers

TIMEOUT_S = 60.0
"""Without a byte from a daemon that answers most questions in milliseconds."""
LONG_S = 900.0
"""For what grows with a project or a machine: proofs, clean-up, whole trees."""


class HttpRequest:
    """One request. `body` is bytes, or pieces whose sum nobody knows yet. `again` says that
    sending it twice does no harm, so it is repeated when the connection breaks."""

    __slots__ = ("again", "body", "headers", "method", "timeout_s", "where")

    def __init__(
        self,
        method: str,
        path: str,
        query: Iterable[tuple[str, object]] = (),
        *,
        body: bytes | Iterable[bytes] = b"",
        headers: Sequence[tuple[str, str]] = (),
        timeout_s: float | None = None,
        again: bool | None = None,
    ) -> None:
        self.method = method
        self.where = target(path, query)
        self.body = body
        self.headers = headers
        self.timeout_s = timeout_s
        """Without a byte; None: the client's own."""
        self.again = method == "GET" if again is None else again

    def head(self, place: Address) -> bytes:
        headers = [("Host", place.authority), ("User-Agent", "carrel"), *self.headers]
        if not place.socket and place.token:
            headers.append(("Authorization", f"Bearer {place.token}"))
        if not isinstance(self.body, bytes):
            headers.append(("Transfer-Encoding", "chunked"))
        elif self.body or self.method not in ("GET", "DELETE"):
            headers.append(("Content-Length", str(len(self.body))))
        return request_head(self.method, self.where, headers)

    def beginning(self, place: Address) -> bytes:
        """The head, and a body that is there as a whole."""
        head = self.head(place)
        return head + self.body if isinstance(self.body, bytes) else head

    def pieces(self) -> Iterable[bytes]:
        """The rest, as it goes over the wire."""
        if isinstance(self.body, bytes):
            return
        for piece in self.body:
            if piece:
                yield chunk(piece)
        yield chunk(b"")


def operation(
    name: str,
    *named: str,
    query: Iterable[tuple[str, object]] = (),
    content: object = None,
    **options: Any,
) -> HttpRequest:
    """An operation of the contract. `named` fills the places in its path."""
    row = BY_NAME[name]
    path = row.path
    for word in named:
        before, _, rest = path.partition("{")
        place, _, after = rest.partition("}")
        # A file's path keeps its slashes; a series' name does not.
        words = word.split("/") if place == "path:path" else [word]
        path = before + "/".join(map(segment, words)) + after
    options.setdefault("again", row.again)
    if row.long:
        options.setdefault("timeout_s", LONG_S)
    if row.body:
        return telling(row.method, path, content, **options)
    own = [("Content-Type", row.takes)] if row.takes else [("Accept", row.media)]
    headers = [*own, *options.pop("headers", ())]
    return HttpRequest(row.method, path, query, headers=headers, **options)


def asking(path: str, query: Iterable[tuple[str, object]] = (), **options: Any) -> HttpRequest:
    return HttpRequest("GET", path, query, headers=[("Accept", "application/json")], **options)


def telling(method: str, path: str, content: object = None, **options: Any) -> HttpRequest:
    """With a JSON body."""
    headers = [("Content-Type", "application/json"), *options.pop("headers", ())]
    body = b"{}" if content is None else encoded(content)
    return HttpRequest(method, path, body=body, headers=headers, **options)


def encoded(content: object) -> bytes:
    """As JSON, with no more escapes than it takes: what is large has its limits in bytes."""
    try:
        return json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Bytes that are no UTF-8, as lone surrogates.
        return json.dumps(content).encode()


def space_path(space: str, *rest: str) -> str:
    return "/".join(("/v1/spaces", segment(space), *rest))


def run_path(run: str, *rest: str) -> str:
    return "/".join(("/v1/runs", segment(run), *rest))


class HttpAnswer:
    """A whole answer."""

    __slots__ = ("body", "head")

    def __init__(self, head: HttpHead, body: bytes) -> None:
        self.head = head
        self.body = body

    def check(self) -> HttpAnswer:
        """Raises the error that the answer is, if it is one."""
        if self.head.status >= 400:
            from carrel.client.problems import error_of

            raise error_of(self.head.status, self.body)
        return self

    def json(self) -> Any:
        self.check()
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError):
            from carrel.client.problems import unreadable

            raise unreadable("it is no JSON") from None
