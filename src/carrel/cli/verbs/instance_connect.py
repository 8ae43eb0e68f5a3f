"""carrel instance connect: a dedicated MCP server on standard input and output.

For clients that only know a command to start. Bytes go between our streams and the server's
socket as they are.
"""

from __future__ import annotations

import _socket
import os
import time

from carrel.cli.bridge import SERVER, SIGNAL, StdioBridge
from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import shown, tell
from carrel.cli.spec import Verb
from carrel.cli.terminal import STOP_SIGNALS, Signals
from carrel.cli.verbs import instances
from carrel.cli.verbs.instances import LIVE, START_OPTIONS, read_log, release, start
from carrel.client.address import CONNECT_S, connect_unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    # The same without enums, which take longer to load than all else here.
    import _signal as signal

KNOWN_S = 3.0
"""For the daemon to notice that a server has ended whose connection did."""
LOOK_S = 0.05
LAST_BYTES = 4096
"""So much is shown of what a server wrote that failed."""


@Verb(*instances.SERVER_AND_PROJECT, *START_OPTIONS)
def instance_connect(call: VerbCall) -> int:
    """Start a dedicated MCP server, and serve it on standard input and output.

    It is for clients that can only start a command. The server ends with this command.
    """
    if not call.place.socket:
        raise invalid(
            "`carrel instance connect` works only with a daemon on this machine.",
            hint="Over a network, use: carrel instance start",
        )
    wanted = {**instances.content(call), "streams": True, "owner_pid": os.getpid()}
    # Whoever loses patience until it is there ends us, and the daemon gives it up.
    instance = start(call, wanted)
    try:
        with Signals(STOP_SIGNALS) as signals:
            return _serve(call, instance, signals)
    finally:
        _release(call, instance)


def _serve(call: VerbCall, instance: dict[str, Any], signals: Signals) -> int:
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        connect_unix(sock.connect, instance["socket"])
        bridge = StdioBridge(sock, signals.descriptor)
        ended = bridge.run()
    finally:
        sock.close()
    if ended == SIGNAL:
        return 128 + (signals.take() or [signal.SIGTERM])[0]
    return _explain(call, instance["instance_id"]) if ended == SERVER else 0


def _explain(call: VerbCall, instance_id: str) -> int:
    """Says why the server ended first: well, or not."""
    until = time.monotonic() + KNOWN_S
    while True:
        found = call.ask("instances.show", instance_id)
        if found["state"] not in LIVE or time.monotonic() > until:
            break
        time.sleep(LOOK_S)
    if found["state"] != "failed":
        return 0
    problem = found["problem"] or {}
    tell(shown(read_log(call, instance_id, LAST_BYTES), 2))
    tell(f"carrel: {problem.get('message') or 'The server ended.'}\n")
    return 1


def _release(call: VerbCall, instance: dict[str, Any]) -> None:
    """Without us it ends anyway: it is ours by our process."""
    from carrel.domain.errors import DaemonUnavailable, InstanceNotFound

    try:
        release(call, instance)
    except (DaemonUnavailable, InstanceNotFound):
        return
