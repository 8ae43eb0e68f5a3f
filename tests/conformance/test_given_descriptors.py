"""Descriptors that a command is given beside its standard streams, on every runtime."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from carrel.domain.errors import CommandInvalid
from carrel.domain.runtimes import MOST_GIVEN, Command, Output, Sandbox
from carrel.domain.trees import TreeMount
from carrel.linux.sockets import only_listens
from tests.conformance.runtime_rig import WAIT_S, Finished, Rig, finish

PYTHON = "/usr/bin/python3"


async def _run(rig: Rig, sandbox: Sandbox, command: Command) -> Finished:
    return await finish(await rig.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command))


_ACCEPT = """
import os, socket
listener = socket.socket(fileno=3)
os.write(1, ("%r\\n" % sorted(map(int, os.listdir("/proc/self/fd")))).encode())
connection, _ = listener.accept()
connection.sendall(b"from inside")
"""


def _call(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.settimeout(WAIT_S)
        return connection.recv(100)


async def test_a_socket_made_outside_is_accepted_on_inside(rig: Rig) -> None:
    """The sandbox has no network, and the command nothing else of ours."""
    sandbox = await rig.start()
    for output in (Output.FILES, Output.PIPES, Output.PTY):
        for stdin in (False, True):
            assert await _accepted(rig, sandbox, output, stdin) == OPEN, (output, stdin)


OPEN = "[0, 1, 2, 3, 4]"
"""4 is the folder that is being listed."""


async def _accepted(rig: Rig, sandbox: Sandbox, output: Output, stdin: bool) -> str:
    """The descriptors that the command has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = Command(
            (PYTHON, "-I", "-c", _ACCEPT),
            output=output,
            stdin=stdin,
            descriptors=(listener.fileno(),),
        )
        run = await rig.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command)
        assert os.fstat(listener.fileno())
        said = await asyncio.to_thread(_call, listener.getsockname()[1])
        assert said == b"from inside"
    piped = ""
    if isinstance(run.stdout, int):
        async with asyncio.timeout(WAIT_S):
            piped = (await asyncio.to_thread(os.read, run.stdout, 100)).decode()
    done = await finish(run)
    assert done.exit.code == 0, done
    return (piped or done.out).strip()


_REUSE = """
import ctypes, socket, sys
port = int(sys.argv[1])
listener = socket.socket(fileno=3)
accepted, _ = listener.accept()
assert ctypes.CDLL(None).connect(accepted.fileno(), bytes(16), 16) == 0  # AF_UNSPEC
listener.shutdown(socket.SHUT_RDWR)
for end in (accepted, listener):
    for option in (26, 27):
        try:
            end.setsockopt(socket.SOL_SOCKET, option, bytes(16))
        except OSError:
            pass
    end.settimeout(0.3)
    try:
        end.connect(("127.0.0.1", port))
        print("connected")
    except OSError as error:
        print(type(error).__name__)
"""


async def test_one_that_only_listens_is_no_way_out(rig: Rig) -> None:
    """Not where the sandbox has a network of its own, or none."""
    sandbox = await rig.start()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        try:
            only_listens(listener)
        except PermissionError:
            # Known gap: newer kernels let only those filter TCP who rule the network.
            assert os.geteuid() != 0
            return
        words = (PYTHON, "-I", "-c", _REUSE, str(other.getsockname()[1]))
        with socket.create_connection(listener.getsockname(), timeout=WAIT_S):
            done = await _run(rig, sandbox, Command(words, descriptors=(listener.fileno(),)))
    assert done.exit.code == 0, done
    assert "connected" not in done.out and len(done.out.split()) == 2


