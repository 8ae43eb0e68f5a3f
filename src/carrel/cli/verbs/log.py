"""carrel log: a script in a space says how far it is."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.speaking import say_inside
from carrel.cli.spec import CHOICE, NUMBER, Argument, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CATEGORIES = ("info", "warn", "error", "milestone", "question")
VERB = Verb(
    "Inside a space: note how far it is, for whoever follows it.",
    Argument("message"),
    options=(
        Option("--category", kind=CHOICE, choices=CATEGORIES, help="What it is; info if not said."),
        Option("--percent", kind=NUMBER, metavar="N", help="How much is done, 0 to 100."),
    ),
)


def run(call: Call) -> int:
    payload: dict[str, Any] = {"message": call.text("message")}
    if call.text("category"):
        payload["category"] = call.text("category")
    if call.number("percent") is not None:
        payload["percent"] = call.number("percent")
    return say_inside(call, "buffer_taskspace_progress", payload)
