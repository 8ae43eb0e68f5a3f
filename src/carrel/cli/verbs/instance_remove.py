"""carrel instance remove: a kind of server that was added is forgotten."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import Request
from carrel.client.wire import segment

VERB = Verb("Remove an MCP server that was added; its instances go on.", Argument("name"))


def run(call: Call) -> int:
    answer = call.link.json(Request("DELETE", f"/v1/servers/{segment(call.text('name'))}"))
    if call.json:
        call.show(answer)
    return 0
