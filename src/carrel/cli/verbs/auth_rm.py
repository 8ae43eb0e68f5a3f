"""carrel auth rm: a key is forgotten."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import Request
from carrel.client.wire import segment

VERB = Verb("Forget a key that agents are given.", Argument("name"))


def run(call: Call) -> int:
    path = f"/v1/credentials/{segment(call.text('name'))}"
    told = call.link.json(Request("DELETE", path))
    if call.json:
        call.show(told)
    return 0
