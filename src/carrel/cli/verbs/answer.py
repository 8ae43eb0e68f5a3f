"""carrel answer: a question of an agent, answered."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import TEXT, Argument, Option, Verb
from carrel.client.requests import telling
from carrel.client.wire import segment

VERB = Verb(
    "Answer a question that `carrel inbox` shows.",
    Argument("question"),
    Argument("answer"),
    options=(Option("--space", kind=TEXT, metavar="SPACE", help="Which space asked, if two did."),),
)


def run(call: Call) -> int:
    body = {"answer": call.text("answer")}
    if call.text("space"):
        body["space"] = call.text("space")
    path = f"/v1/inbox/{segment(call.text('question'))}/answer"
    told = call.link.json(telling("POST", path, body))
    if call.json:
        call.show(told)
    return 0
