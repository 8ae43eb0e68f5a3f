"""The command of one server in its surroundings: which helper of ours is before it, and what is
filled in."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import Found, PortBy, Server, Transport, Wrap
from carrel.domain.reception import Prepared, Surroundings
from carrel.domain.runtimes import Call
from carrel.instances.servers import HOST, fill, fill_files

FD = 3
"""What a server is given comes right after its standard streams."""
INSIDE = Path(__file__).parent / "inside"
SHIM, WARM_BRIDGE = str(INSIDE / "uvicorn_shim.py"), str(INSIDE / "bridge_warm.py")
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


@dataclass(frozen=True)
class Preparing:
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

    def prepare(self) -> Prepared:
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
                hint='Have it wrapped (`wrap = "stdio"`), or connect to its streams.',
            )
        if self.server.port_by is PortBy.SOCKET:
            return self._socket()
        return self._bound()

    def _streams(self) -> Prepared:
        """One connection becomes its standard input and output."""
        words = ("--fd", str(FD), "--wait", str(CONNECT_S), "--", *self._filled())
        made = self._made((self.server.name,), direct=True)
        return replace(made, call=_own("stdio.py", *words))

    def _shim(self) -> Prepared:
        """Its own interpreter runs it, with our socket."""
        interpreter, script, *arguments = self._filled()
        if self.around.preloaded:
            return self._warm(script, arguments)
        words = (SHIM, *self._ways(), "--")
        return self._wrapped((interpreter, "-I", *words, script, *arguments))

    def _warm(self, script: str, arguments: list[str]) -> Prepared:
        made = self._wrapped((self.server.name,))
        argument = {
            "script": script,
            "arguments": arguments,
            "fd": FD if made.direct else None,
            "inside": self._port_file() if made.port_file else "",
        }
        call = Call(SHIM, "warm", argument)
        return replace(made, call=call)

    def _bridge(self) -> Prepared:
        words = (*self._ways(), "--", *self._filled())
        if self.around.preloaded:
            made = self._wrapped((self.server.name,))
            return replace(made, call=Call(WARM_BRIDGE, "main", [*words]))
        return self._wrapped(self.python("carrel.instances.inside.bridge", *words))

    def _wrapped(self, argv: tuple[str, ...]) -> Prepared:
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

    def _socket(self) -> Prepared:
        tokened = self.server.takes_token and self.around.alone
        if not self.around.private_network or (tokened and self.passing):
            return self._made(self._filled(fd=str(FD)), direct=True)
        # `{fd}` is left for the helper to fill: it makes the socket.
        made = self._made((self.server.name,), gated=True, port_file=PORT_FILE)
        return replace(made, call=_own("listen.py", self._port_file(), "--", *self._filled()))

    def _bound(self) -> Prepared:
        """It binds a port itself."""
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
    ) -> Prepared:
        env = {**self._own_folders(), **self._server().env, **self.env}
        if self.server.takes_token and TOKEN in env and not self.server.wrap:
            env[self.server.takes_token] = env.pop(TOKEN)
        elif not self.server.wrap or self.around.streams:
            env.pop(TOKEN, None)
        if self.found.path:
            env["PATH"] = f"{self.found.path}:{env.get('PATH', PATH)}"
        files = fill_files(self.server, self._places())
        return Prepared(
            self.server, argv, env, direct, gated, port_file, port, call=None, files=files
        )

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
        return self._fill(self.found.argv, **places)

    def _server(self) -> Server:
        """With the values of its environment filled in."""
        filled = fill(self.server, self._places())
        return replace(self.server, env=filled.env)

    def _fill(self, words: tuple[str, ...], **places: str) -> tuple[str, ...]:
        server = replace(self.server, command=words)
        return fill(server, {**self._places(), **places}).argv

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


def _own(program: str, *words: str) -> Call:
    """Becomes the command after `--`; no interpreter has to be started for that."""
    return Call(str(INSIDE / program), "run", list(words))
