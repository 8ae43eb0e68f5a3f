"""carrel runs: the commands of a space."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.showing import age_of, command_text, exit_text, span_text
from carrel.cli.spec import SPACE, Verb
from carrel.client.requests import asking, space_path

VERB = Verb("List the commands of a space, newest first.", SPACE)
HEADS = ("RUN", "STATE", "EXIT", "TIME", "AGE", "COMMAND")


def run(call: Call) -> int:
    answer = call.link.json(asking(space_path(call.text("space"), "runs")))
    if call.json:
        call.show(answer)
        return 0
    rows = [
        (
            one["id"],
            one["state"],
            exit_text(one),
            span_text(one),
            age_of(one["created_at"]),
            command_text(one),
        )
        for one in answer["runs"]
    ]
    if rows:
        call.say(table(HEADS, rows, shrink=(5,)))
    else:
        call.note("Nothing has run in it.")
    return 0
