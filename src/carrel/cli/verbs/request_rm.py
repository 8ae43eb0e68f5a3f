"""carrel request rm: nothing of it stays."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.many import each
from carrel.cli.requesting import request_path
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import LONG_S, Request

VERB = Verb(
    "Remove the workspaces and archives of requests; those under way are ended.",
    Argument("request", many=True),
)


def run(call: Call) -> int:
    def remove(request: str) -> object:
        return call.link.json(
            Request("DELETE", request_path(request), timeout_s=LONG_S, again=True)
        )

    return each(call, call.texts("request"), remove, quiet=True)
