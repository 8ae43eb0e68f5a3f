"""carrel context rm: the agent of a space is no longer given that."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import SPACE, Argument, Verb
from carrel.client.requests import Request, space_path
from carrel.client.wire import segment

VERB = Verb(
    "Take files away that the agent of a space was given to read.",
    SPACE,
    Argument("names", many=True),
)


def run(call: Call) -> int:
    for name in call.texts("names"):
        where = space_path(call.text("space"), "context", segment(name))
        call.link.json(Request("DELETE", where))
    return 0
