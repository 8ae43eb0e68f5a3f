"""JSON on the launcher's sockets, with descriptors, and in its small files.

A request is `{"op": …, "id": n, …}`; its answer is `{"id": n, …}`, with `problem` in it when
it failed; `messages.py` has their fields. A body that does not fit a packet travels in a memory
file, as the last descriptor, and the packet is `{"memory": true}`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

PROTOCOL = 4
PACKET_BYTES = 64 * 1024
"""Well below the smallest default of net.core.wmem_default, which bounds a packet."""
MOST_DESCRIPTORS = 64
MOST_BODY_BYTES = 16 * 1024 * 1024
"""Argument lists and environments end at a few MiB; more is a mistake."""

Message = dict[str, Any]


class PacketError(Exception):
    """The other side sent something that is no message."""


def send(connection: socket.socket, message: Mapping[str, object], descriptors: list[int]) -> None:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) <= PACKET_BYTES:
        socket.send_fds(connection, [body], descriptors)
        return
    memory = os.memfd_create("carrel-message", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(body)
        socket.send_fds(connection, [b'{"memory":true}'], [*descriptors, memory])
    finally:
        os.close(memory)


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """None at the end of the connection. The caller owns the descriptors."""
    body, descriptors = receive_descriptors(connection, PACKET_BYTES, MOST_DESCRIPTORS)
    if not body and not descriptors:
        return None
    try:
        message = _decode(body)
        if message.get("memory") is True:
            message = _decode(_read_memory(descriptors))
    except (PacketError, OSError):
        close_all(descriptors)
        raise
    return message, descriptors


def receive_descriptors(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """As `socket.recv_fds`, which forgets its flags: the descriptors are not inherited."""
    space = socket.CMSG_LEN(most * struct.calcsize("i"))
    body, ancillary, _, _ = connection.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(content) // struct.calcsize("i")
            descriptors.extend(struct.unpack(f"{count}i", content[: count * 4]))
    return body, descriptors


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PacketError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise PacketError("not an object")
    return message


def _read_memory(descriptors: list[int]) -> bytes:
    if not descriptors:
        raise PacketError("a body in memory without its descriptor")
    memory = descriptors.pop()
    try:
        size = os.fstat(memory).st_size
        if size > MOST_BODY_BYTES:
            raise PacketError(f"a body of {size} bytes")
        return os.pread(memory, size, 0)
    finally:
        os.close(memory)


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()


# Small files that are there whole or not at all


def write_record(path: str, record: Mapping[str, object]) -> None:
    partial = f"{path}.partial"
    content = json.dumps(record).encode()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, "the disk is full")
    finally:
        os.close(descriptor)
    os.rename(partial, path)


def read_record(path: str) -> Any:
    """An object; None when there is none, or none of ours."""
    try:
        with open(path) as file:
            record = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def remove_record(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
