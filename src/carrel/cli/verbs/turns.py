"""carrel turns: what the agents of a space were given to do."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, table
from carrel.cli.showing import age_of
from carrel.cli.spec import SPACE, Verb
from carrel.client.requests import asking, space_path

VERB = Verb("List what the agents of a space were given to do, newest first.", SPACE)
HEADS = ("ID", "AGENT", "AGE", "STATE", "PROMPT")


def run(call: Call) -> int:
    answer = call.link.json(asking(space_path(call.text("space"), "turns")))
    if call.json:
        call.show(answer)
        return 0
    rows = []
    for turn in answer["turns"]:
        error = (turn["result"] or {}).get("error")
        state = error["code"] if error else turn["state"]
        prompt = clean(turn["prompt"].splitlines()[0] if turn["prompt"] else "")
        rows.append((turn["id"], turn["frontend"], age_of(turn["created_at"]), state, prompt))
    if rows:
        call.say(table(HEADS, rows, shrink=(4,)))
    else:
        call.note("No agent has worked in this space.")
    return 0
