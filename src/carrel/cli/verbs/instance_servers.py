"""carrel instance servers: the kinds of MCP servers, and what of them is installed."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, table
from carrel.cli.spec import Verb
from carrel.client.requests import asking

VERB = Verb("List the MCP servers that can be had as instances.")
HEADS = ("SERVER", "TRANSPORT", "FROM", "WARM", "WHERE, OR HOW TO INSTALL")


def run(call: Call) -> int:
    answer = call.link.json(asking("/v1/servers"))
    if call.json:
        call.show(answer)
        return 0
    rows = []
    for one in answer["servers"]:
        where = one["where"] if one["installed"] else f"missing: {one['install'] or '-'}"
        row = (one["name"], one["transport"], one["source"], str(one["warm"] or "-"), clean(where))
        rows.append(row)
    call.say(table(HEADS, rows, shrink=(4,)))
    return 0
