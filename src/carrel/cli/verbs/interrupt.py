"""carrel interrupt: the agent of a space stops what it does."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import SPACE, Verb
from carrel.client.requests import asking, space_path, telling
from carrel.client.wire import segment

VERB = Verb("Interrupt the agent of a space, as Ctrl-C does.", SPACE)


def run(call: Call) -> int:
    space = call.link.json(asking(space_path(call.text("space"))))
    if not space["working"]:
        from carrel.domain.errors import StateConflict

        raise StateConflict(f"No agent works in {space['name']}.", hint="`carrel turns` lists.")
    turn = call.link.json(telling("POST", f"/v1/turns/{segment(space['working'])}/interrupt"))
    if call.json:
        call.show(turn)
    return 0
