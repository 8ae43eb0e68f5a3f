"""carrel show: all about one space."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.showing import describe_space
from carrel.cli.spec import SPACE, Verb
from carrel.client.requests import asking, space_path

VERB = Verb("Show all about a space.", SPACE)


def run(call: Call) -> int:
    space = call.link.json(asking(space_path(call.text("space"))))
    if call.json:
        call.show(space)
    else:
        call.say(describe_space(space))
    return 0
