"""carrel undelete: a removed space's changes, in a new space."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.showing import age_of, project_of
from carrel.cli.spec import Argument, Verb
from carrel.cli.values import size_text
from carrel.client.requests import LONG_S, asking, telling
from carrel.client.wire import segment

VERB = Verb(
    "Bring back what was changed in a removed space; without one, list what was kept.",
    Argument("space", required=False),
)
HEADS = ("NAME", "ID", "CHANGES", "SIZE", "REMOVED", "PROJECT")


def run(call: Call) -> int:
    word = call.text("space")
    if not word:
        return _list(call)
    path = f"/v1/trash/{segment(word)}/restore"
    space = call.link.json(telling("POST", path, timeout_s=LONG_S))
    if call.json:
        call.show(space)
    else:
        call.say(space["name"])
    return 0


def _list(call: Call) -> int:
    answer = call.link.json(asking("/v1/trash"))
    if call.json:
        call.show(answer)
        return 0
    rows = [
        (
            kept["space"]["name"],
            kept["space"]["id"],
            str(kept["changes"]),
            size_text(kept["bytes_kept"]),
            age_of(kept["trashed_at"]),
            project_of(kept["space"]),
        )
        for kept in answer["trash"]
    ]
    if rows:
        call.say(table(HEADS, rows, shrink=(5, 0)))
    else:
        call.note("Nothing was kept.")
    return 0
