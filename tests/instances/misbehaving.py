"""An MCP server that is wrong in one way, or right: `python misbehaving.py MODE [OPTION…]`.

The standard library only, and little of that, so that it is up at once: tests start hundreds.
It says `running on http://HOST:PORT` on
its standard error when it has bound. None lives longer than ten minutes, whatever a test does.

    ok                right
    crash             serves, and exits with 7 after --seconds
    clash             wants --port, and gives up with 98 when somebody has it
    never-binds       is there, and does nothing
    silent            binds and accepts, and never answers
    wrong-port        says another port than the one that it binds
    late              binds after --seconds
    all-interfaces    binds 0.0.0.0
    forks-away        is its own grandchild in a session of its own; its parent exits with 0
    leaks-children    leaves --count sleepers in sessions of their own, half of them orphans
    floods            writes --bytes on its standard error, then serves
    eats-memory       serves, and after --seconds takes --bytes of memory and keeps them
    deaf              serves; only SIGKILL ends it
    writes-port-file  writes its port to --port-file, and says nothing
    takes-fd          serves on the socket --fd
    two-listeners     has a dashboard, which it binds and says first
    exits             says why, and exits with 3 at once
    stateless         knows no handshake
    sse               speaks the older transport, at /sse
    stdio             speaks on its standard streams

With --token-from NAME it lets in only who shows the token in that variable. Its tools do at
once what modes do later: `echo` (text), `about`, `crash` (code), `hang`, `spawn`, `flood` and
`eat` (bytes; with `child`, in a process of its own).
"""

from __future__ import annotations

import errno
import json
import os
import queue
import signal
import socket
import socketserver
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

LIFE_S = 600
HOST, EVERYWHERE = "127.0.0.1", "0.0.0.0"
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = "2026-07-28"
META = "io.modelcontextprotocol/protocolVersion"
TOOLS = ("echo", "about", "crash", "hang", "spawn", "flood", "eat")
LONGEST = 1 << 16
"""Bytes of a line of a head."""
FLOOD_BYTES, EAT_BYTES = 64 << 20, 1 << 30
LINE = b"All work and no play makes this a long line of a log that nobody reads.\n"

eaten: list[bytearray] = []
"""What must not be given back."""


def say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


def spawn(*, orphan: bool) -> int:
    """A sleeper that no group and no session of ours reaches; its number."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if orphan and os.fork():
            os._exit(0)
        os.setsid()
        signal.alarm(LIFE_S)
        os.write(writing, str(os.getpid()).encode())
        os.close(writing)
        while True:
            signal.pause()
    os.close(writing)
    pid = int(os.read(reading, 32))
    os.close(reading)
    if orphan:
        os.waitpid(child, 0)
    return pid


def flood(size: int) -> None:
    block = LINE * 900
    while size > 0:
        size -= os.write(2, block[: min(size, len(block))])


def eat(size: int) -> None:
    """Written to, for what is only asked for takes no memory."""
    while size > 0:
        eaten.append(bytearray(b"x") * min(size, 8 << 20))
        size -= len(eaten[-1])


def eat_apart(size: int) -> None:
    """As a language server would; we go on without it."""
    child = os.fork()
    if child == 0:
        eat(size)
        os._exit(0)
    os.waitpid(child, 0)


def crash(code: int) -> None:
    say(f"giving up with {code}")
    os._exit(code)


def hang() -> None:
    threading.Event().wait()


def about() -> str:
    found = {"pid": os.getpid(), "cwd": os.getcwd(), "argv": sys.argv, "env": dict(os.environ)}
    return json.dumps(found)


def call(name: str, words: dict[str, Any]) -> str:
    """A tool's answer."""
    does: dict[str, Callable[[], object]] = {
        "echo": lambda: str(words.get("text", "")),
        "about": about,
        "crash": lambda: crash(int(words.get("code", 9))),
        "hang": hang,
        "spawn": lambda: str(spawn(orphan=bool(words.get("orphan", True)))),
        "flood": lambda: flood(int(words.get("bytes", FLOOD_BYTES))),
        "eat": lambda: (eat_apart if words.get("child") else eat)(
            int(words.get("bytes", EAT_BYTES))
        ),
    }
    if name not in does:
        raise LookupError(f"There is no tool {name!r}.")
    return str(does[name]() or "done")


