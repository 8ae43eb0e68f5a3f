"""`python -I -m carrel.ssh.listener`: a port of loopback for SSH, in a process of its own.

It knows nothing by itself: whether a key opens the space that somebody names as the user, and the
connection into that, are asked of the daemon by its socket (`interfaces/ssh.py`). When the daemon
ends, no more connections are taken, and those that are there go on; with the last of them this
ends. So a killed daemon disturbs nobody, and the next one begins anew on the same port.

Who has not shown a key yet is not kept for long, and there are never many of them: for one more,
the oldest of whoever has the most goes. So whoever logs in gets in, however many hold a connection
open and say nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import asyncssh

from carrel.ssh.relay import (
    CIPHERS,
    KEY_EXCHANGES,
    MACS,
    OLDER_EXCHANGES,
    SIGNATURES,
    SPEAKS,
    FromClient,
    ToSpace,
    enter,
)

LOGIN_S = 30.0
"""From the connection to a key that is known."""
MOST_UNKNOWN = 128
"""Connections without one at the same time."""
MOST_TRIES = 6
"""Keys that one connection may show; ssh shows all that its agent has."""
SLOW_S = 0.2
"""Until a key is refused, and once more for each one before."""
MOST_OPEN = 512
"""Connections that have logged in."""
MOST_OF_KEY = 128
ANSWER_S = 60.0
"""For the daemon, which may have to set up the sandbox first."""
ENTER_S = 60.0
"""For the `sshd` in the space, which may be a hostile one."""
MOST_ENTERING = 32
"""Connections of one key that wait for their space at the same time."""
AGAIN_S = 0.1
"""Until the next look when there was no descriptor for a connection."""
MOST_ANSWER = 1 << 16
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class DaemonLink:
    """Questions to the daemon, each on a connection of its own. One that takes long keeps no other
    one waiting."""

    def __init__(self, folder: str) -> None:
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    async def ask(self, question: dict[str, Any], given: int = -1) -> dict[str, Any]:
        """Raises OSError, ValueError: it is not there, or ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.setblocking(False)
            async with asyncio.timeout(ANSWER_S):
                await self._connect(one)
                body = json.dumps(question).encode()
                if given < 0:
                    one.send(body)
                else:
                    socket.send_fds(one, [body], [given])
                said = await asyncio.get_running_loop().sock_recv(one, MOST_ANSWER)
        answer = json.loads(said)
        if not isinstance(answer, dict):
            raise ValueError("no answer")
        return answer

    async def _connect(self, one: socket.socket) -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                # The path may be longer than an address.
                one.connect(f"/proc/self/fd/{self._folder}/ssh")
                return
            # Too many are waiting there.
            await asyncio.sleep(AGAIN_S)


