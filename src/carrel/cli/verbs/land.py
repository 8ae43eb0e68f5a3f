"""Bringing the work of a space into its project, and taking that back."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import AnswerTable, clean
from carrel.cli.spec import SOME_SPACES, Argument, Option, Verb
from carrel.cli.values import age_of
from carrel.domain.errors import CarrelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.cli.publishing import Publication

MOST_SHOWN = 20
WAIT_S = 7 * 86400.0
"""For checks, which have their own limit."""
SHORT_ID = 12

_BACK = {
    "rewind": "{} is as before the rewind.",
    "removal": "{} is there again, with its changes.",
}
_STATES = {(kind, "landed"): "done" for kind in ("take", *_BACK)}
LANDINGS = AnswerTable(
    "landings",
    {
        "ID": "id",
        "KIND": "kind",
        "SPACE": "name",
        "BRANCH": "branch",
        "FILES": lambda one: "-" if one["kind"] in _BACK else str(one["files"]),
        "STATE": lambda one: _STATES.get((one["kind"], one["state"]), one["state"]),
        "SINCE": lambda one: age_of(one["created_at"]),
        "PROJECT": "project",
    },
    shrink=("PROJECT", "BRANCH", "SPACE"),
    paths=("PROJECT",),
    empty="There is nothing to take back.",
)


QUEUE = AnswerTable(
    "entries",
    {
        "ID": "id",
        "SPACE": "name",
        "BRANCH": "branch",
        "STATE": "state",
        "SINCE": lambda one: age_of(one["ended_at"] or one["created_at"]),
        "REASON": lambda one: one["reason"] or "",
    },
    shrink=("REASON", "BRANCH", "SPACE"),
    empty="Nothing waits.",
)


@Verb(
    SOME_SPACES,
    Option("--into BRANCH", "Land on this branch; by default on carrel/SPACE.", to="branch"),
    Option("-m, --message TEXT", "Give the commit this message.", to="message"),
    Option("--author TEXT", "Name another author: Name <mail>.", to="author"),
    Option("--squash", "Land all as one commit, which is the default."),
    Option("--commits", "Land the agent's own commits one by one.", to="commits"),
    Option("--worktree", "Write the changed files into your checkout too.", to="worktree"),
    Option("--resolve", "Let the agent of the space merge conflicts.", to="resolve"),
    Option("--queue", "Land them one after the other, unattended: see `carrel queue`."),
    Option("--push REMOTE", "Push the branch there, with your own git."),
    Option("--pr", "Open a pull request, with your own gh or glab; pushes to origin."),
    Option("--check COMMAND", "Land only if this ends well on the result.", to="check"),
    Option("--check-timeout TIME", "How long the check may run; 10m by default.", to="check_s"),
)
def land(call: VerbCall) -> int:
    """Bring the work of a space into its project, as a commit on a branch.

    The work is merged with what the branch has by now. Your checkout is not touched, and
    what you had not committed when the space was made is not part of it.
    """
    if call.flag("squash") and call.flag("commits"):
        raise invalid("--squash and --commits cannot be used together.", "Give one of both.")
    spaces = call.texts("space")
    publishes = bool(call.flag("pr") or call.text("push"))
    if call.flag("queue"):
        if publishes:
            raise invalid(
                "What is in line lands when nobody is there to push it.",
                "Leave --push and --pr out, and push the branch when it has landed.",
            )
        made = call.ask("queue.add", content={**call.content(), "spaces": spaces})
        call.answer(made, QUEUE)
        return 0
    if len(spaces) > 1:
        raise invalid("Several spaces land one after the other.", "Put them in line: --queue")
    publication = _publication(call, spaces[0]) if publishes else None
    done = land_one(call, spaces[0])
    if call.json:
        call.show(done)
    else:
        tell_landed(call, done)
    return publication.publish(done) if publication is not None else 0


def _publication(call: VerbCall, space: str) -> Publication:
    from carrel.cli.publishing import Publication

    found = Publication(call, space)
    found.check()
    return found


def tell_landed(call: VerbCall, done: dict[str, Any]) -> None:
    for file in done["listed"][:MOST_SHOWN]:
        call.say(f"{file['kind']} {clean(file['path'])}")
    if (more := done["files"] - MOST_SHOWN) > 0:
        call.note(f"… and {more:,} more.")
    where = "in the project's files"
    if branch := clean(done["branch"]):
        where = f"on {branch} as {done['after'][:SHORT_ID]}"
    call.note(f"Landed {where}. Take it back: carrel undo")


@Verb(
    Option("--cancel ID", "Take this entry out of the line."),
)
def queue(call: VerbCall) -> None:
    """List the spaces that are in line to land, and what became of others.

    `carrel land A B --queue` puts them there. What was returned did not land, for a reason.
    """
    if entry := call.text("cancel"):
        done = call.ask("queue.cancel", entry)
        if call.json:
            call.show(done)
            return
        call.note(f"{clean(done['name'])} does not land on {clean(done['branch'])}.")
        return
    call.answer(call.ask("queue.list"), QUEUE)


def land_one(call: VerbCall, space: str) -> Any:
    """A check may take as long as it was given, each time that the branch moves meanwhile."""
    content = call.content()
    options = {"timeout_s": WAIT_S} if content.get("check") else {}
    try:
        return call.ask("landings.land", space, content=content, **options)
    except CarrelError as error:
        if error.code == "check_failed" and not call.json:
            for line in str(error.details.get("output", "")).splitlines():
                call.note(clean(line))
        raise


@Verb(
    Argument("landing", required=False),
    Option("--list", "List what can be taken back."),
)
def undo(call: VerbCall) -> None:
    """Take back what was done last, or what is named: a landing, a take, a rewind, a removal."""
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
    if done["kind"] in _BACK:
        call.note(_BACK[done["kind"]].format(clean(done["name"])))
        return
    what = "was moved back" if done["before"] else "was removed"
    what = f"The branch {clean(done['branch'])} {what}"
    if not done["branch"]:
        what = "The project's files are as before"
    call.note(f"{what}. {clean(done['name'])} has its work.")
