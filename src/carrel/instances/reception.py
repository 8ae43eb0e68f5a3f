"""Servers are prepared, found and greeted here; the service knows when."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from carrel.domain.errors import InstanceFailed
from carrel.domain.instances import Found, PortBy, Server, Transport, Wrap
from carrel.domain.reception import Doors, Looking, Prepared, Surroundings, Visit
from carrel.domain.runtimes import Call, Zygote
from carrel.domain.trees import Owner
from carrel.instances import speaking
from carrel.instances.doors import NoDoors, ReservedDoors, StreamDoors, TcpDoors, can_pass
from carrel.instances.inside.furnish import Furnisher, TooMuch
from carrel.instances.listening import Lookout, connections
from carrel.instances.preparing import INSIDE, SHIM, WARM_BRIDGE, Preparing, Python
from carrel.instances.reserving import Reserved
from carrel.instances.servers import HOST, port_in
from carrel.instances.states import open_state
from carrel.linux.openat2 import open_beneath

PORT_BYTES = 16
MOST_LOOKOUTS = 64
"""That are kept: more than start at the same time. One that is made anew looks once more."""


class LocalReception:
    """Implements `carrel.domain.reception.Reception`."""

    def __init__(self, python: Python, folders: Callable[[], tuple[str, ...]]) -> None:
        """`python` is how a module of ours is run in a sandbox, and `folders` what that needs."""
        self._python = python
        self._folders = folders
        self._reserved: dict[int, Reserved] = {}
        self._lookouts: dict[int, Lookout] = {}
        self._looking = threading.Lock()

    def checks_token(self, server: Server, *, private_network: bool) -> bool:
        if server.wrap:
            return not private_network or can_pass()
        return bool(server.takes_token)

    def prepare(
        self, server: Server, found: Found, around: Surroundings, env: Mapping[str, str]
    ) -> Prepared:
        reserved = self._reserve(around.port) if _needs_port(server, around) else None
        port = reserved.port if reserved is not None else 0
        preparing = Preparing(server, found, around, env, self._python, port, can_pass())
        try:
            prepared = preparing.prepare()
        except BaseException:
            if reserved is not None:
                reserved.close()
            raise
        if reserved is not None:
            self._reserved[port] = reserved
        return prepared

    def _reserve(self, port: int) -> Reserved:
        """Not the one that is just kept for another, who came while nobody had it."""
        return Reserved() if port in self._reserved else Reserved.again(port)

    def let_go(self, prepared: Prepared) -> None:
        if prepared.on_host and (reserved := self._reserved.pop(prepared.port, None)) is not None:
            reserved.close()

    def furnish(self, prepared: Prepared, around: Surroundings, owner: Owner) -> None:
        state = str(around.state_path)
        try:
            furnisher = Furnisher(state)
            furnisher.put(dict(prepared.files))
            furnisher.copy(around.project, dict(prepared.server.copies))
            if os.geteuid() == 0:
                _give(state, owner)
        except (OSError, TooMuch) as error:
            raise InstanceFailed(
                f"The folder of {prepared.server.name} cannot be filled: {error!r}.",
                hint="Look at the data folder.",
            ) from error

    def furnisher(self, prepared: Prepared, around: Surroundings) -> Call:
        order = {
            "state": around.state,
            "project": around.project,
            "files": dict(prepared.files),
            "copies": dict(prepared.server.copies),
        }
        return Call(str(INSIDE / "furnish.py"), "fill", order)

    def gate(self, uids: frozenset[int]) -> Call:
        allowed = ",".join(str(uid) for uid in sorted(uids))
        words = ["--listen", "3", "--diag", "4", "--uids", allowed]
        return Call(str(INSIDE / "gate.py"), "main", words)

    def target(self, port: int) -> bytes:
        return f"target {HOST} {port}\n".encode()

    def shown(self) -> tuple[str, ...]:
        return self._folders()

    def zygote(
        self, server: Server, found: Found, around: Surroundings, owner: Owner
    ) -> Zygote | None:
        if server.wrap is not Wrap.UVICORN or not server.preload or not found.python:
            return None
        env = self.prepare(server, found, around, {}).env
        return Zygote(server.name, found.python, owner, server.preload, (SHIM,), env)

    def bridge(self, name: str, owner: Owner, idle_s: float) -> Zygote:
        return Zygote(name, sys.executable, owner, (), (WARM_BRIDGE,), {}, idle_s)

    def open(self, prepared: Prepared, socket: Path | None, port: int = 0) -> Doors:
        if socket is not None:
            return StreamDoors(socket)
        if not prepared.on_host:
            return TcpDoors(port, gated=prepared.gated)
        reserved = self._reserved.pop(prepared.port, None)
        return NoDoors() if reserved is None else ReservedDoors(reserved)

    def look(self, prepared: Prepared, looking: Looking) -> tuple[int, ...]:
        if prepared.port:
            found = self._lookout(looking.pid).look(whole_network=True)
            return (prepared.port,) if any(one.port == prepared.port for one in found) else ()
        if prepared.port_file:
            port = _written(looking.state_path, prepared.port_file)
            return () if port is None else (port,)
        if prepared.server.port_by is PortBy.LOG:
            told = port_in(prepared.server, looking.output)
            return () if told is None else (told,)
        # Where it has a network for itself, all that listens there is its own.
        whole = prepared.gated and looking.alone
        found = self._lookout(looking.pid).look(whole_network=whole)
        return tuple(dict.fromkeys(one.port for one in sorted(found)))

    def _lookout(self, pid: int) -> Lookout:
        with self._looking:
            lookout = self._lookouts.setdefault(pid, Lookout(pid))
            while len(self._lookouts) > MOST_LOOKOUTS:
                self._lookouts.pop(next(iter(self._lookouts)))
            return lookout

    async def greet(self, visit: Visit) -> None:
        headers = dict(visit.headers)
        if visit.token:
            headers["Authorization"] = f"Bearer {visit.token}"
        if visit.server.transport is Transport.SSE:
            await speaking.greet_sse(visit.url, headers, visit.tool)
        else:
            await speaking.greet(visit.url, headers, visit.tool, visit.later)

    def connections(self, ports: frozenset[int]) -> Mapping[int, int]:
        return connections(ports)


def _needs_port(server: Server, around: Surroundings) -> bool:
    """Of the host: what is wrapped, or speaks on streams, is given a socket."""
    given = around.streams or server.wrap or around.private_network
    return server.port_by is PortBy.RESERVED and not given


def _give(folder: str, owner: Owner) -> None:
    os.lchown(folder, owner.uid, owner.gid)
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.lchown(os.path.join(above, name), owner.uid, owner.gid)


def _written(state: Path, path: str) -> int | None:
    """The sandbox may make anything of its folders, links to elsewhere too."""
    try:
        root = open_state(state)
    except OSError:
        return None
    try:
        found = open_beneath(root, os.fsencode(path), follow=False)
    except OSError:
        return None
    finally:
        os.close(root)
    return _number(found)


def _number(place: int) -> int | None:
    """Closes it. Only a file is read: a pipe would keep us waiting."""
    try:
        descriptor = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(place)
    try:
        text = os.read(descriptor, PORT_BYTES).strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else None
