"""The gate: whom it lets in, and that it moves every byte, in real sockets and processes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.instances import inside
from carrel.instances.inside import gate
from tests.accounts import PYTHON, Account, ordinary_account, run_as

WAIT_S = 60.0
SOCK_DIAG = 4
SMALL_KB = 8 * 1024
"""Twice of what an interpreter takes with next to nothing loaded."""
FLOOD = 100 * 1024 * 1024
TOKEN = "t0ken-of-this-test"
ENV = {**os.environ, "CARREL_TOKEN": TOKEN}
Serve = Callable[[socket.socket], None]


class Gate:
    """A real one, before a real listener."""

    def __init__(self, *, uids: str = "", bound: int = 0, family: int = socket.AF_INET) -> None:
        host = "127.0.0.1" if family == socket.AF_INET else "::"
        self.listener = socket.create_server(
            (host, 0), family=family, backlog=512, dualstack_ipv6=family == socket.AF_INET6
        )
        self.address = ("127.0.0.1", self.listener.getsockname()[1])
        diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
        words = ["--listen", str(self.listener.fileno()), "--diag", str(diag.fileno())]
        words += ["--uids", uids or str(os.getuid())]
        words += ["--bound", str(bound)] if bound else []
        with diag:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(inside.GATE), *words],
                pass_fds=(self.listener.fileno(), diag.fileno()),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=ENV,
            )
        self.listener.close()

    def tell(self, address: tuple[str, int]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"target {address[0]} {address[1]}\n".encode())

    def connect(self) -> socket.socket:
        """By one who has the token; the server is told the rest."""
        client = self.knock()
        client.sendall(head(self.address[1]))
        return client

    def knock(self) -> socket.socket:
        return socket.create_connection(self.address, WAIT_S)

    def close(self) -> bytes:
        self.process.terminate()
        return self.process.communicate(timeout=WAIT_S)[1]


def head(port: int, *more: str, host: str = "", token: str = TOKEN, line: str = "") -> bytes:
    fields = [f"Host: {host or f'127.0.0.1:{port}'}", f"Authorization: Bearer {token}", *more]
    return "\r\n".join([line or "POST /mcp HTTP/1.1", *fields, "", ""]).encode()


@pytest.fixture
def gates() -> Iterator[Callable[..., Gate]]:
    made: list[Gate] = []

    def make(**options: object) -> Gate:
        made.append(Gate(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    assert [gate.close() for gate in made] == [b""] * len(made)


@contextlib.contextmanager
def target(serve: Serve) -> Iterator[tuple[str, int]]:
    """A server with a thread per connection, which ends with the block."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        threads: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                client.settimeout(WAIT_S)
                threads.append(threading.Thread(target=_served, args=(serve, client)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(WAIT_S)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def _served(serve: Serve, client: socket.socket) -> None:
    with client:
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            said += (piece := client.recv(1))
            if not piece:
                return
        serve(client)


def echo(client: socket.socket) -> None:
    while piece := client.recv(65536):
        client.sendall(piece)


def named(name: bytes) -> Serve:
    def serve(client: socket.socket) -> None:
        client.sendall(name)
        client.shutdown(socket.SHUT_WR)
        everything(client)

    return serve


def everything(of: socket.socket) -> bytes:
    return b"".join(iter(lambda: of.recv(65536), b""))


def test_bytes_pass_and_half_closes_too(gates: Callable[..., Gate]) -> None:
    """The server says what it heard only once it has heard the end."""

    def count(client: socket.socket) -> None:
        client.sendall(b"hello ")
        client.sendall(b"%d" % len(everything(client)))

    gate = gates()
    with target(count) as address, gate.connect() as client:
        gate.tell(address)
        client.sendall(b"x" * 70_000)
        client.shutdown(socket.SHUT_WR)
        assert everything(client) == b"hello 70000"


def test_a_server_that_ends_first_is_still_told_everything(gates: Callable[..., Gate]) -> None:
    heard: list[bytes] = []

    def speak_then_listen(client: socket.socket) -> None:
        client.sendall(b"done")
        client.shutdown(socket.SHUT_WR)
        heard.append(everything(client))

    gate = gates()
    with target(speak_then_listen) as address, gate.connect() as client:
        gate.tell(address)
        assert everything(client) == b"done"
        client.sendall(b"y" * 3_000_000)
        client.shutdown(socket.SHUT_WR)
    assert heard == [b"y" * 3_000_000]


def test_who_comes_early_waits_for_the_target_and_the_newest_counts(
    gates: Callable[..., Gate],
) -> None:
    gate = gates()
    with target(named(b"one")) as one, target(named(b"two")) as two:
        with gate.connect() as early:
            early.setblocking(False)
            with pytest.raises(BlockingIOError):
                early.recv(1)
            early.settimeout(WAIT_S)
            gate.tell(one)
            assert everything(early) == b"one"
        gate.tell(two)
        assert _until(gate, b"two")
        assert gate.process.stdin is not None
        gate.process.stdin.close()
        gate.process.stdin = None
        with gate.connect() as late:
            assert everything(late) == b"two"


def _until(gate: Gate, name: bytes) -> bool:
    """The gate reads its input when it is woken: soon, not at once."""
    for _ in range(1000):
        with gate.connect() as client:
            if everything(client) == name:
                return True
    return False


def test_a_target_that_refuses_is_a_reset(gates: Callable[..., Gate]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()
    gate = gates()
    with gate.connect() as client:
        gate.tell(free)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_client_that_breaks_off_breaks_the_server_off(gates: Callable[..., Gate]) -> None:
    ended = threading.Event()

    def wait(client: socket.socket) -> None:
        client.sendall(b"here")
        with contextlib.suppress(ConnectionResetError):
            client.recv(1)
        ended.set()

    gate = gates()
    with target(wait) as address:
        with gate.connect() as client:
            gate.tell(address)
            assert client.recv(4) == b"here"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert ended.wait(WAIT_S)


def test_a_flood_each_way_with_slow_readers(gates: Callable[..., Gate]) -> None:
    """Both write all before either reads on, so that everything between them is full; and the
    gate keeps no more than a piece of it."""
    piece = os.urandom(1024 * 1024)
    wanted = hashlib.sha256(piece * (FLOOD // len(piece))).digest()

    def flood(of: socket.socket) -> None:
        for _ in range(FLOOD // len(piece)):
            of.sendall(piece)
        of.shutdown(socket.SHUT_WR)

    def slow(of: socket.socket) -> bytes:
        digest = hashlib.sha256()
        for size in itertools.chain([1000] * 500, itertools.repeat(300_000)):
            if not (piece := of.recv(size)):
                break
            digest.update(piece)
        return digest.digest()

    heard: list[bytes] = []

    def both(client: socket.socket) -> None:
        writing = threading.Thread(target=flood, args=(client,))
        writing.start()
        heard.append(slow(client))
        writing.join(WAIT_S)

    gate = gates()
    with target(both) as address, gate.connect() as client:
        gate.tell(address)
        both(client)
        assert private_kb(gate) < SMALL_KB
    assert heard == [wanted, wanted]


def private_kb(gate: Gate) -> int:
    text = Path(f"/proc/{gate.process.pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))


def test_two_hundred_at_once(gates: Callable[..., Gate]) -> None:
    gate = gates()
    with target(echo) as address, contextlib.ExitStack() as stack:
        gate.tell(address)
        clients = [stack.enter_context(gate.connect()) for _ in range(200)]
        for number, client in enumerate(clients):
            client.sendall(b"%d" % number * 1000)
            client.shutdown(socket.SHUT_WR)
        for number, client in enumerate(clients):
            assert everything(client) == b"%d" % number * 1000


def test_beyond_the_bound_nobody_is_accepted_until_one_goes(gates: Callable[..., Gate]) -> None:
    gate = gates(bound=2)
    with target(echo) as address, contextlib.ExitStack() as stack:
        gate.tell(address)
        first, second = (stack.enter_context(gate.connect()) for _ in range(2))
        for client in (first, second):
            client.sendall(b"x")
            assert client.recv(1) == b"x"
        third = stack.enter_context(gate.connect())
        third.sendall(b"y")
        first.sendall(b"z")
        assert first.recv(1) == b"z"
        third.setblocking(False)
        with pytest.raises(BlockingIOError):
            third.recv(1)
        third.settimeout(WAIT_S)
        first.close()
        assert third.recv(1) == b"y"


CONNECT = """
import socket, sys
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) as client:
        client.sendall(bytes.fromhex(sys.argv[3]))
        if sys.argv[2] == "stay":
            print(repr(client.recv(10)))
except ConnectionResetError:
    print("reset")
"""


def calling(gate: Gate, then: str) -> list[str]:
    port = gate.address[1]
    return [PYTHON, "-c", CONNECT, str(port), then, head(port).hex()]


@pytest.fixture
def stranger() -> Account:
    if os.getuid() != 0:
        pytest.skip("needs root: to be somebody else")
    return ordinary_account()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_somebody_else_is_refused(
    gates: Callable[..., Gate], stranger: Account, family: int
) -> None:
    gate = gates(family=family)
    with target(named(b"secret")) as address:
        gate.tell(address)
        with gate.connect() as client:
            assert everything(client) == b"secret"
        ran = run_as(stranger, calling(gate, "stay"))
        assert (ran.stdout, ran.stderr) == ("reset\n", "")


def test_somebody_who_is_listed_is_let_in(gates: Callable[..., Gate], stranger: Account) -> None:
    gate = gates(uids=f"5,{stranger.uid}")
    with target(named(b"secret")) as address:
        gate.tell(address)
        ran = run_as(stranger, calling(gate, "stay"))
        assert (ran.stdout, ran.stderr) == ("b'secret'\n", "")
        with pytest.raises(ConnectionResetError), gate.connect() as client:
            client.recv(1)


def test_who_sends_and_is_gone_is_nobody(gates: Callable[..., Gate], stranger: Account) -> None:
    """The kernel tells of what no process holds any more as if it were root's."""
    heard: list[bytes] = []
    gate = gates()
    with target(lambda client: heard.append(everything(client))) as address:
        gate.process.send_signal(signal.SIGSTOP)
        ran = run_as(stranger, calling(gate, "go"))
        assert ran.stderr == ""
        gate.process.send_signal(signal.SIGCONT)
        gate.tell(address)
        with gate.connect() as client:
            client.sendall(b"own")
            client.shutdown(socket.SHUT_WR)
            everything(client)
    assert heard == [b"own"]


def test_who_breaks_off_before_it_is_accepted_ends_nothing(gates: Callable[..., Gate]) -> None:
    """Such a connection has no address of the other end any more."""
    gate = gates()
    with target(named(b"served")) as address:
        gate.tell(address)
        with gate.connect() as client:
            assert everything(client) == b"served"
        gate.process.send_signal(signal.SIGSTOP)
        for _ in range(3):
            with gate.connect() as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        gate.process.send_signal(signal.SIGCONT)
        with gate.connect() as client:
            assert everything(client) == b"served"


class Endless(socket.socket):
    """A listener at which another one has come whenever somebody is accepted."""

    came = 0

    def _accept(self) -> tuple[int, Any]:
        self.came += 1
        assert self.came < 1000, "it does nothing else"
        socket.create_connection(self.getsockname()).close()
        return super()._accept()  # type: ignore[misc, no-any-return]


def test_strangers_without_end_keep_nobody_waiting() -> None:
    diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
    peers = gate.Peers(diag.detach(), frozenset())
    with Endless() as listener, contextlib.closing(peers._diag):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        gate.Gate(listener, peers, gate.HeadRules(TOKEN, 1), 16)._accept()
        assert listener.came == gate.ACCEPTED


def test_an_address_of_the_newer_kind(gates: Callable[..., Gate]) -> None:
    gate = gates(family=socket.AF_INET6)
    with target(named(b"six")) as address:
        gate.tell(address)
        for host in ("::1", "::ffff:127.0.0.1"):
            with socket.create_connection((host, gate.address[1]), WAIT_S) as client:
                client.sendall(head(gate.address[1]))
                assert everything(client) == b"six"


APART = """
import fcntl, socket, struct, subprocess, sys
with socket.socket() as lo:  # SIOCSIFFLAGS: up
    fcntl.ioctl(lo, 0x8914, struct.pack("16sh14x", b"lo", 1))
with socket.create_server(("127.0.0.1", 0)) as server:
    words, fds = sys.argv[1:], (int(sys.argv[-5]), int(sys.argv[-3]))
    gate = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=fds)
    gate.stdin.write(b"target 127.0.0.1 %d\\n" % server.getsockname()[1])
    gate.stdin.close()
    client, _ = server.accept()
    client.sendall(b"apart")
    client.shutdown(socket.SHUT_WR)
    while client.recv(1024):
        pass
gate.kill()
gate.wait()
"""


def test_a_server_in_a_network_of_its_own() -> None:
    """As instances are: the client and who asks about it are in another one."""
    if os.getuid() != 0:
        pytest.skip("needs root: to make a network")
    diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
    with diag, socket.create_server(("127.0.0.1", 0)) as listener:
        fds = (listener.fileno(), diag.fileno())
        words = ["--listen", str(fds[0]), "--diag", str(fds[1]), "--uids", "0"]
        gate = [sys.executable, "-I", "-S", str(inside.GATE), *words]
        apart = ["unshare", "--net", sys.executable, "-I", "-S", "-c", APART, *gate]
        with subprocess.Popen(apart, pass_fds=fds, stdin=subprocess.DEVNULL, env=ENV) as process:
            with socket.create_connection(listener.getsockname(), WAIT_S) as client:
                client.sendall(head(listener.getsockname()[1]))
                assert everything(client) == b"apart"
            assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("told", "why"), [(b"target localhost 80\n", b"localhost"), (b"x" * 5000, b"too long")]
)
def test_what_makes_no_sense_ends_it(told: bytes, why: bytes) -> None:
    gate = Gate()
    _, said = gate.process.communicate(told, timeout=WAIT_S)
    assert gate.process.returncode == 1
    assert why in said and said.count(b"\n") == 1


def test_without_a_way_to_ask_it_does_not_serve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = str(listener.fileno())
        words = ["--listen", number, "--diag", number, "--uids", "0"]
        ran = subprocess.run(
            [sys.executable, "-I", "-S", str(inside.GATE), *words],
            pass_fds=(listener.fileno(),),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=WAIT_S,
            check=False,
            env=ENV,
        )
    assert ran.returncode == 1
    assert ran.stderr.count(b"\n") == 1


PORT = "{port}"
HEADS = {
    "no token": (401, "Host: 127.0.0.1:{port}"),
    "another token": (401, "Host: 127.0.0.1:{port}\nAuthorization: Bearer x"),
    "a part of it": (401, f"Host: 127.0.0.1:{PORT}\nAuthorization: Bearer {TOKEN[:-1]}"),
    "another scheme": (401, f"Host: 127.0.0.1:{PORT}\nAuthorization: Basic {TOKEN}"),
    "two tokens": (
        401,
        f"Host: 127.0.0.1:{PORT}\nAuthorization: Bearer x\nAuthorization: Bearer {TOKEN}",
    ),
    "no host": (421, "X: y"),
    "two hosts": (421, "Host: 127.0.0.1:{port}\nHost: evil.example"),
}
HOSTS = [
    *("evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1:{port}.evil.example"),
    *("127.0.0.1", "127.0.0.1:1", "[::1]:{port}", "[::1]evil.example:{port}", "localhost.:{port}"),
    *("localhost@evil.example:{port}", "user@localhost:{port}", "127.1:{port}", "0.0.0.0:{port}"),
    *("127.0.0.1:{port},evil.example", "127.0.0.1:0{port}", "127.0.0.1 :{port}"),
]
ORIGINS = [
    *("http://evil.example", "http://localhost.evil.example", "null", "http://localhost@evil"),
    *("http://127.0.0.1:x", "http://[::1]evil.example", "file://", "http://evil:80/127.0.0.1", ""),
]
LINES = [
    *(
        "POST http://evil.example/mcp HTTP/1.1",
        "POST /mcp HTTP/2.0",
        "POST /mcp",
        "OPTIONS * HTTP/1.1",
    ),
    *("POST  /mcp HTTP/1.1", "POST /mcp\nHTTP/1.1 HTTP/1.1", "CONNECT evil:1 HTTP/1.1"),
]
FOLDED = ["X: y\r\n Host: evil.example", "X : y", ": y", "no colon", "X: a\nHost: evil", "X: \0"]


def answered(gate: Gate, said: bytes) -> int:
    with gate.knock() as client:
        client.sendall(said)
        answer = everything(client)
        assert answer.startswith(b"HTTP/1.1 ") and b"the server" not in answer, answer
        return int(answer.split()[1])


def test_who_does_not_show_the_token_is_refused(gates: Callable[..., Gate]) -> None:
    """Though it is the same user: as what runs in a sandbox with the machine's network is."""
    gate = gates()
    with target(named(b"the server")) as address:
        gate.tell(address)
        port = gate.address[1]
        for what, (status, fields) in HEADS.items():
            said = f"POST /mcp HTTP/1.1\n{fields}\n\n".format(port=port)
            assert answered(gate, said.replace("\n", "\r\n").encode()) == status, what
        with gate.connect() as client:
            assert everything(client) == b"the server"


def test_pages_that_were_led_here_are_refused(gates: Callable[..., Gate]) -> None:
    """By the name that they call us, by their own, and by whatever else could be read twice;
    with the token too."""
    gate = gates()
    with target(named(b"the server")) as address:
        gate.tell(address)
        port = gate.address[1]
        for host in HOSTS:
            assert answered(gate, head(port, host=host.format(port=port))) == 421, host
        for origin in ORIGINS:
            assert answered(gate, head(port, f"Origin: {origin}")) == 403, origin
        two = ("Origin: http://localhost", "Origin: http://localhost")
        assert answered(gate, head(port, *two)) == 403
        for line in LINES:
            assert answered(gate, head(port, line=line)) == 400, line
        for field in FOLDED:
            assert answered(gate, head(port, field)) == 400, field
        for more in (("Origin: http://localhost:6274",), ("Origin: https://[::1]",), ()):
            with gate.knock() as client:
                client.sendall(head(port, *more, host=f"LocalHost:{port}"))
                assert everything(client) == b"the server"


def test_who_says_nothing_keeps_nobody_out(gates: Callable[..., Gate]) -> None:
    """Neither by many connections nor by heads without an end."""
    gate = gates(bound=4)
    with target(echo) as address, contextlib.ExitStack() as stack:
        gate.tell(address)
        silent = [stack.enter_context(gate.knock()) for _ in range(100)]
        for one in silent[50:]:
            one.sendall(b"POST /mcp HTTP/1.1\r\nX: ")
        with gate.connect() as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            with pytest.raises(ConnectionError):
                for _ in range(100):
                    silent[-1].sendall(b"y" * 65_536)
                silent[-1].recv(1)
            client.sendall(b"z")
            assert client.recv(1) == b"z"


def test_a_head_comes_in_pieces_and_its_body_with_it(gates: Callable[..., Gate]) -> None:
    gate = gates()
    with target(echo) as address, gate.knock() as client:
        gate.tell(address)
        for byte in head(gate.address[1]):
            client.sendall(bytes([byte]))
        client.sendall(b"body")
        client.shutdown(socket.SHUT_WR)
        assert everything(client) == b"body"


def test_without_a_token_it_does_not_serve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = str(listener.fileno())
        ran = subprocess.run(
            [sys.executable, "-I", "-S", str(inside.GATE), "--listen", number, "--diag", number],
            pass_fds=(listener.fileno(),),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=WAIT_S,
            check=False,
        )
    assert ran.returncode == 1 and b"CARREL_TOKEN" in ran.stderr
