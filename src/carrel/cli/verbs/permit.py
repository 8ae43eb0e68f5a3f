"""carrel permit: what the agent of a space asks permission for, seen and answered."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, table
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.turns import compact
from carrel.client import turning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "See what an agent asks permission for, and permit or deny it.",
    SPACE,
    Argument("permission", required=False),
    details=(
        "Without PERMISSION it lists those that wait for an answer. Agents ask in turns with "
        "--permission ask; what nobody answers in time is denied."
    ),
    options=(
        Option("--all", help="All that wait now."),
        Option("--deny", help="Deny it, instead of permitting it."),
    ),
)
HEADS = ("ID", "TOOL", "WITH")


def run(call: Call) -> int:
    wanted = call.text("permission")
    _check(call, wanted)
    turn = turning.working(call.link, call.text("space"))
    waiting = turn["permissions"] if turn else []
    if not wanted and not call.flag("all"):
        return _list(call, turn, waiting)
    if not turn:
        from carrel.domain.errors import StateConflict

        raise StateConflict(f"No agent works in {call.text('space')}.")
    chosen = [one["id"] for one in waiting] if call.flag("all") else [wanted]
    for one in chosen:
        turn = turning.decide(call.link, turn["id"], one, allow=not call.flag("deny"))
    if call.json:
        call.show(turn)
    return 0


def _check(call: Call, wanted: str) -> None:
    """What is not understood permits nothing."""
    from carrel.domain.errors import MessageInvalid

    if wanted and call.flag("all"):
        raise MessageInvalid("One permission, or all of them?", hint="Leave out one of the two.")
    if call.flag("deny") and not wanted and not call.flag("all"):
        raise MessageInvalid("Which one is denied?", hint="Name it, or say --all.")


def _list(call: Call, turn: dict[str, Any] | None, waiting: list[dict[str, Any]]) -> int:
    if call.json:
        call.show({"turn": turn["id"] if turn else None, "permissions": waiting})
    elif waiting:
        rows = [(one["id"], one["name"], compact(one["input"])) for one in waiting]
        call.say(table(HEADS, [tuple(map(clean, row)) for row in rows], shrink=(2,)))
    else:
        call.note("Nothing waits for a permission.")
    return 0
