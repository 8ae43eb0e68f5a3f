"""carrel stop: nothing of a space runs any more."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.many import each
from carrel.cli.spec import SECONDS, SPACES, Argument, Option, Verb
from carrel.client.requests import LONG_S, space_path, telling

VERB = Verb(
    "Stop spaces: everything in them is ended; their files stay.",
    Argument("space", many=True, completes=SPACES),
    options=(
        Option(
            "--grace", kind=SECONDS, metavar="TIME", help="From the request to end to the kill."
        ),
    ),
)


def run(call: Call) -> int:
    grace_s = call.number("grace")
    content = {} if grace_s is None else {"grace_s": grace_s}

    def stop(space: str) -> object:
        path = space_path(space, "stop")
        return call.link.json(telling("POST", path, content, timeout_s=LONG_S, again=True))

    return each(call, call.texts("space"), stop)
