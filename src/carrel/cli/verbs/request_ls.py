"""carrel request ls: what was asked for, and what became of it."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.request_showing import first_line, kept_of, state_of
from carrel.cli.showing import age_of
from carrel.cli.spec import TEXT, WHOLE, Option, Verb
from carrel.client.requests import asking

PAGE = 50
VERB = Verb(
    "List requests, newest first.",
    options=(
        Option("--live", help="Only those that have not ended."),
        Option("--owner", kind=TEXT, metavar="NAME", help="Only those for this one."),
        Option("--series", kind=TEXT, metavar="NAME", help="Only versions of this."),
        Option("--limit", kind=WHOLE, metavar="N", help=f"At most so many ({PAGE})."),
        Option("-q", "--quiet", help="Ids only."),
    ),
)
HEADS = ("ID", "STATE", "AGE", "AGENT", "KEPT", "FILES", "INSTRUCTIONS")


def run(call: Call) -> int:
    query: list[tuple[str, object]] = [("limit", call.whole("limit") or PAGE)]
    query += [(name, call.text(name)) for name in ("owner", "series") if call.text(name)]
    query += [("live", "true")] if call.flag("live") else []
    answer = call.link.json(asking("/v1/requests", query))
    if call.json:
        call.show(answer)
        return 0
    if call.flag("quiet"):
        for one in answer["requests"]:
            call.say(one["request_id"])
        return 0
    rows = [
        (
            one["request_id"],
            state_of(one),
            age_of(one["created_at"]),
            one["frontend"] or "-",
            kept_of(one),
            str(one["total_files"]) if one["complete"] is not None else "-",
            first_line(one["instructions"]),
        )
        for one in answer["requests"]
    ]
    if rows:
        call.say(table(HEADS, rows, shrink=(6, 4)))
    else:
        call.note("There are no requests.")
    if answer["next"]:
        call.note(f"There are more: --limit {2 * len(rows)}")
    return 0
