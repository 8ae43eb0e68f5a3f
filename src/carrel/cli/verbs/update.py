"""carrel update: name, labels and retention of a space."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import MANY, PAIRS, SECONDS, SPACE, TEXT, Option, Verb
from carrel.client.requests import asking, space_path, telling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Change a space's name, labels, or when it goes.",
    SPACE,
    options=(
        Option("--name", kind=TEXT, help="A new name."),
        Option("-l", "--label", kind=PAIRS, metavar="K=V", help="Add or replace a label."),
        Option("--no-label", kind=MANY, metavar="K", help="Take away a label."),
        Option("--ttl", kind=SECONDS, metavar="TIME", help="Removed so long after it was made."),
        Option("--idle", kind=SECONDS, metavar="TIME", help="Stopped after so long unused."),
        Option("--keep", kind=SECONDS, metavar="TIME", help="Removed so long after its stop."),
    ),
)


def run(call: Call) -> int:
    path = space_path(call.text("space"))
    content: dict[str, Any] = {"name": call.text("name")} if call.text("name") else {}
    added, gone = call.pairs("label"), call.texts("no_label")
    times = {f"{name}_s": call.number(name) for name in ("ttl", "idle", "keep")}
    given = {name: value for name, value in times.items() if value is not None}
    if added or gone or given:
        # The API replaces them as a whole.
        now = call.link.json(asking(path))
        if added or gone:
            kept = {key: value for key, value in now["labels"].items() if key not in gone}
            content["labels"] = {**kept, **added}
        if given:
            content["retention"] = {**now["retention"], **given}
    space = call.link.json(telling("PATCH", path, content))
    if call.json:
        call.show(space)
    else:
        call.say(space["name"])
    return 0
