"""carrel auth set: a key that agents are given, from a prompt or standard input."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import Request, telling
from carrel.client.wire import segment

VERB = Verb(
    "Keep a key for agents, such as anthropic or openai; it is asked for, or read from stdin.",
    Argument("name"),
    details="Only the agents that name it are given it. It is never shown again.",
)


def run(call: Call) -> int:
    path = f"/v1/credentials/{segment(call.text('name'))}"
    told = call.link.json(_storing(path, _value(call.text("name"))))
    if call.json:
        call.show(told)
    return 0


def _storing(path: str, value: str) -> Request:
    return telling("PUT", path, {"value": value})


def _value(name: str) -> str:
    """Never from the command line: every user of the machine sees that."""
    import sys

    if not sys.stdin.isatty():
        return sys.stdin.read().strip()
    import getpass

    return getpass.getpass(f"{name}: ").strip()
