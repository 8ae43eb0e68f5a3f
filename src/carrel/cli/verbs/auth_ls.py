"""carrel auth ls: which keys there are."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import Verb
from carrel.client.requests import asking

VERB = Verb("List the names of the keys that agents are given.")


def run(call: Call) -> int:
    answer = call.link.json(asking("/v1/credentials"))
    if call.json:
        call.show(answer)
        return 0
    for name in answer["credentials"]:
        call.say(name)
    if not answer["credentials"]:
        call.note("There are none: carrel auth set NAME")
    return 0
