"""carrel up: the daemon runs."""

from __future__ import annotations

import os
import sys

from carrel.cli.call import Call
from carrel.cli.output import flush
from carrel.cli.spec import TEXT, Option, Verb

VERB = Verb(
    "Start the daemon; it goes on in the background.",
    details="Other commands do this by themselves. One that runs already is no error.",
    options=(
        Option("--foreground", help="Stay here, and log to this terminal."),
        Option(
            "--listen", kind=TEXT, metavar="HOST:PORT", help="Also on TCP, for who has a token."
        ),
    ),
)


def run(call: Call) -> int:
    from carrel.cli.local import own_data

    data, listen = own_data(call), call.text("listen")
    if call.flag("foreground"):
        words = [sys.executable, "-P", "-X", "utf8", "-m", "carrel.daemon", "--data", data]
        words += ["--listen", listen] if listen else []
        flush()
        os.execv(sys.executable, words)
    from carrel.daemon import control
    from carrel.domain.errors import DaemonRunning

    try:
        control.start(data, listen or None)
    except DaemonRunning:
        # That it runs is all that was asked for, unless it is to listen elsewhere.
        if listen:
            raise
    found = control.status(data)
    if call.json:
        call.show({"running": True, "pid": found.pid, "address": found.address, "data": data})
        return 0
    where = f" and on {found.address}" if found.address else ""
    call.say(f"The daemon runs (process {found.pid}), for {data}{where}.")
    return 0
