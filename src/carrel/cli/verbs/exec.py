"""carrel exec and shell: a command in a space; its exit code is ours."""

from __future__ import annotations

import os
from contextlib import contextmanager

from carrel.cli.call import VerbCall, invalid
from carrel.cli.spec import SPACE, Argument, Option, Verb
from carrel.cli.terminal import size_of
from carrel.client.exchange import OWN_ERROR, RunExchange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ENV = Option("-e, --env K=V", "Set a variable of its environment.", to="env")
PLACE = Option(
    "--in PLACE",
    "Where: dev, with the space's image; agent, with the host's toolchain; or a service.",
    to="place",
)
SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"]


@Verb(
    SPACE,
    Argument("command", many=True),
    Option("-t, --terminal", "Give it a terminal."),
    Option("-i, --stdin", "Pass on standard input.", to="stdin"),
    Option("-d, --detach", "Do not wait; print the id of the run."),
    Option("--timeout TIME", "End it after this time (90s, 15m).", to="timeout_s"),
    ENV,
    Option("-C, --cwd FOLDER", "Start it in this folder.", to="cwd"),
    PLACE,
)
def exec(call: VerbCall) -> int:
    """Run a command in a space; its exit code is the command's.

    Put -- before a command that has options of its own. Ctrl-C goes to the command; three
    times detaches, and so does Ctrl-] twice with -t. Exit codes: 128 plus the number of a
    signal, 124 after a timeout, 125 for Carrel's own errors or when bytes of the output are
    missing, 126 when the command cannot be executed, 127 when it does not exist.
    """
    command = {"argv": call.texts("command"), **call.content()}
    if call.flag("terminal"):
        command = with_terminal(command)
    space = call.text("space")
    with own_errors():
        if call.flag("detach"):
            return _detach(call, space, command)
        return follow(call, RunExchange.starting(space, command), command)


@Verb(SPACE, ENV, PLACE)
def shell(call: VerbCall) -> int:
    """Open a shell in a space.

    It is bash, or sh where there is none. Ctrl-] twice detaches. If standard input
    is no terminal, the shell reads its commands from there.
    """
    command = {"argv": SHELL, "stdin": True, **call.content()}
    # As ssh: without a terminal here there is none there, and its input ends when ours does.
    if os.isatty(0):
        command = with_terminal(command)
    with own_errors():
        return follow(call, RunExchange.starting(call.text("space"), command), command)


def with_terminal(command: dict[str, Any]) -> dict[str, Any]:
    """Gives the command a terminal as large as ours, and of its kind."""
    rows, cols = size_of(0) or size_of(1) or (24, 80)
    env = {"TERM": os.environ.get("TERM", "xterm"), **command.get("env", {})}
    return {**command, "terminal": True, "rows": rows, "cols": cols, "env": env}


def follow(call: VerbCall, exchange: RunExchange, command: dict[str, Any]) -> int:
    """Runs or attaches to a command in the foreground, and gives its exit code."""
    from carrel.cli.foreground import Foreground

    terminal = bool(command.get("terminal"))
    stdin = terminal or bool(command.get("stdin"))
    code = Foreground(call.link, exchange, stdin=stdin, terminal=terminal).run()
    if call.json:
        call.show({**exchange.run, "missing_bytes": exchange.missing})
    return code


def _detach(call: VerbCall, space: str, command: dict[str, Any]) -> int:
    if call.flag("terminal") or call.flag("stdin"):
        raise invalid(
            "A detached command has no terminal and gets no input from here.",
            hint="Leave out --detach, or -t and -i.",
        )
    call.answer(call.ask("runs.start", space, content=command), lambda run: run["id"])
    call.note_logout()
    return 0


@contextmanager
def own_errors() -> Iterator[None]:
    """Gives Carrel's own errors the exit code 125, so that they are not taken for the command's."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        from carrel.cli.errors import ExitError, exit_code

        raise ExitError(error, max(exit_code(error), OWN_ERROR)) from error
