"""carrel request versions: what was made of a series, number by number."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.request_showing import first_line
from carrel.cli.requesting import series_path
from carrel.cli.showing import age_of
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import asking

VERB = Verb("List the versions of a series, newest first.", Argument("series"))
HEADS = ("VERSION", "ID", "AGE", "FILES", "COMPLETE", "THERE", "INSTRUCTIONS")


def run(call: Call) -> int:
    answer = call.link.json(asking(series_path(call.text("series"), "versions")))
    if call.json:
        call.show(answer)
        return 0
    rows = [
        (
            str(one["version"]),
            one["request_id"],
            age_of(one["created_at"]),
            str(one["total_files"]),
            "yes" if one["complete"] else "no",
            {"there": "yes", "gone": "no"}.get(one["workspace"], one["workspace"]),
            first_line(one["instructions"]),
        )
        for one in answer["versions"]
    ]
    call.say(table(HEADS, rows, shrink=(6, 1)))
    return 0
