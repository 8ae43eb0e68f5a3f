"""Bringing files of one space's work into another space."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import clean
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.verbs.land import MOST_SHOWN


@Verb(
    SPACE,
    Argument("path", many=True, completes="files"),
    Option("--into OTHER", "The space that gets them."),
    Option("--force", "Replace what that space has in its own way."),
)
def take(call: VerbCall) -> None:
    """Bring files of a space's work into another space.

    PATH is a file or folder that the space has changed; what it has deleted is deleted in the other
    one too. If the other space has changed one of the files in its own way, nothing is taken.
    """
    if not call.text("into"):
        raise invalid("No space is named to take them into.", hint="Name it: --into OTHER")
    content = {
        "paths": call.texts("path"),
        "into": call.text("into"),
        "force": call.flag("force"),
    }
    done = call.ask("landings.take", call.text("space"), content=content)
    if call.json:
        call.show(done)
        return
    for file in done["listed"][:MOST_SHOWN]:
        call.say(f"{file['kind']} {clean(file['path'])}")
    if (more := done["files"] - MOST_SHOWN) > 0:
        call.note(f"… and {more:,} more.")
    call.note(f"Taken into {clean(done['name'])}. Take it back: carrel undo {done['id']}")
