"""carrel send: something for the agent of a space to do."""

from __future__ import annotations

from carrel.cli import turns
from carrel.cli.call import Call
from carrel.cli.speaking import space_of
from carrel.cli.spec import SPACE, TEXT, Argument, Option, Verb
from carrel.client import turning

VERB = Verb(
    "Give the agent of a space something to do.",
    SPACE,
    Argument("prompt"),
    details=(
        "A prompt of - is read from standard input. Without --wait it prints the id of the "
        "turn and returns while the agent works. With --wait the exit code is 0 only when the "
        "agent succeeded."
    ),
    options=(
        Option("--agent", kind=TEXT, metavar="NAME", help="A frontend: see `carrel agents`."),
        Option("--continue", help="Go on with the last conversation of this space."),
        Option("--resume", kind=TEXT, metavar="KEY", help="Go on with this conversation."),
        *turns.OPTIONS,
    ),
)


def run(call: Call) -> int:
    space = space_of(call, call.text("space"), "")
    wanted = turns.content(call, call.text("prompt"))
    if call.flag("continue") or call.text("resume"):
        wanted["continuation"] = _continuation(call, space)
    return turns.send(call, space, wanted)


def _continuation(call: Call, space: str) -> dict[str, str]:
    from carrel.domain.errors import ContinuationNotFound

    found = turning.last_continuation(call.link, space)
    if found is None:
        raise ContinuationNotFound(
            "There is no conversation in this space yet.", hint="Leave out --continue."
        )
    key = call.text("resume")
    return {**found, "key": key} if key else found