class Talk:
    """What is answered to one message; None when nothing is."""

    def __init__(self, *, stateless: bool) -> None:
        self._stateless = stateless

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        if "id" not in message:
            return None
        made: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            return {**made, "result": self._result(message["method"], message.get("params") or {})}
        except LookupError as error:
            return {**made, "error": {"code": -32601, "message": str(error)}}

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        info = {"name": "misbehaving", "version": "1"}
        if method == "initialize" and not self._stateless:
            asked = params.get("protocolVersion")
            version = asked if asked in VERSIONS else VERSIONS[-1]
            abilities: dict[str, Any] = {"tools": {}}
            return {"protocolVersion": version, "capabilities": abilities, "serverInfo": info}
        if self._stateless and META not in params.get("_meta", {}):
            raise LookupError(f"{method} without a version is not known here.")
        common = {"resultType": "complete"} if self._stateless else {}
        if method == "server/discover" and self._stateless:
            known = {"supportedVersions": [STATELESS], "capabilities": {"tools": {}}}
            return {**common, **known, "serverInfo": info, "ttlMs": 0, "cacheScope": "private"}
        if method == "ping":
            return {}
        if method == "tools/list":
            cached = {"ttlMs": 0, "cacheScope": "private"} if self._stateless else {}
            return {**common, **cached, "tools": [_tool(name) for name in TOOLS]}
        if method == "tools/call":
            text = call(params.get("name", ""), params.get("arguments") or {})
            return {**common, "content": [{"type": "text", "text": text}], "isError": False}
        raise LookupError(f"{method} is not known here.")


def _tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": {"type": "object"}}


