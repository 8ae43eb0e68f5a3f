"""On what processes listen, as /proc tells it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from typing import NamedTuple

LISTEN = "0A"
"""The state of a TCP socket, as `/proc/net/tcp` writes it."""
MOST_LISTENERS = 4096
"""Of one network and family: more are read of nobody's."""


class Endpoint(NamedTuple):
    """`host` is an address; all zeros stand for every one of the machine."""

    host: str
    port: int

    @property
    def is_open(self) -> bool:
        """Others than this machine may reach it."""
        return not (self.host.startswith("127.") or self.host == "::1")


def listeners(pid: int | str) -> dict[str, Endpoint]:
    """All that listens in the network of this process, by inode."""
    found: dict[str, Endpoint] = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{name}") as file:
            next(file, None)
            for _, line in zip(range(MOST_LISTENERS), file, strict=False):
                words = line.split()
                # Those come first, before all connections.
                if len(words) < 10 or words[3] != LISTEN:
                    break
                found[words[9]] = endpoint(words[1], family)
    return found


def endpoint(text: str, family: socket.AddressFamily) -> Endpoint:
    """Addresses are written word by word, each in the order of the machine."""
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    words = [raw[start : start + 4][::-1] for start in range(0, len(raw), 4)]
    return Endpoint(socket.inet_ntop(family, b"".join(words)), int(port, 16))


def sockets_of(pid: int) -> set[str]:
    """Those that it has open, by inode; none where it has ended, or is not ours to see."""
    found: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def counts(pid: int) -> list[str]:
    """Of the sockets in its network: `TCP: inuse 1 …`, whose other figures are the machine's.
    Much cheaper than the table."""
    found = []
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{name}") as file:
            found += [line.split()[2] for line in file if line.startswith("TCP")]
    return found


def network_of(pid: int | str) -> str:
    """The name of its network namespace; empty where it has ended, or is not ours to see."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def held_by(pids: Iterable[int]) -> dict[int, dict[str, Endpoint]]:
    """On what each of these processes listens, by inode. Those in different networks are looked at
    in their own."""
    found: dict[int, dict[str, Endpoint]] = {}
    tables: dict[str, dict[str, Endpoint]] = {}
    for pid in pids:
        inodes = sockets_of(pid)
        if not inodes:
            continue
        network = network_of(pid)
        if network not in tables:
            tables[network] = listeners(pid)
        if own := inodes & tables[network].keys():
            found[pid] = {inode: tables[network][inode] for inode in own}
    return found
