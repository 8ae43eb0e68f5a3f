"""The listener under siege: its own process, with a stand-in for the daemon and hostile ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.packet import Boolean, SSHPacket, String

from tests.cli.program import TIMEOUT_S, Program
from tests.daemon.rig import Daemon
from tests.ssh.conftest import free_port

GLOBAL_REQUEST = 80
NONSENSE = 9
"""A message that nobody knows."""
MANY = 400_000
"""Messages; the buffers between two processes hold some ten thousand."""
STUCK_S = 3.0
"""Whose writing has not moved for so long writes no more."""
SOON_S = 10.0
"""For a login while others disturb; the time for one is 30."""

Act = Callable[[Any], Awaitable[None]]


class _Server(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return True


class Siege:
    """`space`: what the server in the space does with a connection. `stuck`: the user whose space
    is never reached."""

    def __init__(self, folder: Path, space: Act | None, stuck: str) -> None:
        self.folder = folder
        self.space = space
        self.stuck = stuck
        self.port = 0
        self.held: list[socket.socket] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.ends: list[Any] = []

    def listen(self) -> socket.socket:
        for name in ("id_ed25519", "hosts", "listener_key", "host", "one", "two"):
            self._keygen("-t", "ed25519", "-N", "", "-f", name)
        self._keygen("-t", "rsa", "-b", "2048", "-N", "", "-f", "rsa")
        self._keygen("-s", "hosts", "-I", "x", "-h", "-n", "sp_x.carrel", "host.pub")
        daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        above = os.open(self.folder, os.O_PATH)
        daemon.bind(f"/proc/self/fd/{above}/ssh")
        os.close(above)
        daemon.listen(64)
        daemon.setblocking(False)
        return daemon

    def _keygen(self, *words: str) -> None:
        subprocess.run(["ssh-keygen", "-q", *words], cwd=self.folder, check=True, timeout=TIMEOUT_S)

    def asked(self, daemon: socket.socket) -> None:
        one, _ = daemon.accept()
        body, given, _, _ = socket.recv_fds(one, 32_768, 1)
        question = json.loads(body)
        if given and question["host"] == self.stuck:
            self.held += [one, socket.socket(fileno=given[0])]
            return
        if given:
            task = asyncio.ensure_future(self._serve(socket.socket(fileno=given[0])))
            self.tasks.add(task)
        one.send(json.dumps({"ok": True, "space": "sp_x", "agent": False}).encode())
        one.close()

    async def _serve(self, given: socket.socket) -> None:
        given.setblocking(False)
        key = (str(self.folder / "host"), str(self.folder / "host-cert.pub"))
        end = await asyncssh.run_server(
            given, config=None, server_factory=_Server, server_host_keys=[key]
        )
        self.ends.append(end)
        if self.space is not None:
            await self.space(end)

    async def client(self, user: str = "x", key: Any = "one") -> Any:
        keys = [str(self.folder / key) if isinstance(key, str) else key]
        end = await asyncssh.connect(
            "127.0.0.1",
            self.port,
            config=None,
            username=user,
            client_keys=keys,
            agent_path=None,
            known_hosts=None,
        )
        self.ends.append(end)
        return end

    async def lets_others_in(self) -> None:
        async with asyncio.timeout(SOON_S):
            (await self.client("other", "two")).abort()


Begin = Callable[..., Awaitable[Siege]]


@pytest.fixture
async def siege(tmp_path: Path) -> AsyncIterator[Begin]:
    async with contextlib.AsyncExitStack() as stack:

        async def begin(space: Act | None = None, stuck: str = "") -> Siege:
            return await stack.enter_async_context(_siege(tmp_path, space, stuck))

        yield begin


@contextlib.asynccontextmanager
async def _siege(folder: Path, space: Act | None, stuck: str) -> AsyncIterator[Siege]:
    found = Siege(folder, space, stuck)
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with found.listen() as daemon, ours, socket.create_server(("127.0.0.1", 0)) as port:
        found.port = port.getsockname()[1]
        told = {"daemon": str(folder), "keys": str(folder), "listeners": [port.fileno()]}
        words = [sys.executable, "-m", "carrel.ssh.listener", json.dumps(told)]
        with theirs:
            process = subprocess.Popen(words, stdin=theirs.fileno(), pass_fds=[port.fileno()])
        try:
            assert await asyncio.wait_for(loop.sock_recv(ours, 1), TIMEOUT_S)
            loop.add_reader(daemon, found.asked, daemon)
            yield found
        finally:
            loop.remove_reader(daemon)
            for end in found.ends:
                end.abort()
            for one in found.held:
                one.close()
            for task in found.tasks:
                task.cancel()
            await asyncio.gather(*found.tasks, return_exceptions=True)
            process.kill()
            process.wait(TIMEOUT_S)


def _send(end: Any, kind: int, content: bytes = b"") -> None:
    type(end).send_packet(end, kind, content)


async def _flood(end: Any, kind: int, content: bytes, *, reads: bool = False) -> int:
    """How many of these were taken from somebody who does not read, or who was cut off."""
    # What asyncssh sends before each message is not needed.
    send = type(end).send_packet

    def only(kind: int, *content: bytes, handler: Any = None) -> None:
        if kind != 2:
            send(end, kind, *content, handler=handler)

    end.send_packet = only
    wire = end._transport
    if not reads:
        wire.pause_reading()
    loop = asyncio.get_running_loop()
    sent, moved, left = 0, loop.time(), 0
    while sent < MANY and not wire.is_closing() and loop.time() - moved < STUCK_S:
        now = wire.get_write_buffer_size()
        if now < 1 << 16:
            for _ in range(500):
                send(end, kind, content)
            sent += 500
            moved = loop.time()
        elif now != left:
            moved, left = loop.time(), now
        await asyncio.sleep(0)
    return sent


QUESTION = String("what@example.com") + Boolean(True)


@pytest.mark.parametrize(
    ("kind", "content"),
    [(GLOBAL_REQUEST, QUESTION), (NONSENSE, b"")],
    ids=["global request", "nonsense"],
)
async def test_a_space_that_takes_no_answers_is_not_heard(
    siege: Begin, kind: int, content: bytes
) -> None:
    """Else they are kept by the listener, without end."""
    flooded: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def space(end: Any) -> None:
        flooded.set_result(await _flood(end, kind, content))

    found = await siege(space)
    _send(await found.client(), GLOBAL_REQUEST, String("hello@example.com") + Boolean(False))
    assert await asyncio.wait_for(flooded, 100) < MANY
    await found.lets_others_in()


async def test_a_space_that_asks_on_while_keys_are_agreed_upon(siege: Begin) -> None:
    """It has begun, and does not go on with it."""
    flooded: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Deaf:
        algorithm = b""

        def process_packet(self, *_: object) -> bool:
            return True

        def log_received_packet(self, *_: object, **__: object) -> None: ...

    async def space(end: Any) -> None:
        end._send_kexinit()
        end._kex, end._kex_complete = Deaf(), True
        end.process_packet = lambda *_: True
        flooded.set_result(await _flood(end, GLOBAL_REQUEST, QUESTION, reads=True))

    found = await siege(space)
    _send(await found.client(), GLOBAL_REQUEST, String("hello@example.com") + Boolean(False))
    assert await asyncio.wait_for(flooded, 100) < MANY
    await found.lets_others_in()


async def _new_keys(end: Any) -> None:
    for _ in range(20):
        end._send_kexinit()
        end._kexinit_sent = True
        async with asyncio.timeout(SOON_S):
            while not end._kex_complete:
                assert end._transport is not None
                await asyncio.sleep(0)


async def test_new_keys_on_both_sides_at_once(siege: Begin) -> None:
    """Neither waits for the other: both begin after an hour, or after as many bytes."""
    inside: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def space(end: Any) -> None:
        inside.set_result(end)

    found = await siege(space)
    client = await found.client()
    _send(client, GLOBAL_REQUEST, String("hello@example.com") + Boolean(False))
    await asyncio.gather(_new_keys(client), _new_keys(await inside))


FLOOD = """
import socket, struct, sys
ignored = struct.pack(">IBBI6x", 12, 6, 2, 0)
assert len(ignored) == 16
while True:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as one:
        try:
            one.sendall(b"SSH-2.0-Nobody\\r\\n" + ignored * 16000)
        except OSError:
            pass
