"""Bytes between two connections: all of them, in order, no faster than they are taken."""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from carrel.ports.pump import ConnectionPump

WAIT_S = 60.0
NARROW, WIDE = 4096, 200_000
IDLE_S = 0.2
"""In which one that looks all the time takes a processor, as far as the machine has one."""
BYTES = 200 << 20
BLOCK = os.urandom(1 << 20)


@pytest.fixture
def pump() -> Iterator[ConnectionPump]:
    found = ConnectionPump()
    yield found
    found.close()


class Carried:
    """Two connections over TCP, and the pump between them: `near` and `far` are its ends."""

    def __init__(self, pump: ConnectionPump, near: int = 0, far: int = 0) -> None:
        self.over = threading.Event()
        self.near, one = _connection(near)
        self.far, other = _connection(far)
        self.pair = pump.carry(one, other, lambda _pair: self.over.set())

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def carried(pump: ConnectionPump) -> Iterator[Carried]:
    found = Carried(pump)
    yield found
    found.close()


def _connection(room: int = 0) -> tuple[socket.socket, socket.socket]:
    """With so much room in the kernel, each way."""
    with socket.socket() as listener, socket.socket() as client:
        for one in (listener, client) if room else ():
            for what in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                one.setsockopt(socket.SOL_SOCKET, what, room)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.settimeout(WAIT_S)
        client.connect(listener.getsockname())
        return client.dup(), listener.accept()[0]


def _send(end: socket.socket, count: int) -> int:
    check = 0
    for _ in range(count // len(BLOCK)):
        end.sendall(BLOCK)
        check = zlib.crc32(BLOCK, check)
    end.shutdown(socket.SHUT_WR)
    return check


def _receive(end: socket.socket) -> int:
    check = 0
    while piece := end.recv(1 << 20):
        check = zlib.crc32(piece, check)
    return check


def test_all_bytes_come_both_ways_at_once(carried: Carried) -> None:
    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(_send, end, BYTES) for end in (carried.near, carried.far)]
        came = [threads.submit(_receive, end) for end in (carried.far, carried.near)]
        assert [one.result() for one in sent] == [one.result() for one in came]
    assert carried.over.wait(WAIT_S)


def test_one_side_may_end_before_the_other(carried: Carried) -> None:
    carried.near.sendall(b"question")
    carried.near.shutdown(socket.SHUT_WR)
    assert carried.far.recv(100) == b"question"
    assert carried.far.recv(100) == b""
    assert not carried.over.is_set()
    carried.far.sendall(b"answer")
    carried.far.close()
    assert carried.near.recv(100) == b"answer"
    assert carried.near.recv(100) == b""
    assert carried.over.wait(WAIT_S)


def test_a_slow_reader_slows_the_writer_and_loses_nothing(
    pump: ConnectionPump, carried: Carried
) -> None:
    carried.far.setblocking(False)
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += carried.far.send(BLOCK)
    others = Carried(pump)
    # It keeps nobody else waiting, nor a processor busy, whatever has ended meanwhile.
    others.near.sendall(b"word")
    assert others.far.recv(10) == b"word"
    others.close()
    carried.far.setblocking(True)
    carried.far.shutdown(socket.SHUT_WR)
    carried.near.shutdown(socket.SHUT_WR)
    came = 0
    while piece := carried.near.recv(1 << 20):
        came += len(piece)
    assert came >= sent
    assert carried.over.wait(WAIT_S)


def test_what_waits_for_a_slow_reader_takes_no_processor(pump: ConnectionPump) -> None:
    """Both sides of the writer's connection have ended, which the kernel would tell again and
    again."""
    carried = Carried(pump, NARROW, WIDE)
    carried.near.shutdown(socket.SHUT_WR)
    assert carried.far.recv(1) == b""
    # More than the reader's sockets have room for, and less than the pump's own.
    carried.far.sendall(bytes(WIDE // 2))
    carried.far.close()
    thread = next(one for one in threading.enumerate() if one.name == "ports")
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    before = time.clock_gettime(clock)
    assert not carried.over.wait(IDLE_S)
    assert time.clock_gettime(clock) - before < IDLE_S / 20
    assert sum(map(len, iter(partial(carried.near.recv, 1 << 20), b""))) == WIDE // 2
    assert carried.over.wait(WAIT_S)
    carried.close()


def test_a_lost_connection_is_lost_for_the_other(carried: Carried) -> None:
    carried.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    carried.near.close()
    with pytest.raises(ConnectionResetError):
        carried.far.recv(1)
    assert carried.over.wait(WAIT_S)


def test_what_is_cut_ends_at_once(pump: ConnectionPump, carried: Carried) -> None:
    pump.cut(carried.pair)
    for end in (carried.near, carried.far):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert carried.over.wait(WAIT_S)


def test_nothing_is_left_of_a_pump_that_was_closed() -> None:
    before = os.listdir("/proc/self/fd")
    pump = ConnectionPump()
    found = [Carried(pump) for _ in range(10)]
    pump.close()
    pump.close()
    assert all(one.over.is_set() for one in found)
    for one in found:
        one.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not [one for one in threading.enumerate() if one.name == "ports"]
