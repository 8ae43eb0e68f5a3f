"""carrel start: a stopped space is ready again."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.many import each
from carrel.cli.spec import SPACES, Argument, Verb
from carrel.client.requests import LONG_S, space_path, telling

VERB = Verb(
    "Start spaces that were stopped, or failed.",
    Argument("space", many=True, completes=SPACES),
)


def run(call: Call) -> int:
    def start(space: str) -> object:
        path = space_path(space, "start")
        return call.link.json(telling("POST", path, timeout_s=LONG_S, again=True))

    return each(call, call.texts("space"), start)
