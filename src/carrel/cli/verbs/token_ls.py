"""carrel token ls: the tokens that open something."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.showing import age_of
from carrel.cli.spec import Verb
from carrel.client.requests import asking

VERB = Verb("List tokens.")
HEADS = ("ID", "NAME", "SCOPE", "AGE", "USED", "EXPIRES")


def run(call: Call) -> int:
    answer = call.link.json(asking("/v1/tokens"))
    if call.json:
        call.show(answer)
        return 0
    rows = [
        (
            token["id"],
            token["name"] or "-",
            token["scope"],
            age_of(token["created_at"]),
            age_of(token["used_at"]),
            token["expires_at"] or "-",
        )
        for token in answer["tokens"]
    ]
    if rows:
        call.say(table(HEADS, rows, shrink=(1, 2)))
    else:
        call.note("There are no tokens.")
    return 0