"""


async def test_small_messages_of_strangers_keep_nobody_out(siege: Begin) -> None:
    found = await siege()
    with subprocess.Popen([sys.executable, "-c", FLOOD, str(found.port)]) as flood:
        try:
            async with asyncio.timeout(SOON_S):
                for _ in range(3):
                    await found.lets_others_in()
        finally:
            flood.kill()


SMALL = """
import asyncio, asyncssh, sys
async def flood():
    end = await asyncssh.connect(
        "127.0.0.1", int(sys.argv[1]), config=None, username="x", client_keys=[sys.argv[2]],
        agent_path=None, known_hosts=None)
    end.log_sent_packet = lambda *_, **__: None
    print("in", flush=True)
    while True:
        if end._transport.get_write_buffer_size() < 1 << 16:
            for _ in range(200):
                end.send_packet(4, b"\\0" + bytes(8))
        await asyncio.sleep(0)
asyncio.run(flood())
"""


async def test_small_messages_of_a_client_keep_nobody_out(siege: Begin) -> None:
    found = await siege()
    words = [sys.executable, "-c", SMALL, str(found.port), str(found.folder / "one")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None
            assert await asyncio.to_thread(flood.stdout.readline) == b"in\n"
            await asyncio.sleep(STUCK_S)
            for _ in range(3):
                await found.lets_others_in()
        finally:
            flood.kill()


async def test_a_space_that_is_not_reached_keeps_nobody_else_waiting(siege: Begin) -> None:
    found = await siege(stuck="x")
    for _ in range(20):
        async with asyncio.timeout(SOON_S):
            _send(await found.client(), GLOBAL_REQUEST, QUESTION)
    await found.lets_others_in()


async def test_a_key_is_one_however_it_is_written(siege: Begin) -> None:
    """Else its owner takes all places."""
    found = await siege()
    key = asyncssh.read_private_key(str(found.folder / "rsa"))
    fields = SSHPacket(key.public_data)
    kind, exponent, modulus = (fields.get_string() for _ in range(3))
    ends = []
    for zeros in range(3):
        pair = asyncssh.load_keypairs([key])[0]
        pair.public_data = String(kind) + String(bytes(zeros) + exponent) + String(modulus)
        ends += [await found.client("x", pair) for _ in range(50)]
    async with asyncio.timeout(TIMEOUT_S):
        while sum(end._transport is not None for end in ends) > 128:
            await asyncio.sleep(0.1)
    await found.lets_others_in()


# Its daemon's side


def _key(folder: Path, name: str, *, slash: bool) -> tuple[str, str]:
    """Its text without a comment, and its fingerprint: half of all have a slash."""
    for path in folder.glob(f"{name}*"):
        path.unlink()
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name]
    subprocess.run(words, cwd=folder, check=True, timeout=TIMEOUT_S)
    said = subprocess.run(
        ["ssh-keygen", "-lf", name], cwd=folder, check=True, capture_output=True, text=True
    )
    text = (folder / f"{name}.pub").read_text()
    if ("/" in said.stdout.split()[1]) is not slash:
        return _key(folder, name, slash=slash)
    return " ".join(text.split()[:2]), said.stdout.split()[1]


def test_a_key_that_is_named_as_another_ones_fingerprint(carrel: Program, tmp_path: Path) -> None:
    """Who gives a key away writes its comment. The other one is taken away when that is said."""
    first, _ = _key(tmp_path, "first", slash=False)
    second, fingerprint = _key(tmp_path, "second", slash=False)
    named = carrel.good("ssh-key", "add", f"{first} {fingerprint}", "--all").strip()
    meant = carrel.good("ssh-key", "add", second, "--all").strip()
    try:
        assert carrel.good("ssh-key", "rm", fingerprint).strip() == meant
    finally:
        carrel("ssh-key", "rm", named)
        carrel("ssh-key", "rm", meant)


def test_a_key_is_taken_away_by_a_fingerprint_with_a_slash(carrel: Program, tmp_path: Path) -> None:
    text, fingerprint = _key(tmp_path, "first", slash=True)
    added = carrel.good("ssh-key", "add", text, "--all").strip()
    try:
        assert carrel.good("ssh-key", "rm", fingerprint).strip() == added
    finally:
        carrel("ssh-key", "rm", added)


def test_a_listener_that_cannot_move_stays(own_daemon: Daemon, tmp_path: Path) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    port = carrel.json("ssh-listen", "--port", str(free_port()))["port"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        carrel.bad(None, "ssh-listen", "--port", str(other.getsockname()[1]))
    assert carrel.json("ssh-listen", "--show")["port"] == port
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as one:
        assert one.recv(8) == b"SSH-2.0-"
    carrel.good("ssh-listen", "--stop")
