"""carrel hub clients: who is connected to the hub."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.speaking import open_line, space_of
from carrel.cli.spec import SPACES, TEXT, Option, Verb

VERB = Verb(
    "List who is connected to the hub.",
    options=(
        Option("--space", kind=TEXT, metavar="SPACE", completes=SPACES, help="To this space."),
    ),
)
HEADS = ("CLIENT", "KIND", "NAME", "SPACE", "CONSUMER", "TYPES", "SPACES")
NAME, TYPES, SPACES_AT = 2, 5, 6


def run(call: Call) -> int:
    with open_line(call) as line:
        word = call.text("space")
        payload = {"space": space_of(call, word, line.space)} if word else {}
        clients = line.ask({"type": "client_list", "payload": payload})["clients"]
    if call.json:
        call.show({"clients": clients})
        return 0
    rows = [
        (
            one["client_id"],
            one["kind"],
            one["name"] or "-",
            one["space"] or "-",
            one["consumer"] or "-",
            " ".join(one["types"]) or "-",
            " ".join(one["spaces"]) or "-",
        )
        for one in clients
    ]
    call.say(table(HEADS, rows, shrink=(SPACES_AT, TYPES, NAME)))
    return 0
