"""Keeping the state of a space, going back to it, and going on from it in others."""

from __future__ import annotations

from typing import Any

from carrel.cli.call import VerbCall
from carrel.cli.output import AnswerTable, clean
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.values import age_of, size_text

_WHY = {"turn": "after a turn", "asked": "", "agent": "by the agent", "rewind": "before a rewind"}
MOST_NAMED = 3


def _about(one: dict[str, Any]) -> str:
    return clean(one["message"]) or _WHY[one["kind"]]


def _names(one: dict[str, Any]) -> str:
    names = [clean(name) for name in one["named"][:MOST_NAMED]]
    more = one["changed"] - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more > 0 else "")


CHECKPOINTS = AnswerTable(
    "checkpoints",
    {
        "ID": "id",
        "TAKEN": lambda one: age_of(one["created_at"]),
        "ABOUT": _about,
        "SIZE": lambda one: size_text(one["bytes"]),
        "CHANGED": _names,
    },
    shrink=("CHANGED", "ABOUT"),
    empty="There is none yet: one is taken after each turn.",
)


@Verb(SPACE, Option("-m, --message TEXT", "Say what it is for.", to="message"))
def checkpoint(call: VerbCall) -> None:
    """Keep the state of a space: all its files, the agent's own state and the conversation.

    One is taken by itself after each turn.
    """
    done = call.ask("checkpoints.take", call.text("space"), content=call.content())
    if call.json:
        call.show(done)
        return
    call.say(done["id"])
    if not done["with_agent"]:
        call.note("Only the files: an agent is at work, or there is none.")
    if done["left_out"]:
        call.note(done["left_out"])


@Verb(SPACE)
def checkpoints(call: VerbCall) -> None:
    """List the checkpoints of a space, and what changed before each."""
    call.answer(call.ask("checkpoints.list", call.text("space")), CHECKPOINTS)


@Verb(SPACE, Argument("checkpoint", required=False))
def rewind(call: VerbCall) -> None:
    """Put the files and the conversation of a space back to a checkpoint.

    Without a CHECKPOINT to the newest one; `start` is what the space began with. What there is
    now is kept in a checkpoint of its own, so `carrel undo` takes it back.
    """
    to = call.text("checkpoint")
    content = {"checkpoint": to} if to else {}
    done = call.ask("checkpoints.rewind", call.text("space"), content=content)
    if call.json:
        call.show(done)
        return
    if done["left_out"]:
        call.note("Its system stays as it was: it is too large to be kept.")
    call.note(f"The space is as in {clean(done['to'])}. Take it back: carrel undo")


@Verb(
    SPACE,
    Option("--count N", "Make so many.", to="count"),
    Option("--checkpoint ID", "Begin with this checkpoint.", to="checkpoint"),
    Option("--name NAME", "Name the new space; of several, how the names begin.", to="name"),
)
def fork(call: VerbCall) -> None:
    """Make new spaces that begin with the state of this one: files and conversation."""
    made = call.ask("checkpoints.fork", call.text("space"), content=call.content())
    if call.json:
        call.show(made)
        return
    for one in made["spaces"]:
        call.say(one["name"])
    if not made["conversation"]:
        call.note("There is no conversation that their agent could go on with.")