class Handler(socketserver.StreamRequestHandler):
    """As much of HTTP/1.1 as its clients speak."""

    talk = Talk(stateless=False)
    token = ""

    def handle(self) -> None:
        while self._heard():
            getattr(self, f"do_{self.method}", self._refuse)()
            if self.headers.get("connection") == "close":
                return

    def _heard(self) -> bool:
        words = self.rfile.readline(LONGEST).decode("latin-1").split()
        if len(words) != 3:
            return False
        self.method, self.path, _version = words
        self.headers: dict[str, str] = {}
        while line := self.rfile.readline(LONGEST).decode("latin-1").strip():
            name, _colon, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        return True

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _refuse(self) -> None:
        self._send(501)

    def do_POST(self) -> None:
        body = self._body()
        if not self._admitted() or not self._is_at("/mcp"):
            return
        message = json.loads(body)
        answer = self.talk.answer(message)
        headers = {"Content-Type": "application/json"}
        if message.get("method") == "initialize":
            headers["Mcp-Session-Id"] = os.urandom(16).hex()
        if answer is None:
            self._send(202)
        elif "error" in answer and message.get("method") == "initialize":
            self._send(400, json.dumps(answer).encode(), headers)
        else:
            self._send(200, json.dumps(answer).encode(), headers)

    def do_GET(self) -> None:
        if self._admitted():
            self._send(405)

    def do_DELETE(self) -> None:
        if self._admitted():
            self._send(200)

    def _is_at(self, path: str) -> bool:
        if self.path.partition("?")[0] == path:
            return True
        self._send(404)
        return False

    def _admitted(self) -> bool:
        if not self.token or self.headers.get("authorization") == f"Bearer {self.token}":
            return True
        self._send(401, b"", {"WWW-Authenticate": "Bearer"})
        return False

    def _send(self, code: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self._head(code, {**(headers or {}), "Content-Length": str(len(body))}, body)

    def _head(self, code: int, headers: dict[str, str], body: bytes = b"") -> None:
        lines = [f"HTTP/1.1 {code} {code}", *(f"{name}: {headers[name]}" for name in headers)]
        self.wfile.write("\r\n".join((*lines, "", "")).encode() + body)


class SseHandler(Handler):
    """Answers come on the stream that was opened first."""

    streams: ClassVar[dict[str, queue.SimpleQueue[str]]] = {}

    def do_GET(self) -> None:
        if not self._admitted() or not self._is_at("/sse"):
            return
        name, own = os.urandom(16).hex(), queue.SimpleQueue[str]()
        self.streams[name] = own
        self._head(200, {"Content-Type": "text/event-stream", "Connection": "close"})
        self._event("endpoint", f"/messages?session_id={name}")
        while True:
            self._event("message", own.get())

    def do_POST(self) -> None:
        body = self._body()
        stream = self.streams.get(self.path.rpartition("=")[2])
        if not self._admitted() or stream is None:
            return
        self._send(202)
        answer = self.talk.answer(json.loads(body))
        if answer is not None:
            stream.put(json.dumps(answer))

    def _event(self, kind: str, data: str) -> None:
        self.wfile.write(f"event: {kind}\r\ndata: {data}\r\n\r\n".encode())
        self.wfile.flush()


class Server(socketserver.ThreadingTCPServer):
    """On a socket that listens already. What hangs does not keep it from ending."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: type[Handler]) -> None:
        super().__init__((HOST, 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener


def bound(host: str = HOST, port: int = 0) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=64, reuse_port=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        say(f"error: [Errno 98] address already in use: {host}:{port}")
        os._exit(98)


def serve(
    listener: socket.socket, handler: type[Handler] = Handler, said: int | None = None
) -> None:
    """Until it is ended. `said`: 0 is nothing, else the port that it says."""
    host, port = listener.getsockname()[:2]
    if said != 0:
        say(f"INFO: Uvicorn running on http://{host}:{said or port} (Press CTRL+C to quit)")
    try:
        Server(listener, handler).serve_forever()
    except KeyboardInterrupt:
        return


def serve_streams(talk: Talk) -> None:
    for line in sys.stdin:
        answer = talk.answer(json.loads(line))
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def later(seconds: float, do: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()


def forks_away(listener: Callable[[], socket.socket]) -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.alarm(LIFE_S)
    serve(listener())


def two_listeners(port: int) -> None:
    dashboard = bound()
    say(f"Dashboard running on http://{HOST}:{dashboard.getsockname()[1]}/dashboard")
    page = type("Page", (Handler,), {"do_POST": lambda self: self._send(404, b"no page")})
    threading.Thread(target=Server(dashboard, page).serve_forever, daemon=True).start()
    serve(bound(port=port))


def write_port(listener: socket.socket, path: str) -> None:
    """Whole or not at all."""
    with open(f"{path}.half", "w") as file:
        file.write(str(listener.getsockname()[1]))
    os.rename(f"{path}.half", path)


class Options:
    def __init__(self) -> None:
        self.port = self.fd = self.bytes = 0
        self.count = 4
        self.seconds = 0.5
        self.port_file = self.token_from = ""

    def set(self, name: str, value: str) -> None:
        """As what it is; an AttributeError for one that is not known."""
        setattr(self, name, type(getattr(self, name))(value))


def run(mode: str, options: Options) -> None:
    def listener(host: str = HOST) -> socket.socket:
        return bound(host, options.port)

    match mode:
        case "exits":
            say("fatal: the settings are missing")
            sys.exit(3)
        case "stdio":
            serve_streams(Talk(stateless=False))
        case "never-binds":
            hang()
        case "silent":
            kept = listener()
            say(f"running on http://{HOST}:{kept.getsockname()[1]}")
            held = [kept]
            while True:
                held.append(kept.accept()[0])
        case "forks-away":
            forks_away(listener)
        case "two-listeners":
            two_listeners(options.port)
        case "wrong-port":
            # Bound, so that nobody else has it, and not listened on.
            with socket.socket() as other:
                other.bind((HOST, 0))
                serve(listener(), said=other.getsockname()[1])
        case "all-interfaces":
            serve(listener(EVERYWHERE))
        case "takes-fd":
            serve(socket.socket(fileno=options.fd), said=0)
        case "writes-port-file":
            made = listener()
            write_port(made, options.port_file)
            serve(made, said=0)
        case "stateless":
            Handler.talk = Talk(stateless=True)
            serve(listener())
        case "sse":
            serve(listener(), SseHandler)
        case _:
            begin(mode, options)
            serve(listener())


def begin(mode: str, options: Options) -> None:
    """What goes wrong before or while it serves as it should."""
    match mode:
        case "crash":
            later(options.seconds, lambda: crash(7))
        case "late":
            time.sleep(options.seconds)
        case "leaks-children":
            for number in range(options.count):
                spawn(orphan=number % 2 == 0)
        case "floods":
            flood(options.bytes or FLOOD_BYTES)
        case "eats-memory":
            later(options.seconds, lambda: eat(options.bytes or EAT_BYTES))
        case "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        case "ok" | "clash":
            pass
        case _:
            sys.exit(f"There is no mode {mode}.")


def main() -> None:
    options = Options()
    mode, *words = sys.argv[1:]
    for name, value in zip(words[::2], words[1::2], strict=True):
        options.set(name.removeprefix("--").replace("-", "_"), value)
    Handler.token = os.environ.get(options.token_from, "")
    signal.alarm(LIFE_S)
    run(mode, options)


if __name__ == "__main__":
    main()
