"""carrel ls: the spaces, newest first."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.showing import UNCONFINED, age_of, project_of, runtime_of
from carrel.cli.spec import CHOICES, PAIRS, Option, Verb
from carrel.client.requests import asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATES = (
    "creating",
    "ready",
    "running",
    "stopping",
    "stopped",
    "failed",
    "removing",
    "removed",
)
PAGE = 1000
VERB = Verb(
    "List spaces, newest first.",
    options=(
        Option("-a", "--all", help="Removed ones too."),
        Option("--state", kind=CHOICES, choices=STATES, help="Only those in this state."),
        Option("--label", kind=PAIRS, metavar="K=V", help="Only those with this label."),
        Option("-q", "--quiet", help="Print ids only."),
    ),
)
HEADS = ("NAME", "ID", "STATE", "RUNTIME", "NETWORK", "RUNS", "AGE", "AGENT", "PROJECT")
PROJECT, NAME = 8, 0


def run(call: Call) -> int:
    spaces = fetch(call)
    if call.json:
        call.show({"spaces": spaces, "total": len(spaces)})
    elif call.flag("quiet"):
        for space in spaces:
            call.say(space["id"])
    elif spaces:
        rows = [_row(space) for space in spaces]
        call.say(table(HEADS, rows, shrink=(PROJECT, NAME), marked=UNCONFINED))
    else:
        call.note("There are no spaces. Make one: carrel new")
    return 0


def fetch(call: Call) -> list[dict[str, Any]]:
    """All pages."""
    states = list(STATES) if call.flag("all") else call.texts("state")
    query: list[tuple[str, object]] = [("limit", PAGE)]
    query += [("state", state) for state in states]
    query += [("label", f"{key}={value}") for key, value in call.pairs("label").items()]
    spaces: list[dict[str, Any]] = []
    after = ""
    while True:
        page = call.link.json(
            asking("/v1/spaces", [*query, *([("after", after)] if after else [])])
        )
        spaces += page["spaces"]
        after = page.get("next") or ""
        if not after:
            return spaces


def _row(space: dict[str, Any]) -> tuple[str, ...]:
    return (
        space["name"],
        space["id"],
        space["state"],
        runtime_of(space),
        space["network"],
        str(space.get("live_runs") or "-"),
        age_of(space["created_at"]),
        space.get("activity") or "-",
        project_of(space),
    )
