"""carrel gc: what is over its time goes, and what belongs to nobody."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.spec import Option, Verb
from carrel.cli.values import size_text
from carrel.client.requests import LONG_S, telling

VERB = Verb(
    "Clean up: spaces over their time, unused bases, old trash, leftovers.",
    options=(Option("-n", "--dry-run", help="Only say what would be done."),),
)
HEADS = ("WHAT", "TARGET", "FREES", "WHY")


def run(call: Call) -> int:
    content = {"dry_run": call.flag("dry_run")}
    report = call.link.json(telling("POST", "/v1/gc", content, timeout_s=LONG_S))
    if call.json:
        call.show(report)
        return 0
    rows = [
        (
            action["verb"] if action["done"] or report["dry_run"] else f"not: {action['verb']}",
            action["target"],
            size_text(action["bytes_freed"]) if action["bytes_freed"] else "-",
            action["why"],
        )
        for action in report["actions"]
    ]
    if rows:
        call.say(table(HEADS, rows, shrink=(3, 1)))
    else:
        call.note("There is nothing to clean up.")
    return 0
