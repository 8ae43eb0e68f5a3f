"""carrel shell: a shell in a space, in this terminal."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import PAIRS, SPACE, Option, Verb
from carrel.cli.verbs.exec import follow, own_error, with_terminal
from carrel.client.exchange import Exchange

VERB = Verb(
    "Open a shell in a space.",
    SPACE,
    details="bash if it is there, else sh. Ctrl-] twice leaves it to itself.",
    options=(
        Option("-e", "--env", kind=PAIRS, metavar="K=V", help="A variable of its environment."),
    ),
)
SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"]


def run(call: Call) -> int:
    command = with_terminal({"argv": SHELL, "env": call.pairs("env")})
    try:
        return follow(call, Exchange.starting(call.text("space"), command), command)
    except Exception as error:
        raise own_error(error) from error
