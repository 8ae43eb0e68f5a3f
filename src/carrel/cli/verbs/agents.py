"""Agents: which there are, the keys that they are given, and what they ask people."""

from __future__ import annotations

import os

from carrel.cli.call import FAILED, VerbCall, invalid
from carrel.cli.output import WARM, AnswerTable, clean, is_terminal, painted, tell, wrapped
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import age_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from carrel.agents.imports import ImportDraft

LOGGED_IN = {True: "yes", False: "no", None: "-"}
IMPORTED = ("claude-code", "codex-cli")


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
        "IMPORTED": lambda one: f"{age_of(one['imported'])} ago" if one["imported"] else "-",
        "WHERE, OR HOW TO INSTALL": _where,
    },
    shrink=("WHERE, OR HOW TO INSTALL",),
)


@Verb(
    Argument("action", required=False),
    Argument("name", required=False, many=True),
    Option("--yes", "With import: copy without asking."),
    Option("--dry-run", "With import: only show what would be copied."),
    Option("--forget", "With import: remove what was imported."),
    Option("--with-keys", "With import: copy keys of MCP servers too."),
    Option("--endpoint URL...", "With import: let the login go to this address too."),
)
def agents(call: VerbCall) -> int | None:
    """List the agents that Carrel can run; install one, or import your own set-up of it.

    `carrel agents install NAME` puts a pinned version into Carrel's own folder.

    `carrel agents import [claude-code|codex-cli ...]` copies your login, instructions, skills,
    commands, MCP servers and model from your home, for the agents of your spaces. It shows what it
    would copy, and asks. Call it again to copy anew.
    """
    action, names = call.text("action"), call.texts("name")
    if action == "install" and len(names) == 1:
        installed = call.ask("agents.install", names[0])
        call.answer(installed, lambda one: f"{one['name']} {one['version']}")
        return None
    if action == "import":
        return _import(call, names or IMPORTED)
    if action:
        raise invalid(
            f"`carrel agents` has no action {action[:40]!r}.",
            hint="Use: carrel agents install NAME, or: carrel agents import",
        )
    answer = call.ask("agents.list")
    if not all(one["installed"] for one in answer["frontends"]):
        answer["frontends"] = call.agents() or answer["frontends"]
    call.answer(answer, AGENTS)
    if not call.json:
        for name, without in _without_key(answer["frontends"]).items():
            call.note(clean(f"No key for {', '.join(without)}: carrel auth set {name}"))
    return None


