"""carrel instance connect: an MCP server of one's own, on standard input and output.

For clients that only know a command to start. Bytes go between our streams and the server's
socket as they are.
"""

from __future__ import annotations

import _socket
import os
import signal
import time

from carrel.cli import bridging, instancing
from carrel.cli.call import Call
from carrel.cli.output import tell
from carrel.cli.spec import Verb
from carrel.cli.terminal import Signals
from carrel.client.link import connect_unix
from carrel.client.requests import CONNECT_S, asking, instance_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KNOWN_S = 3.0
"""For the daemon to notice that a server has ended whose connection did."""
LOOK_S = 0.05
VERB = Verb(
    "Be an MCP server on standard input and output: a dedicated one, started for this.",
    *instancing.WHERE,
    details="As the command of a client that only knows such. The server ends with it.",
    options=instancing.PLACING,
)


def run(call: Call) -> int:
    if not call.place.socket:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "Streams are for the daemon of this machine.", hint="Over a network: instance start"
        )
    wanted = {**instancing.content(call), "streams": True, "owner_pid": os.getpid()}
    # Whoever loses patience until it is there ends us, and the daemon gives it up.
    instance = instancing.start(call, wanted)
    try:
        with Signals(instancing.STOPPING) as signals:
            return _serve(call, instance, signals)
    finally:
        _release(call, instance)


def _serve(call: Call, instance: dict[str, Any], signals: Signals) -> int:
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        connect_unix(sock.connect, instance["socket"])
        bridge = bridging.Bridge(sock, signals.descriptor)
        ended = bridge.run()
    finally:
        sock.close()
    if ended == bridging.SIGNAL:
        return 128 + (signals.take() or [signal.SIGTERM])[0]
    return _explain(call, instance["instance_id"]) if ended == bridging.SERVER else 0


def _explain(call: Call, instance_id: str) -> int:
    """The server ended first: well, or not."""
    until = time.monotonic() + KNOWN_S
    while True:
        found = call.link.json(asking(instance_path(instance_id)))
        if found["state"] not in instancing.LIVE or time.monotonic() > until:
            break
        time.sleep(LOOK_S)
    if found["state"] != "failed":
        return 0
    problem = found["problem"] or {}
    tell(instancing.last_lines(call, instance_id))
    tell(f"carrel: {problem.get('message') or 'The server ended.'}\n")
    return 1


def _release(call: Call, instance: dict[str, Any]) -> None:
    """Without us it ends anyway: it is ours by our process."""
    from carrel.domain.errors import DaemonUnavailable, InstanceNotFound

    try:
        instancing.let_go(call, instance)
    except (DaemonUnavailable, InstanceNotFound):
        return
