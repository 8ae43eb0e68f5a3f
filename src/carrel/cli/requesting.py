"""Requests on the command line: what is asked for, and where."""

from __future__ import annotations

import os

from carrel.cli.call import Call
from carrel.cli.spec import CHOICE, FILES, MANY, SECONDS, TEXT, WHOLE, Argument, Option
from carrel.client.requests import telling
from carrel.client.wire import segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REQUEST = Argument("request")
OUT = Option(
    "--out",
    kind=TEXT,
    metavar="FOLDER",
    completes=FILES,
    help="Put the files there; the folder is made.",
)
FORCE = Option("--force", help="Replace files that are there already.")
HOLD_S = 600.0
"""For the files of a workspace that goes at once to be fetched after the result."""
ASKING = (
    Option("--project", kind=TEXT, metavar="PROJECT", help="A folder or git URL; else nothing."),
    Option("--agent", kind=TEXT, metavar="NAME", help="Which; otherwise as the settings say."),
    Option("--model", kind=TEXT, help="Of the agent; otherwise its default."),
    Option("--architecture", kind=TEXT, metavar="TEXT|@FILE", help="How it is to be built."),
    Option("--context", kind=MANY, metavar="TEXT|@FILE", help="What the agent may read."),
    Option("--check", kind=TEXT, metavar="COMMAND", help="Runs there when the agent is done."),
    Option("--keep", kind=SECONDS, metavar="TIME", help="The workspace stays so long."),
    Option("--series", kind=TEXT, metavar="NAME", help="It is a new version of this."),
    Option("--newest", kind=WHOLE, metavar="N", help="So many versions stay (10)."),
    Option("--older", kind=CHOICE, choices=("archive", "drop"), help="What becomes of others."),
    Option("--timeout", kind=SECONDS, metavar="TIME", help="The agent is ended after so long."),
    Option("--tier", kind=CHOICE, choices=("minimal", "default", "large"), help="How much it has."),
    Option("--request-id", kind=TEXT, metavar="ID", help="Your name for it: it is done once."),
)
"""What a request may say."""


def request_path(request: str, *rest: str) -> str:
    return "/".join(("/v1/requests", segment(request), *rest))


def series_path(series: str, *rest: str) -> str:
    """A series may have slashes in its name."""
    return "/".join(("/v1/series", *map(segment, series.split("/")), *rest))


def done(call: Call, request: str) -> None:
    """Its files were fetched."""
    call.link.json(telling("POST", request_path(request, "done"), again=True))


def options(call: Call) -> dict[str, Any]:
    """As the client takes them. `MessageInvalid`, `OSError`."""
    found = {
        "project": call.text("project"),
        "frontend": call.text("agent"),
        "model": call.text("model"),
        "architecture": _text(call.text("architecture")),
        "context": _context(call.texts("context")),
        "check": call.text("check"),
        "retention": _retention(call),
        "timeout_s": call.number("timeout"),
        "tier": call.text("tier"),
        "request_id": call.text("request_id"),
    }
    return {name: value for name, value in found.items() if value}


def _text(word: str) -> str:
    if not word.startswith("@"):
        return word
    with open(word[1:], encoding="utf-8") as file:
        return file.read()


def _context(words: list[str]) -> str | dict[str, str]:
    """Texts as they are; with a file among them, all by name."""
    if not any(word.startswith("@") for word in words):
        return "\n\n".join(words)
    found: dict[str, str] = {}
    for word in words:
        name = os.path.basename(word[1:]) if word.startswith("@") else "context.md"
        stem, ending = os.path.splitext(name)
        for count in range(2, len(words) + 2):
            if name not in found:
                break
            name = f"{stem}-{count}{ending}"
        found[name] = _text(word)
    return found


def _retention(call: Call) -> dict[str, Any]:
    keep_s, series = call.number("keep"), call.text("series")
    if series and keep_s is not None:
        raise _wrong("It is kept for a time or as a version.", "--keep or --series")
    if not series and (call.whole("newest") is not None or call.text("older")):
        raise _wrong("Only versions have --newest and --older.", "Name them: --series NAME")
    if keep_s is not None:
        return {"policy": "retain", "seconds": keep_s}
    if series:
        more = {"newest": call.whole("newest"), "older": call.text("older") or None}
        given = {name: value for name, value in more.items() if value is not None}
        return {"policy": "versioned", "series": series, **given}
    return {"policy": "ephemeral", "hold_s": HOLD_S} if call.text("out") else {}


def _wrong(message: str, hint: str) -> Exception:
    from carrel.domain.errors import MessageInvalid

    return MessageInvalid(message, hint=hint)
