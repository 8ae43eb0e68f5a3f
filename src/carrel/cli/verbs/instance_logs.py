"""carrel instance logs: what a server wrote, on both of its streams."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import SIZE, Argument, Option, Verb
from carrel.client.requests import Request, instance_path

VERB = Verb(
    "Show the last that an instance wrote.",
    Argument("instance"),
    options=(Option("--limit", kind=SIZE, metavar="SIZE", help="At most so much of it (64K)."),),
)


def run(call: Call) -> int:
    limit = call.whole("limit")
    query = [] if limit is None else [("limit", limit)]
    path = instance_path(call.text("instance"), "logs")
    text = call.link.ask(Request("GET", path, query)).check().body.decode("utf-8", "replace")
    if call.json:
        call.show({"instance_id": call.text("instance"), "logs": text})
    elif text:
        call.say(text.removesuffix("\n"))
    return 0
