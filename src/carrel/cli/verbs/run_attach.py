"""carrel run attach: a command that runs, in front of this terminal."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import RUN, Option, Verb
from carrel.cli.verbs.exec import follow, own_error
from carrel.client.exchange import Exchange
from carrel.client.requests import asking, run_path

VERB = Verb(
    "Attach to a command: all its output, from the beginning; its exit code.",
    RUN,
    details=(
        "A command with a terminal gets what is typed; Ctrl-] twice leaves it. Ctrl-C goes to "
        "the command; three times leaves it."
    ),
    options=(
        Option("-i", "--stdin", help="Pass on standard input."),
        Option("--new", help="Only what comes from now on."),
    ),
)


def run(call: Call) -> int:
    try:
        found = call.link.json(asking(run_path(call.text("run"))))
        exchange = Exchange.attaching(found["id"])
        if call.flag("new"):
            for number, stream in ((1, "stdout"), (2, "stderr")):
                exchange.offsets[number] = _end(call, found["id"], stream)
        alive = found["state"] in ("starting", "running")
        command = {
            "terminal": found["terminal"] and alive,
            "stdin": call.flag("stdin"),
        }
        return follow(call, exchange, command)
    except Exception as error:
        raise own_error(error) from error


def _end(call: Call, run_id: str, stream: str) -> int:
    """How much of a stream there is now."""
    offset = 0
    while True:
        request = asking(run_path(run_id, "output"), [("stream", stream), ("offset", offset)])
        answer = call.link.ask(request).check()
        offset = int(answer.head.headers["carrel-offset"]) + len(answer.body)
        if not answer.body:
            return offset
