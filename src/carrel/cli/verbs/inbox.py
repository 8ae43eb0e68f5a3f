"""carrel inbox: what agents ask, and want to tell."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, table
from carrel.cli.showing import age_of
from carrel.cli.spec import Option, Verb
from carrel.client.requests import asking, telling

VERB = Verb(
    "What waits for you: questions of agents, and what they want to tell.",
    options=(Option("--seen", help="What they told has been read; questions stay."),),
)
HEADS = ("ID", "SPACE", "AGE", "WHAT", "TEXT")


def run(call: Call) -> int:
    if call.flag("seen"):
        seen = call.link.json(telling("POST", "/v1/inbox/seen"))
        if call.json:
            call.show(seen)
        return 0
    answer = call.link.json(asking("/v1/inbox"))
    if call.json:
        call.show(answer)
        return 0
    rows = []
    for item in answer["items"]:
        choices = f" [{' / '.join(item['choices'])}]" if item["choices"] else ""
        what = "asks" if item["kind"] == "question" else item["priority"]
        text = clean(item["text"] + choices)
        rows.append((clean(item["id"]), item["space"], age_of(item["at"]), what, text))
    if rows:
        call.say(table(HEADS, rows, shrink=(4,)))
    else:
        call.note("Nothing waits for you.")
    return 0
