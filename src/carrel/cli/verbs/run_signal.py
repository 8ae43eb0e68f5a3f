"""carrel run signal: a signal to a command."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import RUN, Argument, Verb
from carrel.client.requests import run_path, telling

VERB = Verb(
    "Send a signal to a command and all its processes.",
    RUN,
    Argument("signal", required=False),
    details="TERM, if none is named; HUP, INT, QUIT, KILL, USR1, USR2, STOP, CONT, …",
)


def run(call: Call) -> int:
    name = (call.text("signal") or "TERM").upper().removeprefix("SIG")
    found = call.link.json(telling("POST", run_path(call.text("run"), "signal"), {"signal": name}))
    if call.json:
        call.show(found)
    return 0
