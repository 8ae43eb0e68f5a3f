"""What is asked and what is answered, apart from how the bytes get there."""

from __future__ import annotations

import json

from carrel.client.wire import Head, chunk, request_head, segment, target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from carrel.client.places import Place

TIMEOUT_S = 60.0
"""Without a byte from a daemon that answers most questions in milliseconds."""
LONG_S = 900.0
"""For what grows with a project or a machine: proofs, clean-up, whole trees."""
CONNECT_S = 10.0
"""A local connection is made at once; one over a network in a moment."""


class Request:
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

    def head(self, place: Place) -> bytes:
        headers = [("Host", place.authority), ("User-Agent", "carrel"), *self.headers]
        if not place.socket and place.token:
            headers.append(("Authorization", f"Bearer {place.token}"))
        if not isinstance(self.body, bytes):
            headers.append(("Transfer-Encoding", "chunked"))
        elif self.body or self.method not in ("GET", "DELETE"):
            headers.append(("Content-Length", str(len(self.body))))
        return request_head(self.method, self.where, headers)

    def beginning(self, place: Place) -> bytes:
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


def asking(path: str, query: Iterable[tuple[str, object]] = (), **options: Any) -> Request:
    return Request("GET", path, query, headers=[("Accept", "application/json")], **options)


def telling(method: str, path: str, content: object = None, **options: Any) -> Request:
    """With a JSON body."""
    headers = [("Content-Type", "application/json"), *options.pop("headers", ())]
    body = b"{}" if content is None else json.dumps(content).encode()
    return Request(method, path, body=body, headers=headers, **options)


def space_path(space: str, *rest: str) -> str:
    return "/".join(("/v1/spaces", segment(space), *rest))


def run_path(run: str, *rest: str) -> str:
    return "/".join(("/v1/runs", segment(run), *rest))


def instance_path(instance: str, *rest: str) -> str:
    return "/".join(("/v1/instances", segment(instance), *rest))


class Answer:
    """A whole answer."""

    __slots__ = ("body", "head")

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        self.body = body

    def check(self) -> Answer:
        """Raises the error that the answer is, if it is one."""
        if self.head.status >= 400:
            from carrel.client.problems import error_of

            raise error_of(self.head.status, self.body)
        return self

    def json(self) -> Any:
        self.check()
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            from carrel.client.problems import unreadable

            raise unreadable("it is no JSON") from None
