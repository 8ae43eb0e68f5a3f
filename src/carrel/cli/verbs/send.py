"""carrel send: something for the agent of a space to do."""

from __future__ import annotations

from carrel.cli import turns
from carrel.cli.call import Call
from carrel.cli.speaking import space_of
from carrel.cli.spec import SPACE, TEXT, Argument, Option, Verb

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
        Option("--queue", help="Say it to the agent that works now, in its terminal too."),
        *turns.CONTINUING,
        *turns.OPTIONS,
    ),
)


def run(call: Call) -> int:
    space = space_of(call, call.text("space"), "")
    if call.flag("queue"):
        return turns.queue(call, space, turns.prompt_of(call.text("prompt")))
    wanted = turns.content(call, turns.prompt_of(call.text("prompt")))
    if asked := turns.continuation(call, space):
        wanted["continuation"] = asked
    return turns.send(call, space, wanted)
