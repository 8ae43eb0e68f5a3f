"""carrel changes: what a space has changed."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.cli.spec import SPACE, Verb
from carrel.client.requests import LONG_S, asking, space_path

VERB = Verb("List what differs from the project that a space started from.", SPACE)
LETTERS = {
    "added": "A",
    "modified": "M",
    "deleted": "D",
    "renamed": "R",
    "mode": "P",
    "type": "T",
}
MOST = 100_000


def run(call: Call) -> int:
    path = space_path(call.text("space"), "changes")
    answer = call.link.json(asking(path, [("limit", MOST)], timeout_s=LONG_S))
    if call.json:
        call.show(answer)
        return 0
    for change in answer["changes"]:
        old = f"{clean(change['old_path'])} -> " if change["old_path"] else ""
        call.say(f"{LETTERS.get(change['kind'], '?')} {old}{clean(change['path'])}")
    left = answer["total"] - len(answer["changes"])
    if left:
        call.note(f"… and {left:,} more.")
    return 0
