"""Agents: which there are, the keys that they are given, and what they ask people."""

from __future__ import annotations

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import AnswerTable, clean
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import age_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOGGED_IN = {True: "yes", False: "no", None: "-"}


def _version(one: dict[str, Any]) -> str:
    return str(one["version"] or ("-" if one["installed"] else "missing"))


def _where(one: dict[str, Any]) -> str:
    where = one["path"] or ("built in" if one["installed"] else one["install"])
    return str(one["problem"] or where)


AGENTS = AnswerTable(
    "frontends",
    {
        "AGENT": "name",
        "PROVIDER": lambda one: one["provider"],
        "VERSION": _version,
        "LOGGED IN": lambda one: LOGGED_IN[one["logged_in"]],
        "WHERE, OR HOW TO INSTALL": _where,
    },
    shrink=("WHERE, OR HOW TO INSTALL",),
)


@Verb(Argument("action", required=False), Argument("name", required=False))
def agents(call: VerbCall) -> None:
    """List the agents that Carrel can run, or install one of them.

    `carrel agents install NAME` puts a pinned version into Carrel's own folder.
    """
    action, name = call.text("action"), call.text("name")
    if action == "install" and name:
        installed = call.ask("agents.install", name)
        call.answer(installed, lambda one: f"{one['name']} {one['version']}")
        return
    if action:
        raise invalid(
            f"`carrel agents` has no action {action[:40]!r}.",
            hint="Use: carrel agents install NAME",
        )
    answer = call.ask("agents.list")
    call.answer(answer, AGENTS)
    if not call.json:
        for name, without in _without_key(answer["frontends"]).items():
            call.note(clean(f"No key for {', '.join(without)}: carrel auth set {name}"))


def _without_key(frontends: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Installed agents that would not get far, by the key that would help."""
    found: dict[str, list[str]] = {}
    for one in frontends:
        if one["installed"] and one["logged_in"] is False:
            for name in one["credentials"][:1]:
                found.setdefault(name, []).append(one["name"])
    return found


# Keys


@Verb(
    Argument("name"),
    Option("--endpoint URL...", "Allow this address too; replaces those named before."),
)
def auth_set(call: VerbCall) -> None:
    """Store a key for agents, such as anthropic or openai; it is asked for, or read from stdin.

    A key is given only to the agents that name it, and is never shown again. It is sent
    to its provider, and with a variable such as ANTHROPIC_BASE_URL only to endpoints that are
    named here. With --endpoint and nothing on stdin the key stays as it is.
    """
    name, endpoints = call.text("name"), call.texts("endpoint")
    value = _read_key(name, optional=bool(endpoints))
    said: dict[str, object] = {"endpoints": endpoints} if endpoints else {}
    if value or not endpoints:
        said["value"] = value
    call.answer(call.ask("credentials.set", name, content=said))


def _read_key(name: str, *, optional: bool) -> str:
    """Never from the command line: every user of the machine sees that."""
    import sys

    if not sys.stdin.isatty():
        return sys.stdin.read().strip()
    import getpass

    return getpass.getpass(f"{name}{' (empty: as it is)' if optional else ''}: ").strip()


@Verb()
def auth_ls(call: VerbCall) -> None:
    """List the names of the keys that agents are given, and the endpoints of each."""
    answer = call.ask("credentials.list")
    if call.json:
        call.show(answer)
        return
    for name in answer["credentials"]:
        call.say("  ".join((name, *answer["endpoints"][name])))
    if not answer["credentials"]:
        call.note("There are none: carrel auth set NAME")


# What agents ask


def _item_text(item: dict[str, Any]) -> str:
    choices = f" [{' / '.join(item['choices'])}]" if item["choices"] else ""
    return str(item["text"] + choices)


INBOX = AnswerTable(
    "items",
    {
        "ID": "id",
        "SPACE": "space",
        "AGE": lambda item: age_of(item["at"]),
        "WHAT": lambda item: "asks" if item["kind"] == "question" else item["priority"],
        "TEXT": _item_text,
    },
    shrink=("TEXT",),
    empty="Nothing waits for you.",
)


@Verb(Option("--seen", "Mark messages as read; questions stay."))
def inbox(call: VerbCall) -> None:
    """List what waits for you: questions of agents, and their messages."""
    if call.flag("seen"):
        call.answer(call.ask("inbox.see"))
    else:
        call.answer(call.ask("inbox.list"), INBOX)


@Verb(
    Argument("question"),
    Argument("answer"),
    Option("--space SPACE", "Name the space that asked, if two did."),
)
def answer(call: VerbCall) -> None:
    """Answer a question that `carrel inbox` shows."""
    body = {"answer": call.text("answer")}
    if call.text("space"):
        body["space"] = call.text("space")
    call.answer(call.ask("inbox.answer", call.text("question"), content=body))
