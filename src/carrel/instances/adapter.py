"""Prepares servers, finds their ports and shakes hands with them; the service decides when."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carrel.domain.errors import InstanceFailed, MessageInvalid
from carrel.domain.instances import Found, PortBy, Server, Swap, Transport, Wrap
from carrel.domain.runtimes import Call, Zygote
from carrel.domain.server_adapter import (
    ClientSockets,
    Furnished,
    HandshakeAttempt,
    PortSearch,
    PreparedServer,
    Surroundings,
)
from carrel.domain.trees import Owner
from carrel.instances import handshake, inside
from carrel.instances.folders import open_state, read_beneath
from carrel.instances.inside.furnish import COPIED, FolderTooLarge, Furnisher
from carrel.instances.processes import PortWatch, connections
from carrel.instances.servers import HOST, fill, filled, port_in
from carrel.instances.sockets import (
    NoSockets,
    Reserved,
    ReservedSockets,
    TcpSockets,
    UnixSockets,
    can_pass,
)

FD = 3
"""What a server is given comes right after its standard streams."""
SHIM, WARM_BRIDGE = str(inside.UVICORN_SHIM), str(inside.WARM_BRIDGE)
PORT_FILE = "port"
CONNECT_S = 60
"""For the one client of a server that speaks on streams to come."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""As sandboxes have it."""
TOKEN = "CARREL_TOKEN"
"""Read by our own helpers, and taken out of the environment of the server."""
OWN_PORT = 8000
"""For a server that must be told one and is alone in its network."""
HIGH_PORTS = range(20_000, 32_000)
"""Below those that kernels give out, above those that services have."""

Python = Callable[..., tuple[str, ...]]
"""The command that runs a module of ours in a sandbox: its name, and words."""
MOST_PORT_BYTES = 64
MOST_WATCHES = 64
"""At most so many are kept: more than start at the same time."""


class LocalServerAdapter:
    """Implements `carrel.domain.server_adapter.ServerAdapter`."""

    def __init__(self, python: Python, folders: Callable[[], tuple[str, ...]]) -> None:
        """`python` is how a module of ours is run in a sandbox, and `folders` what that needs."""
        self._python = python
        self._folders = folders
        self._reserved: dict[int, Reserved] = {}
        self._port_watches: dict[int, PortWatch] = {}
        self._looking = threading.Lock()

    def checks_token(self, server: Server, *, private_network: bool) -> bool:
        # In a network of its own a gate is before whoever does not.
        return private_network or bool(server.wrap or server.takes_token)

    def prepare(
        self, server: Server, found: Found, around: Surroundings, env: Mapping[str, str]
    ) -> PreparedServer:
        reserved = self._reserve(around.port) if _needs_port(server, around) else None
        port = reserved.port if reserved is not None else 0
        builder = CommandBuilder(server, found, around, env, self._python, port, can_pass())
        try:
            prepared = builder.prepare()
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

    def let_go(self, prepared: PreparedServer) -> None:
        if prepared.on_host and (reserved := self._reserved.pop(prepared.port, None)) is not None:
            reserved.close()

    def furnish(self, prepared: PreparedServer, around: Surroundings, owner: Owner) -> Furnished:
        state = str(around.state_path)
        try:
            furnisher = Furnisher(state)
            furnisher.put(dict(prepared.files))
            furnisher.copy(around.project, dict(prepared.server.copies))
            made = (one for one in prepared.swaps if furnisher.swap(**_order(one)))
            found = Furnished(furnisher.copied, tuple(made))
            if os.geteuid() == 0:
                _give(state, owner)
        except (OSError, FolderTooLarge) as error:
            raise InstanceFailed(
                f"The folder of {prepared.server.name} cannot be filled: {error}.",
                hint="Check the permissions and the free room of the data folder.",
            ) from error
        return found

    def furnisher(self, prepared: PreparedServer, around: Surroundings) -> Call:
        order = {
            "state": around.state,
            "project": around.project,
            "files": dict(prepared.files),
            "copies": dict(prepared.server.copies),
            "swaps": [_order(one) for one in prepared.swaps],
        }
        return Call(str(inside.FURNISH), "fill", order)

    def furnished(self, prepared: PreparedServer, output: bytes) -> Furnished:
        said = output.decode("utf-8", "replace").split()
        made = (one for number, one in enumerate(prepared.swaps) if str(number) in said)
        return Furnished(COPIED in said, tuple(made))

    def gate(self, uids: frozenset[int]) -> Call:
        allowed = ",".join(str(uid) for uid in sorted(uids))
        words = ["--listen", "3", "--diag", "4", "--uids", allowed]
        return Call(str(inside.GATE), "main", words)

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

    def open(self, prepared: PreparedServer, socket: Path | None, port: int = 0) -> ClientSockets:
        if socket is not None:
            return UnixSockets(socket)
        if not prepared.on_host:
            return TcpSockets(port, gated=prepared.gated)
        reserved = self._reserved.pop(prepared.port, None)
        return NoSockets() if reserved is None else ReservedSockets(reserved)

    def look(self, prepared: PreparedServer, search: PortSearch) -> tuple[int, ...]:
        if prepared.port:
            found = self._port_watch(search.pid).look(whole_network=True)
            return (prepared.port,) if any(one.port == prepared.port for one in found) else ()
        if prepared.port_file:
            port = _written(search.state_path, prepared.port_file)
            return () if port is None else (port,)
        if prepared.server.port_by is PortBy.LOG:
            told = port_in(prepared.server, search.output)
            return () if told is None else (told,)
        # Where it has a network for itself, all that listens there is its own.
        whole = prepared.gated and search.alone
        found = self._port_watch(search.pid).look(whole_network=whole)
        return tuple(dict.fromkeys(one.port for one in sorted(found)))

    def _port_watch(self, pid: int) -> PortWatch:
        with self._looking:
            watch = self._port_watches.setdefault(pid, PortWatch(pid))
            while len(self._port_watches) > MOST_WATCHES:
                self._port_watches.pop(next(iter(self._port_watches)))
            return watch

    async def greet(self, attempt: HandshakeAttempt) -> None:
        headers = dict(attempt.headers)
        if attempt.token:
            headers["Authorization"] = f"Bearer {attempt.token}"
        if attempt.server.transport is Transport.SSE:
            await handshake.greet_sse(attempt.url, headers, attempt.tool)
        else:
            await handshake.greet(attempt.url, headers, attempt.tool, attempt.later)

    def connections(self, ports: frozenset[int]) -> Mapping[int, int]:
        return connections(ports)


