"""carrel instance ls: the MCP servers that run for somebody."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.instancing import runtime_of, where_of
from carrel.cli.layout import table
from carrel.cli.showing import UNCONFINED, age_of
from carrel.cli.spec import SPACES, TEXT, Option, Verb
from carrel.client.requests import asking

VERB = Verb(
    "List instances.",
    options=(
        Option("-a", "--all", help="Those too that have ended."),
        Option("--space", kind=TEXT, metavar="SPACE", completes=SPACES, help="In this space."),
    ),
)
HEADS = ("ID", "SERVER", "STATE", "AGE", "RUNTIME", "FOR", "URL")


def run(call: Call) -> int:
    query = [("space", call.text("space"))] if call.text("space") else []
    query += [("ended", "true")] if call.flag("all") else []
    answer = call.link.json(asking("/v1/instances", query))
    if call.json:
        call.show(answer)
        return 0
    rows = [
        (
            one["instance_id"],
            one["server"],
            one["state"],
            age_of(one["created_at"]),
            runtime_of(one),
            where_of(one),
            one["url"] or one["socket"] or "-",
        )
        for one in answer["instances"]
    ]
    if rows:
        call.say(table(HEADS, rows, shrink=(5, 6), marked=UNCONFINED))
    else:
        call.note("There are no instances.")
    return 0
