"""Has a Python server that serves with uvicorn listen on what it is given, and ask for a token.

What it would bind is replaced, whatever way it takes to uvicorn. It is run by the server's own
interpreter, 3.10 or newer, as

    python [-I] uvicorn_shim.py [--fd N] [--inside PORT_FILE] -- SCRIPT ARGUMENTS…
    python [-I] uvicorn_shim.py [--fd N] [--inside PORT_FILE] -- -m MODULE ARGUMENTS…

with the token in CARREL_TOKEN, which the server does not see. `--inside` adds a port for those
who share its sandbox, and for a gate that is before it; they need no token. The file has that
port, and is whole as soon as it is there. A process that has loaded the server's modules already
calls `warm`.
"""

from __future__ import annotations

import hmac
import os
import re
import runpy
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

TOKEN = "CARREL_TOKEN"
BACKLOG = 512
HOSTS = ("127.0.0.1", "localhost")
"""By which clients know us."""
_UNAUTHORIZED = b'{"code":"authentication_failed","message":"This needs the token."}'
_MISDIRECTED = b'{"code":"forbidden","message":"This server is not called like that."}'
_LOCAL = re.compile(rb"https?://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE)
"""An Origin of pages that this machine serves. `gate.py` has the same rules for the bytes of a
head: the two files are run apart, and nothing else is there."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Address = tuple[str, int]


class ShimError(Exception):
    """What it was given cannot be used."""


class TokenGuard:
    """Lets in who shows the token, and who comes by the address that is `open`.

    `ports` are those of the other listeners: requests there must call us by one of them, so that no
    name of somebody's page leads here. `names` are Host and Origin as clients say them, and as
    the server expects them: it may allow only the address that it bound itself.
    """

    def __init__(
        self,
        app: App,
        token: str,
        open: Address | None,
        ports: Sequence[int],
        names: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._app = app
        self._wanted = b"bearer " + token.encode()
        self._open = open
        self._hosts = {f"{host}:{port}".encode() for host in HOSTS for port in ports}
        self._names = names or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            if status := self._problem(scope):
                await refuse(scope["type"], status, send)
                return
            if self._names:
                scope = {**scope, "headers": [self._renamed(*one) for one in scope["headers"]]}
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> int:
        """The status that it is refused with, or 0."""
        if self._open is not None and tuple(scope.get("server") or ()) == self._open:
            return 0
        found: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"authorization": []}
        for name, value in scope["headers"]:
            found.get(name, []).append(value)
        if len(found[b"host"]) != 1 or found[b"host"][0].lower() not in self._hosts:
            return 421
        if len(found[b"origin"]) > 1 or not all(map(_LOCAL.fullmatch, found[b"origin"])):
            return 403
        scheme, _, token = b"".join(found[b"authorization"][:1]).partition(b" ")
        given = scheme.lower() + b" " + token.strip()
        return 0 if hmac.compare_digest(given, self._wanted) else 401

    def _renamed(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        return name, self._names.get(value, value) if name in (b"host", b"origin") else value


async def refuse(kind: str, status: int, send: Send) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = _UNAUTHORIZED if status == 401 else _MISDIRECTED
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class ServerListeners:
    """Where a server is to be found: `fds` with the token, and one inside without."""

    def __init__(self, fds: Sequence[int], token: str, inside: str = "") -> None:
        if fds and not token:
            raise ShimError(f"{TOKEN} is not set")
        self.token = token
        self._fds = [*fds]
        try:
            self.guarded = [address(number) for number in fds]
        except OSError as error:
            raise ShimError(f"--fd is no socket: {error.strerror}") from None
        for number in fds:
            os.set_inheritable(number, False)
        self.open: Address | None = None
        if inside:
            self._fds.append(bound(avoid=[port for _, port in self.guarded]))
            self.open = address(self._fds[-1])
            write_port(inside, self.open[1])

    def sockets(self) -> list[socket.socket]:
        """Copies: a server closes its own when it ends."""
        return [socket.socket(fileno=os.dup(number)) for number in self._fds]

    def guard(self, app: App, expected: Address | None = None) -> TokenGuard:
        """`expected`: what the server bound itself, if that is known."""
        names: dict[bytes, bytes] = {}
        if expected is not None:
            for _, port in [*self.guarded, *filter(None, [self.open])]:
                for host in HOSTS:
                    said, meant = f"{host}:{port}".encode(), f"{host}:{expected[1]}".encode()
                    names |= {said: meant, b"http://" + said: b"http://" + meant}
        return TokenGuard(app, self.token, self.open, [port for _, port in self.guarded], names)


def address(number: int) -> Address:
    with socket.socket(fileno=os.dup(number)) as copy:
        found = copy.getsockname()
    return (found[0], found[1]) if isinstance(found, tuple) else (found, 0)


def bound(avoid: Sequence[int]) -> int:
    """Binds a port that none of these is: two networks may have the same, and by their ports the
    listeners are told apart."""
    while True:
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        if listener.getsockname()[1] not in avoid:
            return listener.detach()
        listener.close()


def write_port(path: str, port: int) -> None:
    new = f"{path}.new"
    with open(new, "w") as file:
        file.write(f"{port}\n")
    os.rename(new, path)


def take_over(listeners: ServerListeners) -> None:
    """Replaces what uvicorn binds. Of the servers that a process has at once, the first gets the
    listeners: of two it would not be known which answers. Others bind as they like, in their
    sandbox."""
    try:
        from uvicorn.config import Config
        from uvicorn.server import Server
    except ImportError as error:
        raise ShimError(f"{sys.executable} has no uvicorn: {error}") from None
    startup, shutdown = Server.startup, Server.shutdown
    holder: list[Server] = []

    async def start(self: Server, sockets: list[socket.socket] | None = None) -> None:
        if holder:
            return await startup(self, sockets)
        holder.append(self)
        expected = None
        for own in sockets or ():
            expected = own.getsockname()[:2] if own.family != socket.AF_UNIX else None
            own.close()
        self.config.loaded_app = listeners.guard(self.config.loaded_app, expected)
        return await startup(self, listeners.sockets())

    async def stop(self: Server, sockets: list[socket.socket] | None = None) -> None:
        await shutdown(self, sockets)
        if self in holder:
            holder.remove(self)

    def bind(self: Config) -> socket.socket:
        if self.workers > 1 or self.should_reload:
            raise SystemExit("carrel: uvicorn's workers and reload cannot be used here")
        return listeners.sockets()[0]

    Server.startup = start  # type: ignore[method-assign]
    Server.shutdown = stop  # type: ignore[method-assign]
    Config.bind_socket = bind  # type: ignore[method-assign]


def serve(
    script: str, args: Sequence[str], fds: Sequence[int], token: str, inside: str = ""
) -> NoReturn:
    """Runs the script as the main program, and ends with it. Raises `ShimError`."""
    take_over(ServerListeners(fds, token, inside))
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and sys.path[0] == here:
        del sys.path[0]
    if script == "-m":
        module, *args = args
        sys.path.insert(0, os.getcwd())
        sys.argv = [module, *args]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        sys.argv = [script, *args]
        runpy.run_path(script, run_name="__main__")
    sys.exit()


def options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """What stands before `--`, and what after."""
    try:
        split = words.index("--")
        given = dict(zip(words[:split:2], words[1:split:2], strict=True))
        if not given or not given.keys() <= {"--fd", "--inside"} or not words[split + 1 :]:
            raise ValueError
    except ValueError:
        raise ShimError("usage: [--fd N] [--inside PORT_FILE] -- COMMAND…") from None
    return given, words[split + 1 :]


def given_fds(given: Mapping[str, str]) -> list[int]:
    """Without one, clients come by what listens inside alone."""
    return [int(given["--fd"])] if "--fd" in given else []


def warm(order: Mapping[str, Any]) -> NoReturn:
    """In a fork of a process that has loaded the server's modules."""
    token = os.environ.pop(TOKEN, "")
    fds = [] if order["fd"] is None else [order["fd"]]
    serve(order["script"], order["arguments"], fds, token, order["inside"])


def main(words: list[str]) -> NoReturn:
    token = os.environ.pop(TOKEN, "")
    given, (script, *args) = options(words)
    serve(script, args, given_fds(given), token, given.get("--inside", ""))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ShimError as error:
        sys.exit(f"carrel: the server cannot be started: {error}")
