"""carrel exec: a command in a space; its exit code is ours."""

from __future__ import annotations

import os

from carrel.cli.call import Call
from carrel.cli.spec import PAIRS, SECONDS, SPACE, TEXT, Argument, Option, Verb
from carrel.cli.terminal import size_of
from carrel.client.exchange import Exchange
from carrel.client.exits import OWN_ERROR
from carrel.client.requests import space_path, telling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Run a command in a space; its exit code is the command's.",
    SPACE,
    Argument("command", many=True),
    details=(
        "Put -- before a command that has options of its own. Exit codes: 128 and the number "
        "of a signal, 124 when the time was over, 125 for Carrel's own errors, 126 for what "
        "cannot be executed, 127 for what is not there. Ctrl-C goes to the command; three "
        "times leaves it. With -t, Ctrl-] twice does."
    ),
    options=(
        Option("-t", "--terminal", help="Give it a terminal."),
        Option("-i", "--stdin", help="Pass on standard input."),
        Option("-d", "--detach", help="Do not wait; print the id of the run."),
        Option("--timeout", kind=SECONDS, metavar="TIME", help="End it after that (90s, 15m)."),
        Option("-e", "--env", kind=PAIRS, metavar="K=V", help="A variable of its environment."),
        Option("-C", "--cwd", kind=TEXT, metavar="FOLDER", help="Where it starts."),
    ),
)


def run(call: Call) -> int:
    command = content(call)
    space = call.text("space")
    try:
        if call.flag("detach"):
            _check_detached(call)
            return _detach(call, space, command)
        return follow(call, Exchange.starting(space, command), command)
    except Exception as error:
        raise own_error(error) from error


def content(call: Call) -> dict[str, Any]:
    """The command as the API takes it."""
    found: dict[str, Any] = {"argv": call.texts("command")}
    if env := call.pairs("env"):
        found["env"] = env
    if cwd := call.text("cwd"):
        found["cwd"] = cwd
    if (timeout_s := call.number("timeout")) is not None:
        found["timeout_s"] = timeout_s
    if call.flag("terminal"):
        found = with_terminal(found)
    if call.flag("stdin"):
        found["stdin"] = True
    return found


def with_terminal(command: dict[str, Any]) -> dict[str, Any]:
    """As large as ours, and of its kind."""
    rows, cols = size_of(0) or size_of(1) or (24, 80)
    env = {"TERM": os.environ.get("TERM", "xterm"), **command.get("env", {})}
    return {**command, "terminal": True, "rows": rows, "cols": cols, "env": env}


def follow(call: Call, exchange: Exchange, command: dict[str, Any]) -> int:
    from carrel.cli.running import Running

    terminal = bool(command.get("terminal"))
    stdin = terminal or bool(command.get("stdin"))
    code = Running(call.link, exchange, stdin=stdin, terminal=terminal).run()
    if call.json:
        call.show(exchange.run)
    return code


def _check_detached(call: Call) -> None:
    if call.flag("terminal") or call.flag("stdin"):
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "A command that nobody waits for has neither a terminal nor our input.",
            hint="Leave out --detach, or -t and -i.",
        )


def _detach(call: Call, space: str, command: dict[str, Any]) -> int:
    plain = {name: command[name] for name in ("argv", "env", "cwd", "timeout_s") if name in command}
    started = call.link.json(telling("POST", space_path(space, "runs"), plain))
    if call.json:
        call.show(started)
    else:
        call.say(started["id"])
    return 0


def own_error(error: Exception) -> Exception:
    """Carrel's own errors are 125 here, so that they are not taken for the command's."""
    from carrel.cli.failing import Failure, exit_code

    if isinstance(error, BrokenPipeError):
        return error
    code = exit_code(error)
    return Failure(error, code if code > OWN_ERROR else OWN_ERROR)