_LISTEN_ELSEWHERE = """
import ctypes, socket, sys
listener = socket.socket(fileno=3)
accepted, _ = listener.accept()
for end in (accepted, listener):
    assert ctypes.CDLL(None).connect(end.fileno(), bytes(16), 16) == 0  # AF_UNSPEC
    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        end.bind((sys.argv[1], 0))
        end.listen(1)
        print(end.getsockname()[1], flush=True)
    except PermissionError:  # by Landlock
        print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
async def test_one_that_only_listens_listens_nowhere_else(rig: Rig, address: str) -> None:
    """Whoever comes there would speak with what has no network."""
    sandbox = await rig.start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            only_listens(listener)
        except PermissionError:
            assert os.geteuid() != 0
            return
        words = (PYTHON, "-I", "-c", _LISTEN_ELSEWHERE, address)
        command = Command(words, stdin=True, descriptors=(listener.fileno(),), output=Output.PIPES)
        with socket.create_connection(listener.getsockname(), timeout=WAIT_S):
            run = await rig.runtime.run(sandbox, TreeMount(sandbox.spec.tree), command)
            assert isinstance(run.stdout, int)
            ports = b""
            async with asyncio.timeout(WAIT_S):
                while ports.count(b"\n") < 2:
                    piece = await asyncio.to_thread(os.read, run.stdout, 100)
                    assert len(piece) > 0
                    ports += piece
    for port in map(int, ports.split()):
        with pytest.raises((TimeoutError, ConnectionRefusedError)):
            socket.create_connection(("127.0.0.1", port), timeout=0.3)
    await run.close_input()
    assert (await finish(run)).exit.code == 0


_LEAVE_DEVICE = """
import ctypes, socket
listener = socket.socket(fileno=3)
accepted, _ = listener.accept()
for end in (accepted, listener):
    assert ctypes.CDLL(None).connect(end.fileno(), bytes(16), 16) == 0  # AF_UNSPEC
    for option in (25, 62):  # SO_BINDTODEVICE, SO_BINDTOIFINDEX
        try:
            end.setsockopt(socket.SOL_SOCKET, option, bytes(4))
        except PermissionError:
            print(end.getsockopt(socket.SOL_SOCKET, 25, 16).rstrip(bytes(1)).decode())
"""


async def test_one_that_only_listens_sends_nothing_from_the_machine(rig: Rig) -> None:
    """The question for a connection alone can have data in it, and needs no answer for that."""
    sandbox = await rig.start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            only_listens(listener)
        except PermissionError:
            assert os.geteuid() != 0
            return
        words = (PYTHON, "-I", "-c", _LEAVE_DEVICE)
        with socket.create_connection(listener.getsockname(), timeout=WAIT_S):
            done = await _run(rig, sandbox, Command(words, descriptors=(listener.fileno(),)))
    assert done.exit.code == 0, done
    assert done.out.split() == ["lo"] * 4


async def test_many_come_in_their_order(rig: Rig) -> None:
    """Whatever numbers they have on their way, and whether they are the same one or not."""
    sandbox = await rig.start()
    files = []
    for number in range(MOST_GIVEN - 1):
        files.append(os.memfd_create(f"given-{number}", os.MFD_CLOEXEC))
        os.write(files[-1], f"{number} ".encode())
    code = (
        "import os, sys\n"
        f"given = range(3, 3 + {MOST_GIVEN})\n"
        "assert all(map(os.get_inheritable, given))\n"
        "print(b''.join(os.pread(number, 9, 0) for number in given).decode())\n"
    )
    try:
        command = Command((PYTHON, "-I", "-c", code), descriptors=(*files, files[0]))
        for _ in range(2):
            done = await _run(rig, sandbox, command)
            assert done.out.split() == [*map(str, range(MOST_GIVEN - 1)), "0"], done
    finally:
        for file in files:
            os.close(file)


async def test_what_cannot_be_given_is_refused(rig: Rig) -> None:
    sandbox = await rig.start()
    gone = os.memfd_create("gone")
    os.close(gone)
    for descriptors in ((gone,), (-1,), (0,) * (MOST_GIVEN + 1)):
        with pytest.raises(CommandInvalid):
            await _run(rig, sandbox, Command(("true",), descriptors=descriptors))
    assert (await rig.run(sandbox, "true")).exit.code == 0
