"""An HTTP server that notes what is posted to it, and answers as it is told."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

POST_S = 60.0
"""For the next one, on a busy machine."""


@dataclass(frozen=True)
class Post:
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    def __init__(self) -> None:
        self.answers: deque[int] = deque()
        """Statuses, one after the other; then 204."""
        self.url = ""
        self._posts: queue.Queue[Post] = queue.Queue()

    def take(self, post: Post) -> int:
        status = self.answers.popleft() if self.answers else 204
        self._posts.put(post)
        return status

    def next(self) -> Post:
        return self._posts.get(timeout=POST_S)


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.take(Post(self.path, headers, body)))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/told"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
