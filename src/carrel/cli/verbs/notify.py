"""carrel notify: a script in a space wants somebody to look."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.speaking import say_inside
from carrel.cli.spec import CHOICE, MANY, Argument, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PRIORITIES = ("low", "medium", "high", "urgent")
VERB = Verb(
    "Inside a space: tell the user something.",
    Argument("message"),
    options=(
        Option("--priority", kind=CHOICE, choices=PRIORITIES, help="Medium if not said."),
        Option("--action", kind=MANY, metavar="TEXT", help="What the user could do."),
    ),
)


def run(call: Call) -> int:
    payload: dict[str, Any] = {"message": call.text("message")}
    if call.text("priority"):
        payload["priority"] = call.text("priority")
    if call.texts("action"):
        payload["suggested_actions"] = call.texts("action")
    return say_inside(call, "buffer_taskspace_signal_user", payload)