def _without_key(frontends: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Installed agents that would not get far, by the key that would help."""
    found: dict[str, list[str]] = {}
    for one in frontends:
        if one["installed"] and one["logged_in"] is False:
            for name in one["credentials"][:1]:
                found.setdefault(name, []).append(one["name"])
    return found


# Imports


def _import(call: VerbCall, names: Sequence[str]) -> int:
    for name in names:
        if name not in IMPORTED:
            raise invalid(
                f"Nothing can be imported for {name[:40]!r}.",
                hint=f"Use: carrel agents import {' '.join(IMPORTED)}",
            )
    if call.flag("forget"):
        return _forget(call, names, all_of_them=not call.texts("name"))
    from carrel.agents.imports import draft

    found = (draft(name, os.environ, with_keys=call.flag("with_keys")) for name in names)
    drafts = [one for one in found if one is not None and one.copied]
    if not drafts:
        raise invalid(
            f"There is no set-up of {' or '.join(names)} in your home.",
            hint="Use it once outside of Carrel, or store a key: carrel auth set NAME",
        )
    done = 0
    for one in drafts:
        _show_draft(call, one)
        if call.flag("dry_run") or not _agreed(call):
            continue
        call.ask("agents.take", one.frontend, content=wire_import(one, call.texts("endpoint")))
        call.say(f"{one.frontend}: imported")
        done += 1
    return 0 if done or call.flag("dry_run") else FAILED


def _forget(call: VerbCall, names: Sequence[str], *, all_of_them: bool) -> int:
    if all_of_them:
        listed = call.ask("agents.list")["frontends"]
        names = [one["name"] for one in listed if one["imported"]]
    for name in names:
        call.ask("agents.forget", name)
        call.say(f"{name}: forgotten")
    return 0


def _show_draft(call: VerbCall, one: ImportDraft) -> None:
    call.note(clean(f"{one.frontend}, from {one.folder}, for the agents of your spaces:"))
    for text in one.copied:
        call.note(clean(f"  + {text}"))
    call.note("Not copied:")
    for text in one.left:
        call.note(clean(f"  - {text}"))


def _agreed(call: VerbCall) -> bool:
    if call.flag("yes"):
        return True
    if not (is_terminal(0) and is_terminal(2)):
        raise invalid("Nobody agreed to this.", hint="Look at it, then add --yes.")
    return confirm("Copy this?")


def confirm(question: str) -> bool:
    """Asks in a terminal."""
    tell(f"{question} [y/N] ")
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        return False


def wire_import(one: ImportDraft, endpoints: Sequence[str] = ()) -> dict[str, Any]:
    """As the API takes it. Without endpoints those of the import before stay."""
    import base64
    from dataclasses import asdict

    content = asdict(one.imported)
    files = {path: base64.b64encode(data).decode() for path, data in one.imported.files.items()}
    del content["at"]
    return {**content, "files": files, "endpoints": list(endpoints) or None}


def renew_login(call: VerbCall, name: str) -> bool:
    """Copies the login anew, and nothing else, where the one in the home is still accepted: to
    that the owner agreed."""
    import time

    from carrel.agents.imports import draft

    found = draft(name, os.environ) if name in IMPORTED else None
    login = found.imported.login if found else None
    if found is None or login is None or (login.expires_at or time.time() + 1) <= time.time():
        return False
    sent = wire_import(found)["login"]
    call.ask("agents.take", name, content={"login": sent, "login_only": True})
    call.note(f"The login of {name} was copied anew from your home.")
    return True


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
    if not (value or endpoints):
        raise invalid(
            "The key is empty.", hint=f"Give it on standard input: carrel auth set {name} < FILE"
        )
    if value:
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


MOST_TEXT = 2000
"""Characters of one that are shown; --json has all of it."""


def _items(answer: dict[str, Any]) -> str:
    """A block for each: who asks, what, and the command that answers it."""
    items = answer["items"]
    ids = [item["id"] for item in items]
    blocks = [_item(item, twice=ids.count(item["id"]) > 1) for item in items]
    return "\n\n".join(blocks)


def _item(item: dict[str, Any], *, twice: bool) -> str:
    word = {"question": "asks", "permission": "asks for permission"}.get(item["kind"], "says")
    if item.get("review"):
        word = "asks for a review"
    priority = f" ({item['priority']})" if item["kind"] == "signal" else ""
    who = clean(item["name"] or item["space"])
    if item["own"] and item["kind"] == "question":
        # In words of its own a space could ask for anything.
        who += ": Carrel"
    head = f"{who} {word}{priority}, {age_of(item['at'])} ago:"
    text = item["text"]
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}… (--json shows the rest)"
    lines = [painted(head, WARM), wrapped(text, "  ")]
    if item.get("review"):
        from shlex import quote

        space = quote(clean(item["name"] or item["space"]))
        lines.append(f"  carrel diff {space}; carrel land {space}; or:")
    if item["kind"] != "signal":
        lines.append(f"  {_answer_line(item, twice=twice)}")
    return "\n".join(lines)


def _answer_line(item: dict[str, Any], *, twice: bool) -> str:
    """What an agent chose is quoted as one word: whoever copies the line runs nothing else."""
    from shlex import quote

    where = f" --space {quote(clean(item['name']))}" if twice else ""
    choices = quote(clean("|".join(item["choices"]))) if item["choices"] else "TEXT"
    return f"carrel answer{where} {quote(clean(item['id']))} {choices}"


@Verb(Option("--seen", "Mark messages as read; questions stay."))
def inbox(call: VerbCall) -> None:
    """List what waits for you: questions and permissions of agents, and their messages.

    Each comes with the command that answers it. What was answered is not listed any more.
    """
    if call.flag("seen"):
        call.answer(call.ask("inbox.see"))
        return
    answer = call.ask("inbox.list")
    call.answer(answer, _items)
    if call.json:
        return
    if not answer["items"]:
        call.note("Nothing waits for you.")
    elif any(item["kind"] == "signal" for item in answer["items"]):
        call.note("carrel inbox --seen marks messages as read.")


@Verb(
    Argument("item"),
    Argument("answer"),
    Option("--space SPACE", "Name the space that asked, if two did."),
)
def answer(call: VerbCall) -> None:
    """Answer what `carrel inbox` shows: a question with a text, a permission with yes or no."""
    body = {"answer": call.text("answer")}
    if call.text("space"):
        body["space"] = call.text("space")
    call.answer(call.ask("inbox.answer", call.text("item"), content=body))
