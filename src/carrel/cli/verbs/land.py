"""Bringing the work of a space into its project, and taking that back."""

from __future__ import annotations

from carrel.cli.call import VerbCall
from carrel.cli.output import AnswerTable, clean
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.values import age_of

MOST_SHOWN = 20
SHORT_ID = 12

LANDINGS = AnswerTable(
    "landings",
    {
        "ID": "id",
        "KIND": "kind",
        "SPACE": "name",
        "BRANCH": "branch",
        "FILES": lambda one: str(one["files"]),
        "STATE": "state",
        "LANDED": lambda one: age_of(one["created_at"]),
        "PROJECT": "project",
    },
    shrink=("PROJECT", "BRANCH", "SPACE"),
    paths=("PROJECT",),
    empty="Nothing has landed, and nothing was taken.",
)


@Verb(
    SPACE,
    Option("--into BRANCH", "Land on this branch; by default on carrel/SPACE.", to="branch"),
    Option("-m, --message TEXT", "Give the commit this message.", to="message"),
    Option("--author TEXT", "Name another author: Name <mail>.", to="author"),
)
def land(call: VerbCall) -> None:
    """Bring the work of a space into its project, as a commit on a branch.

    The work is merged with what the branch has by now. Your checkout is not touched, and
    what you had not committed when the space was made is not part of it.
    """
    done = call.ask("landings.land", call.text("space"), content=call.content())
    if call.json:
        call.show(done)
        return
    for file in done["listed"][:MOST_SHOWN]:
        call.say(f"{file['kind']} {clean(file['path'])}")
    if (more := done["files"] - MOST_SHOWN) > 0:
        call.note(f"… and {more:,} more.")
    branch = clean(done["branch"])
    call.note(f"Landed on {branch} as {done['after'][:SHORT_ID]}. Take it back: carrel undo")


@Verb(
    Argument("landing", required=False),
    Option("--list", "List what has landed, and what was taken from space to space."),
)
def undo(call: VerbCall) -> None:
    """Take back a landing, or a take: the last one, or the one that is named."""
    if call.flag("list"):
        call.answer(call.ask("landings.list"), LANDINGS)
        return
    landing = call.text("landing")
    done = call.ask("landings.undo", content={"landing": landing} if landing else {})
    if call.json:
        call.show(done)
        return
    if done["kind"] == "take":
        call.note(f"{clean(done['name'])} has its own {done['files']} files again.")
        return
    what = "was moved back" if done["before"] else "was removed"
    call.note(f"The branch {clean(done['branch'])} {what}. {clean(done['name'])} has its work.")
