"""carrel mcp and codesmith: MCP servers for agents and editors."""

from __future__ import annotations

import _socket
import os

from carrel.cli.bridge import SERVER, SIGNAL, StdioBridge
from carrel.cli.call import VerbCall, without_empty
from carrel.cli.spec import Option, Verb
from carrel.cli.terminal import Signals
from carrel.client.address import CONNECT_S, check_peer, connect_unix, find_hub, starter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from carrel.client.address import Address
else:
    # The same without enums, which take longer to load than all else here.
    import _signal as signal

SOCKET = "mcp.sock"
"""Beside the hub's."""

TOKEN = "CARREL_MCP_TOKEN"


@Verb(
    Option("--http HOST:PORT", "Serve over HTTP, at /mcp; port 0 takes any."),
    Option("--token TOKEN", f"Require this token of clients; also {TOKEN}."),
    Option("--no-token", "Require no token; only for use behind a proxy that checks clients."),
    Option("--allow-host NAME...", "Accept this name of the machine too."),
)
def mcp(call: VerbCall) -> int:
    """Serve Carrel's tools to an agent or editor, by the Model Context Protocol.

    It serves on standard input and output, unless --http is given. In a space it acts for
    that space, elsewhere it manages spaces: docs/mcp.md.
    """
    data, url, autostart = call.text("data"), call.text("url"), not call.flag("no_start")
    if call.text("http"):
        from carrel.mcp.address import Http

        token = call.text("token") or os.environ.get(TOKEN, "")
        names, guarded = call.texts("allow_host"), call.flag("no_token")
        http = Http.at(call.text("http"), token, names, guarded=guarded)
        from carrel.mcp.server import serve

        serve(data=data, url=url, autostart=autostart, http=http)
        return 0
    hub = find_hub(data=data, url=url)
    # A token decides for whom it speaks, and comes over the API, not by this socket.
    sock = _connect(hub.place, autostart) if hub.lines else None
    if sock is None:
        from carrel.mcp.server import serve

        # A daemon that was killed leaves its sockets, and comes back.
        inside = hub.inside and os.path.exists(hub.place.socket)
        serve(data=data, url=url, autostart=autostart, inside=inside)
        return 0
    with Signals((signal.SIGHUP, signal.SIGTERM)) as signals:
        bridge = StdioBridge(sock, signals.descriptor)
        ended = bridge.run()
        if ended == SIGNAL:
            return 128 + (signals.take() or [signal.SIGTERM])[0]
    if ended == SERVER and bridge.refused:
        raise _refused()
    return 0


def _connect(place: Address, autostart: bool) -> _socket.socket | None:
    """To the daemon's process for MCP; None where there is none."""
    path = f"{os.path.dirname(place.socket)}/{SOCKET}"
    start = starter(place, autostart)
    for _ in "ab":
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            sock.settimeout(CONNECT_S)
            connect_unix(sock.connect, path)
            check_peer(sock, place)
            return sock
        except OSError:
            sock.close()
        if start is None:
            return None
        start()
    return None


def _refused() -> Exception:
    from carrel.domain.errors import Capacity

    return Capacity(
        "The daemon serves no more MCP sessions of this space or token.",
        hint="End one of them, or look into the daemon's log.",
    )


@Verb(
    Option("--agent NAME", "The agent when a call names none.", to="frontend"),
    Option("--model TEXT", "The model when a call names none.", to="model"),
    Option("--timeout TIME", "End agents after this time.", to="timeout_s"),
    Option("--tier minimal|default|large", "Give spaces this set of limits.", to="tier"),
    Option("-e, --env K=V", "Set a variable for the agents.", to="env"),
)
def codesmith(call: VerbCall) -> None:
    """Serve the tool `generate` to an agent or editor, by the Model Context Protocol.

    It serves on standard input and output, until that ends: docs/codesmith.md.
    """
    from carrel.mcp.codesmith.server import serve

    serve(
        data=call.text("data"),
        url=call.text("url"),
        autostart=not call.flag("no_start"),
        usual=without_empty(call.content()),
    )
