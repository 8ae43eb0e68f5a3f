"""Comments on the files of a space, collected for its agent."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import clean, clean_line
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.verbs.turns import AGENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@Verb(SPACE, Argument("place"), Argument("text"))
def comment(call: VerbCall) -> None:
    """Say something about a line of a file in a space, for its agent: FILE:LINE "…".

    Comments are kept until `carrel comments SPACE --send` gives all of them to the agent. A text
    of - is read from standard input.
    """
    path, _, number = call.text("place").rpartition(":")
    if not path or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise invalid(
            f"{call.text('place')!r} names no line.", hint="Write FILE:LINE, as in src/app.py:12"
        )
    text = call.text("text")
    if text == "-":
        import sys

        text = sys.stdin.read()
    content = {"path": path, "line": int(number), "text": text}
    call.answer(call.ask("comments.add", call.text("space"), content=content), _id)


def _id(made: dict[str, Any]) -> str:
    return str(made["id"])


@Verb(
    SPACE,
    Option("--send", "Give all that are open to the agent, as one turn."),
    Option("--queue", "With --send: let them wait until the agent that works now is done."),
    AGENT,
    Option("--remove ID...", "Remove a comment."),
    Option("--all", "Show those that were sent too."),
)
def comments(call: VerbCall) -> None:
    """List the comments on the files of a space, or give them to its agent.

    A comment follows its line when the file has changed since, or says that it could not.
    """
    space = call.text("space")
    if call.flag("send"):
        if call.texts("remove"):
            raise invalid("--send and --remove are two things.", hint="Do one after the other.")
        frontend = call.text("agent") or None
        content = {"queue": call.flag("queue"), "frontend": frontend}
        sent = call.ask("comments.send", space, content=content)
        call.answer(sent, lambda answer: str(answer["turn"]["id"]))
        if not call.json:
            count = sent["sent"]
            call.note(f"{count} comment{'' if count == 1 else 's'} sent: carrel logs -f {space}")
        return
    found: dict[str, Any] = {}
    for one in call.texts("remove"):
        found = call.ask("comments.remove", space, one)
    found = found or call.ask("comments.list", space)
    shown = [one for one in found["comments"] if call.flag("all") or one["state"] != "sent"]
    if call.json:
        call.show({**found, "comments": shown})
        return
    for one in shown:
        call.say(_shown(one))
    if not shown and not call.texts("remove"):
        call.note("There are no open comments.")


def _shown(one: dict[str, Any]) -> str:
    at = one["line"] or one["made_at_line"]
    note = f" ({clean(one['problem'])})" if one["problem"] else ""
    note = " (the line has changed)" if one["changed"] else note
    note = " (sent)" if one["state"] == "sent" else note
    head = f"{one['id']} {clean_line(one['path'])}:{at}{note}"
    if one["state"] == "sent":
        return f"{head}\n{_indented(one['text'])}"
    rows = [
        f"  {'>' if number == at else ' '} {number:>5} | {clean_line(line)}".rstrip()
        for number, line in enumerate(one["lines"], one["first"])
    ]
    return "\n".join([head, *rows, _indented(one["text"])])


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in clean(text).split("\n"))