def _order(swap: Swap) -> dict[str, Any]:
    """As `Furnisher.swap` takes it."""
    return {
        "files": list(swap.files),
        "keys": list(swap.keys),
        "word": swap.word,
        "instead": swap.instead,
    }


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
    """The port in a file of the server's folder."""
    try:
        root = open_state(state)
    except OSError:
        return None
    try:
        text = (read_beneath(root, path, MOST_PORT_BYTES) or b"").strip()
    finally:
        os.close(root)
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else None


# The command of one server: which helper runs before it, and what is filled in


@dataclass(frozen=True)
class CommandBuilder:
    server: Server
    found: Found
    around: Surroundings
    env: Mapping[str, str]
    """What the caller adds; the token is in it under `TOKEN` when there is one."""
    python: Python
    reserved: int = 0
    """A port of the host that is kept for it."""
    passing: bool = True
    """A server may be given a socket of the host: it cannot make more of it."""

    def prepare(self) -> PreparedServer:
        if self.around.streams:
            return self._streams()
        match self.server.wrap:
            case Wrap.UVICORN:
                return self._shim()
            case Wrap.STDIO:
                return self._bridge()
        if self.server.transport is Transport.STDIO:
            raise MessageInvalid(
                f"{self.server.name} speaks on its standard streams only.",
                hint='Set `wrap` to "stdio" in its definition, or use `carrel instance connect`.',
            )
        if self.server.port_by is PortBy.SOCKET:
            return self._socket()
        return self._bound()

    def _streams(self) -> PreparedServer:
        """One connection becomes its standard input and output."""
        words = ("--fd", str(FD), "--wait", str(CONNECT_S), "--", *self._filled())
        made = self._made((self.server.name,), direct=True)
        return replace(made, call=_becoming(inside.STDIO, *words))

    def _shim(self) -> PreparedServer:
        """Its own interpreter runs it, with our socket."""
        interpreter, script, *arguments = self._filled()
        if self.around.preloaded:
            return self._warm(script, arguments)
        words = (SHIM, *self._ways(), "--")
        return self._wrapped((interpreter, "-I", *words, script, *arguments))

    def _warm(self, script: str, arguments: list[str]) -> PreparedServer:
        made = self._wrapped((self.server.name,))
        argument = {
            "script": script,
            "arguments": arguments,
            "fd": FD if made.direct else None,
            "inside": self._port_file() if made.port_file else "",
        }
        call = Call(SHIM, "warm", argument)
        return replace(made, call=call)

    def _bridge(self) -> PreparedServer:
        words = (*self._ways(), "--", *self._filled())
        if self.around.preloaded:
            made = self._wrapped((self.server.name,))
            return replace(made, call=Call(WARM_BRIDGE, "main", [*words]))
        return self._wrapped(self.python("carrel.instances.inside.bridge", *words))

    def _wrapped(self, argv: tuple[str, ...]) -> PreparedServer:
        """What listens inside is for others in the sandbox, or for the gate."""
        direct = self._direct
        inside = PORT_FILE if not direct or self._has_inside else ""
        return self._made(argv, direct=direct, gated=not direct, port_file=inside)

    @property
    def _has_inside(self) -> bool:
        """What is in the same sandbox comes in without a token. Where the network is the
        machine's, that would be everybody."""
        return self.around.private_network and not self.around.alone

    @property
    def _direct(self) -> bool:
        return self.passing or not self.around.private_network

    def _socket(self) -> PreparedServer:
        tokened = self.server.takes_token and self.around.alone
        if not self.around.private_network or (tokened and self.passing):
            return self._made(self._filled(fd=str(FD)), direct=True)
        # `{fd}` is left for the helper to fill: it makes the socket.
        made = self._made((self.server.name,), gated=True, port_file=PORT_FILE)
        return replace(
            made, call=_becoming(inside.LISTEN, self._port_file(), "--", *self._filled())
        )

    def _bound(self) -> PreparedServer:
        """A server that binds a port itself."""
        gated, port = self.around.private_network, self.reserved
        if self.server.port_by is PortBy.RESERVED and gated:
            port = OWN_PORT if self.around.alone else random.choice(HIGH_PORTS)
        places = {"port": str(port)} if port else {}
        by_file = self.server.port_by is PortBy.FILE
        return self._made(
            self._filled(**places),
            gated=gated,
            port_file=PORT_FILE if by_file else "",
            port=port,
        )

    def _made(
        self,
        argv: tuple[str, ...],
        *,
        direct: bool = False,
        gated: bool = False,
        port_file: str = "",
        port: int = 0,
    ) -> PreparedServer:
        env = {**self._own_folders(), **filled(self.server.env, self._places()), **self.env}
        if self.server.takes_token and TOKEN in env and not self.server.wrap:
            env[self.server.takes_token] = env.pop(TOKEN)
        elif not self.server.wrap or self.around.streams:
            env.pop(TOKEN, None)
        if self.found.path:
            env["PATH"] = f"{self.found.path}:{env.get('PATH', PATH)}"
        files = filled(self.server.files, self._places())
        prepared = PreparedServer(self.server, argv, env, direct, gated, port_file, port)
        swaps = tuple(
            one for one in self.server.swaps if self._is_made(one, env.get("PATH", PATH), files)
        )
        return replace(prepared, files=files, swaps=swaps)

    def _is_made(self, swap: Swap, path: str, files: Mapping[str, str]) -> bool:
        """Not where what is asked for can be had, nor where there is nothing else."""
        fetches = any(shutil.which(name, path=path) for name in swap.fetched_by)
        if fetches and not self.around.private_network:
            return False
        said = any(swap.unless in text for text in files.values())
        return not said and shutil.which(swap.program, path=path) is not None

    def _own_folders(self) -> dict[str, str]:
        """Where it is not alone, the home is others' too."""
        if self.around.alone:
            return {}
        state = self.around.state
        return {
            "HOME": state,
            "XDG_CONFIG_HOME": f"{state}/.config",
            "XDG_CACHE_HOME": f"{state}/.cache",
            "XDG_DATA_HOME": f"{state}/.local/share",
            "XDG_STATE_HOME": f"{state}/.local/state",
        }

    def _filled(self, **places: str) -> tuple[str, ...]:
        """The words of its command."""
        known = {**self._places(), **places}
        return tuple(fill(word, known) for word in self.found.argv)

    def _places(self) -> dict[str, str]:
        return {
            "project": self.around.project,
            "state": self.around.state,
            "host": HOST,
            "port_file": self._port_file(),
        }

    def _ways(self) -> tuple[str, ...]:
        """By which clients come to a server that is wrapped."""
        given = ("--fd", str(FD)) if self._direct else ()
        if self._direct and not self._has_inside:
            return given
        return (*given, "--inside", self._port_file())

    def _port_file(self) -> str:
        return f"{self.around.state}/{PORT_FILE}"


def _becoming(program: Path, *words: str) -> Call:
    """Becomes the command after `--`; no interpreter has to be started for that."""
    return Call(str(program), "run", list(words))
