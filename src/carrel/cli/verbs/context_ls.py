"""carrel context ls: what the agent of a space is given to read."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, table
from carrel.cli.spec import SPACE, Verb
from carrel.cli.values import size_text
from carrel.client.requests import asking, space_path

VERB = Verb("List what the agent of a space is given to read.", SPACE)
HEADS = ("NAME", "SIZE")


def run(call: Call) -> int:
    answer = call.link.json(asking(space_path(call.text("space"), "context")))
    if call.json:
        call.show(answer)
        return 0
    rows = [(clean(one["name"]), size_text(one["size"])) for one in answer["files"]]
    if rows:
        call.say(table(HEADS, rows))
    else:
        call.note("There is nothing: carrel context add SPACE FILE...")
    return 0
