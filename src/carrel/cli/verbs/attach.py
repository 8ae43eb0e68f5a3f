"""carrel attach: the agent of a space, in this terminal."""

from __future__ import annotations

from carrel.cli import giving, turns
from carrel.cli.call import Call
from carrel.cli.spec import SPACES, TEXT, Argument, Option, Verb
from carrel.cli.verbs.exec import follow, own_error, with_terminal
from carrel.client import turning
from carrel.client.exchange import Exchange
from carrel.client.requests import asking, space_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Attach to the agent of a space; it is started when none runs.",
    Argument("space", many=True, completes=SPACES),
    details=(
        "Ctrl-b d detaches, and the agent goes on; several people may be attached at once. "
        "Of several spaces each has a window here: Ctrl-a n is the next, Ctrl-a d leaves all."
    ),
    options=(
        Option("--agent", kind=TEXT, metavar="NAME", help="A frontend: see `carrel agents`."),
        Option("-m", "--message", kind=TEXT, metavar="TEXT", help="What it is told first."),
        Option("-r", "--read-only", help="See it only; nothing that is typed goes there."),
        Option("-d", "--detach", help="Start it, and do not attach."),
        *turns.CONTINUING,
        *turns.STARTING,
    ),
)


def run(call: Call) -> int:
    spaces = call.texts("space")
    if len(spaces) > 1:
        from carrel.cli.windows import attach_all

        return attach_all(call, spaces)
    try:
        return _attach(call, spaces[0])
    except Exception as error:
        raise own_error(error) from error


def _attach(call: Call, space: str) -> int:
    found = _running(call, space) or _start(call, space)
    if call.flag("detach"):
        call.show(found["turn"]) if call.json else call.say(found["turn"]["id"])
        return 0
    command = with_terminal({"argv": found["argv"], "cwd": found["cwd"], "hangup": True})
    return follow(call, Exchange.starting(space, command), command)


def _running(call: Call, space: str) -> dict[str, Any] | None:
    """The terminal of the agent that runs; None when there is none."""
    from carrel.domain.errors import StateConflict

    try:
        return _terminal(call, space)
    except StateConflict:
        return None


def _start(call: Call, space: str) -> dict[str, Any]:
    wanted = {**turns.content(call, call.text("message")), "terminal": True}
    if asked := turns.continuation(call, space):
        wanted["continuation"] = asked
    if attached := giving.give(call, space):
        wanted["attachments"] = attached
    turning.begin(call.link, space, wanted)
    return _terminal(call, space)


def _terminal(call: Call, space: str) -> dict[str, Any]:
    query = [("read_only", "true")] if call.flag("read_only") else []
    found: dict[str, Any] = call.link.json(asking(space_path(space, "terminal"), query))
    return found