class KeyLogin(asyncssh.SSHServer):
    """Keys alone, and only those that open the space."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._tries = 0
        self._connection: FromClient | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        assert isinstance(conn, FromClient)
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if await self._listener.opens(username, key.public_data):
            return True
        self._tries += 1
        await asyncio.sleep(SLOW_S * self._tries)
        if self._tries >= MOST_TRIES:
            raise asyncssh.DisconnectError(
                asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, "None of these keys is known here."
            )
        return False

    def auth_completed(self) -> None:
        assert self._connection is not None
        self._listener.logged_in(self._connection)


class Listener:
    def __init__(self, daemon: str, keys: str, listeners: Sequence[socket.socket]) -> None:
        """`keys` is the folder with those of this user, `listeners` the sockets of the port."""
        self._loop = asyncio.get_running_loop()
        self._daemon = DaemonLink(daemon)
        self._identity = asyncssh.read_private_key(f"{keys}/id_ed25519")
        with open(f"{keys}/hosts.pub", encoding="utf-8") as file:
            self._known_hosts = f"@cert-authority * {file.read()}".encode()
        self._options = asyncssh.SSHServerConnectionOptions(
            config=None,
            server_factory=lambda: KeyLogin(self),
            server_host_keys=[f"{keys}/listener_key"],
            host_based_auth=False,
            kbdint_auth=False,
            password_auth=False,
            gss_host=None,
            x509_trusted_certs=None,
            kex_algs=(*KEY_EXCHANGES, *OLDER_EXCHANGES),
            encryption_algs=CIPHERS,
            server_version=SPEAKS,
            mac_algs=MACS,
            signature_algs=SIGNATURES,
            compression_algs=None,
            login_timeout=LOGIN_S,
            # Who comes by loopback is there or hangs up; who was suspended goes on later.
            keepalive_interval=0,
            rdns_lookup=False,
        )
        self._listeners = listeners
        self._unknown: dict[FromClient, str] = {}
        """With the address of each; the oldest first."""
        self._known: set[FromClient] = set()
        self._entering: Counter[bytes] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self.over = asyncio.Event()

    # Coming

    def listen(self) -> None:
        for one in self._listeners:
            self._loop.add_reader(one, self._accept, one)

    def end(self) -> None:
        """No more come; who has logged in stays."""
        if self._ending:
            return
        self._ending = True
        for one in self._listeners:
            self._loop.remove_reader(one)
            one.close()
        for connection in list(self._unknown):
            connection.abort()
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self._ending and not self._known:
            self.over.set()

    def _accept(self, listener: socket.socket) -> None:
        try:
            came, address = listener.accept()
        except OSError as error:
            if error.errno in _SCARCE:
                self._loop.remove_reader(listener)
                self._loop.call_later(AGAIN_S, self._listen_again, listener)
            return
        came.setblocking(False)
        connection = FromClient(self._loop, self._options, self._enter, self._gone)
        self._unknown[connection] = str(address[0])
        if len(self._unknown) > MOST_UNKNOWN:
            self._drop_one()
        task = self._loop.create_task(self._begin(connection, came))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _listen_again(self, listener: socket.socket) -> None:
        if not self._ending:
            self._loop.add_reader(listener, self._accept, listener)

    async def _begin(self, connection: FromClient, came: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, came)
        except OSError:
            came.close()
            self._gone(connection)
            return
        if connection not in self._unknown and not connection.known:
            # Others came meanwhile.
            connection.abort()

    def _drop_one(self) -> None:
        (most, _), *_ = Counter(self._unknown.values()).most_common(1)
        oldest = next(one for one, address in self._unknown.items() if address == most)
        del self._unknown[oldest]
        oldest.abort()

    def _gone(self, connection: FromClient) -> None:
        self._unknown.pop(connection, None)
        self._known.discard(connection)
        self._look_for_end()

    # Logging in

    async def opens(self, host: str, key: bytes) -> bool:
        try:
            answer = await self._daemon.ask({"host": host, "key": _text(key), "open": False})
        except (OSError, ValueError):
            return False
        return answer.get("ok") is True

    def logged_in(self, connection: FromClient) -> None:
        connection.known = True
        self._unknown.pop(connection, None)
        of_key = sum(one.key == connection.key for one in self._known)
        if len(self._known) >= MOST_OPEN or of_key >= MOST_OF_KEY:
            raise asyncssh.DisconnectError(
                asyncssh.DISC_TOO_MANY_CONNECTIONS, "Too many connections are open: close some."
            )
        self._known.add(connection)

    async def _enter(self, connection: FromClient) -> ToSpace:
        """Raises `DisconnectError`, whose reason the client shows."""
        key = connection.key
        if self._entering[key] >= MOST_ENTERING:
            raise _refused("Too many connections wait for their space: try again.")
        self._entering[key] += 1
        try:
            return await self._begin_entry(connection)
        finally:
            self._entering[key] -= 1

    async def _begin_entry(self, connection: FromClient) -> ToSpace:
        host = str(connection.get_extra_info("username"))
        address = connection.get_extra_info("peername") or ("", 0)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                question = {"host": host, "key": _text(connection.key)}
                question["origin"] = f"{address[0]}:{address[1]}"
                answer = await self._daemon.ask(question, theirs.fileno())
            if answer.get("ok") is not True:
                raise _refused(f"{answer.get('message', 'Refused.')} {answer.get('hint', '')}")
            ours.setblocking(False)
            name = f"{answer['space']}.carrel"
            agent = answer.get("agent") is True
            async with asyncio.timeout(ENTER_S):
                client = str(connection.get_extra_info("client_version"))
                words = (ours, name, self._identity, self._known_hosts, client)
                return await enter(*words, agent=agent)
        except asyncssh.DisconnectError:
            ours.close()
            raise
        except (OSError, ValueError, KeyError, TimeoutError, asyncssh.Error) as error:
            ours.close()
            raise _refused(f"The space cannot be reached: {str(error) or 'no answer'}.") from None


def _refused(why: str) -> asyncssh.DisconnectError:
    return asyncssh.DisconnectError(asyncssh.DISC_BY_APPLICATION, why.strip())


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


async def serve(daemon: str, keys: str, numbers: Sequence[int]) -> None:
    """Standard input is the daemon's: it is told there that we listen, and its end is the end of
    the daemon, or of the listening."""
    listeners = [socket.socket(fileno=number) for number in numbers]
    for one in listeners:
        one.setblocking(False)
    listener = Listener(daemon, keys, listeners)
    control = socket.socket(fileno=os.dup(0))
    control.setblocking(False)
    loop = asyncio.get_running_loop()

    def heard() -> None:
        with contextlib.suppress(BlockingIOError):
            if not control.recv(1):
                loop.remove_reader(control)
                listener.end()

    listener.listen()
    loop.add_reader(control, heard)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, listener.end)
    with contextlib.suppress(OSError):
        control.send(b"\0")
    await listener.over.wait()


def main() -> None:
    told = json.loads(sys.argv[1])
    logging.getLogger("asyncssh").setLevel(logging.ERROR)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(told["daemon"], told["keys"], told["listeners"]))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(told["daemon"], told["keys"], told["listeners"]))


if __name__ == "__main__":
    main()
