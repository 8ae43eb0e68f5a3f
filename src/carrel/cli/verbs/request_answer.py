"""carrel request answer: what the agent of a request asks, answered."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.requesting import REQUEST, request_path
from carrel.cli.spec import TEXT, Argument, Option, Verb
from carrel.client.requests import telling

VERB = Verb(
    "Answer what the agent of a request asks.",
    REQUEST,
    Argument("answer", required=False),
    options=(
        Option("--id", kind=TEXT, metavar="QUESTION", help="Which, when it asks several things."),
        Option("--allow", help="It has the permission that it asks for."),
        Option("--deny", help="It has not."),
    ),
)


def run(call: Call) -> int:
    ways = [call.flag("allow"), call.flag("deny"), bool(call.text("answer"))]
    if sum(ways) != 1:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid("What is the answer?", hint="Give a text, --allow or --deny.")
    body: dict[str, object] = {"id": call.text("id")} if call.text("id") else {}
    if call.text("answer"):
        body["text"] = call.text("answer")
    else:
        body["allow"] = call.flag("allow")
    told = call.link.json(telling("POST", request_path(call.text("request"), "answer"), body))
    if call.json:
        call.show(told)
    return 0
