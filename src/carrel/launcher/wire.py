"""How the launcher and its clients talk: one JSON object a packet, with descriptors.

A request is `{"op": …, "id": n, …}`; its answer is `{"id": n, …}`, with `error` in it when
it failed. A body that does not fit a packet travels in a memory file, as the last
descriptor, and the packet is `{"memory": true}`.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

PROTOCOL = 4
PACKET_BYTES = 64 * 1024
"""Well below the smallest default of net.core.wmem_default, which bounds a packet."""
MOST_DESCRIPTORS = 64
MOST_BODY_BYTES = 16 * 1024 * 1024
"""Argument lists and environments end at a few MiB; more is a mistake."""

Message = dict[str, Any]
Answer = Callable[[Message, list[int]], None]
"""Sends the answer to one request; the descriptors stay the caller's."""


class WireError(Exception):
    """The other side sent something that is no message."""


def send(connection: socket.socket, message: Message, descriptors: list[int]) -> None:
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
    except WireError:
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
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("not an object")
    return message


def _read_memory(descriptors: list[int]) -> bytes:
    if not descriptors:
        raise WireError("a body in memory without its descriptor")
    memory = descriptors.pop()
    try:
        size = os.fstat(memory).st_size
        if size > MOST_BODY_BYTES:
            raise WireError(f"a body of {size} bytes")
        return os.pread(memory, size, 0)
    finally:
        os.close(memory)


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
