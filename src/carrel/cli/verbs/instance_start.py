"""carrel instance start: an MCP server of one's own, ready when this returns."""

from __future__ import annotations

from carrel.cli import instancing
from carrel.cli.call import Call
from carrel.cli.spec import Verb

VERB = Verb(
    "Start an MCP server for one client: for a project, or in a space.",
    *instancing.WHERE,
    details=(
        "Without a project: for the current folder. It stays until `carrel instance stop`, "
        "unless --ttl, --idle or --lease say otherwise. The token is for its client: "
        "Authorization: Bearer TOKEN."
    ),
    options=(
        *instancing.LASTING,
        *instancing.PLACING,
        *instancing.KEEPING,
        instancing.TOOL_READY,
    ),
)


def run(call: Call) -> int:
    instance = instancing.start(call, instancing.content(call))
    if call.json:
        call.show(instance)
    else:
        call.say(instancing.describe(instance))
    return 0
