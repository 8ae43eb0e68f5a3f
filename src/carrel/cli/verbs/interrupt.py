"""carrel interrupt: the agent of a space stops what it does."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import SPACE, Option, Verb
from carrel.client.requests import asking, run_path, space_path, telling
from carrel.client.wire import segment

VERB = Verb(
    "Interrupt the agent of a space, as Ctrl-C does.",
    SPACE,
    details="A turn ends then; in a terminal the agent stops what it does, and waits.",
    options=(
        Option("--stop", help="End the agent, in a terminal too."),
        Option("--kill", help="End it at once, whatever it is doing."),
    ),
)


def run(call: Call) -> int:
    space = call.link.json(asking(space_path(call.text("space"))))
    if not space["working"]:
        from carrel.domain.errors import StateConflict

        raise StateConflict(f"No agent works in {space['name']}.", hint="`carrel turns` lists.")
    path = f"/v1/turns/{segment(space['working'])}"
    if call.flag("kill"):
        call.link.json(telling("POST", run_path(space["working"], "signal"), {"signal": "KILL"}))
        turn = call.link.json(asking(path))
    else:
        turn = call.link.json(
            telling("POST", f"{path}/{'stop' if call.flag('stop') else 'interrupt'}")
        )
    if call.json:
        call.show(turn)
    return 0
