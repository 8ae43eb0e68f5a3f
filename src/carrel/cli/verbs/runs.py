"""Runs: the commands of a space, their output, and one of them in this terminal."""

from __future__ import annotations

import time

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import AnswerTable, Shown, clean, fields, flush, is_terminal, tell
from carrel.cli.spec import RUN, SPACE, Argument, Option, Verb
from carrel.cli.terminal import missing, write_all
from carrel.cli.transcript import TRANSCRIPT_OPTIONS
from carrel.cli.values import age_of, seconds_of, size_text, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

WAIT_S = 30.0
"""So long one request waits for the end of a command; then it is asked again."""
NEWEST = 50
"""Runs among which the newest command is: those of services are none."""
OVER = ("ended", "failed")
ID_LENGTH = 15
"""Of a run's id, `ru_` and twelve characters."""
AGENT_RUN = "agent: "
"""How the command of an agent's run is shown begins so."""


# How runs are shown


def _exit(run: dict[str, Any]) -> str:
    """How it ended, in a word."""
    ended = run.get("exit")
    if ended is None:
        return run["failure_code"] if run["state"] == "failed" else "-"
    if ended["reason"] == "exited":
        return str(ended["code"])
    number = f" {ended['signal']}" if ended["reason"] == "signaled" else ""
    return f"{ended['reason']}{number}"


def _span(run: dict[str, Any]) -> str:
    """How long it ran, or has been running."""
    ended = run.get("exit")
    if ended is None:
        return "-" if run["state"] == "failed" else age_of(run["created_at"])
    return time_text(seconds_of(ended["ended_at"]) - seconds_of(ended["started_at"]))


def _describe(run: dict[str, Any]) -> str:
    ended = run.get("exit") or {}
    return fields(
        [
            ("id", run["id"]),
            ("space", run["space"]),
            ("command", clean(run["display_command"])),
            ("folder", clean(run["cwd"])),
            ("state", run["state"]),
            ("exit", _exit(run) if ended else ""),
            ("failure", run["failure"]),
            ("terminal", "yes" if run["terminal"] else ""),
            ("process", str(run["pid"] or "")),
            ("created", f"{run['created_at']} ({age_of(run['created_at'])} ago)"),
            ("time", _span(run)),
            ("cpu", time_text(ended.get("cpu_seconds")) if ended else ""),
            ("memory", size_text(ended.get("max_rss_bytes")) if ended else ""),
        ]
    )


runs = Verb(
    SPACE,
    help="List the commands of a space, newest first.",
    ask="runs.list",
    text=AnswerTable(
        "runs",
        {
            "RUN": "id",
            "STATE": "state",
            "EXIT": _exit,
            "TIME": _span,
            "AGE": lambda run: age_of(run["created_at"]),
            "COMMAND": lambda run: run["display_command"],
        },
        shrink=("COMMAND",),
        empty="Nothing has run in it.",
    ),
)
run_show = Verb(RUN, help="Show everything about a command.", ask="runs.show", text=_describe)


@Verb(
    RUN,
    Option("-i, --stdin", "Pass on standard input."),
    Option("--new", "Show only what comes from now on."),
)
def run_attach(call: VerbCall) -> int:
    """Attach to a command: print all its output, and exit with its exit code.

    A command with a terminal gets what is typed; Ctrl-] twice detaches. Ctrl-C goes to the
    command; three times detaches.
    """
    from carrel.cli.verbs.exec import follow, own_errors
    from carrel.client.exchange import RunExchange

    with own_errors():
        found = call.ask("runs.show", call.text("run"))
        exchange = RunExchange.attaching(found["id"])
        if call.flag("new"):
            for number, stream in ((1, "stdout"), (2, "stderr")):
                for begin, data in _pieces(call, found["id"], stream):
                    exchange.offsets[number] = begin + len(data)
        terminal = found["terminal"] and found["state"] in ("starting", "running")
        return follow(call, exchange, {"terminal": terminal, "stdin": call.flag("stdin")})


@Verb(RUN, Option("--timeout TIME", "Wait no longer; the exit code is 124 then."))
def run_wait(call: VerbCall) -> int:
    """Wait for the end of a command; its exit code is the command's."""
    from carrel.cli.verbs.exec import own_errors
    from carrel.client.exchange import TIMED_OUT, exit_code

    with own_errors():
        found = _wait(call, call.text("run"), call.number("timeout"))
    call.answer(found)
    return exit_code(found) if found["state"] in OVER else TIMED_OUT


def _wait(call: VerbCall, word: str, timeout_s: float | None) -> dict[str, Any]:
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = WAIT_S if until is None else max(0.0, min(WAIT_S, until - time.monotonic()))
        found: dict[str, Any] = call.ask("runs.wait", word, query=[("timeout_s", left)])
        late = until is not None and time.monotonic() >= until
        if found["state"] in OVER or late:
            return found


@Verb(RUN, Argument("signal", required=False))
def run_signal(call: VerbCall) -> None:
    """Send a signal to a command and all its processes.

    The signal is TERM if none is named; HUP, INT, QUIT, KILL, USR1, USR2, STOP, CONT, …
    """
    name = (call.text("signal") or "TERM").upper().removeprefix("SIG")
    call.answer(call.ask("runs.signal", call.text("run"), content={"signal": name}))


# Output


@Verb(
    Argument("space", completes="spaces"),
    Option("--run RUN", "Print the output of this run."),
    Option("--in SERVICE", "Print what this service of the space has said."),
    Option("-f, --follow", "Follow the output to the command's end."),
    Option("--raw", "Print the output as it is: no transcript, and escape sequences too."),
    *TRANSCRIPT_OPTIONS,
)
def logs(call: VerbCall) -> None:
    """Print the output of a space's newest command, or what its agent did.

    Of an agent's turn it prints the transcript: what the agent said, which tools it called,
    how it ended. SPACE may also be the id of a run.

    The newest 16 MiB of each stream of a command are kept while no client is attached;
    standard error says how much is missing. -f does not slow the command, so it may miss output
    that comes faster than it is read. `carrel run attach` misses nothing.
    """
    found = _newest(call)
    if found is None:
        call.note("Nothing has run in it.")
        return
    flush()
    turn = None if call.flag("raw") else _turn_of(call, found)
    if turn is not None:
        from carrel.cli.verbs.turns import show_turn

        word = turn["space"] if _is_run(call.text("space")) else call.text("space")
        show_turn(call, turn, word, follow=call.flag("follow"))
    elif call.json:
        _show_output(call, found)
    else:
        _print_output(call, found)


def _turn_of(call: VerbCall, run: dict[str, Any]) -> dict[str, Any] | None:
    """The turn that a run is; None when it is a command."""
    from carrel.domain.errors import TurnNotFound

    if not run["display_command"].startswith(AGENT_RUN):
        return None
    try:
        found: dict[str, Any] = call.ask("turns.show", run["id"])
    except TurnNotFound:
        # Somebody has a command of that name.
        return None
    return found


def _print_output(call: VerbCall, run: dict[str, Any]) -> None:
    targets = {1: Target(1, raw=call.flag("raw")), 2: Target(2, raw=call.flag("raw"))}
    if call.flag("follow"):
        _follow(call, run["id"], targets)
    else:
        for stream, number in (("stdout", 1), ("stderr", 2)):
            offset = 0
            for begin, piece in _pieces(call, run["id"], stream):
                targets[number].write(piece, begin - offset)
                offset = begin + len(piece)
    for target in targets.values():
        target.write(b"", last=True)


class Target:
    """Where a stream goes. A terminal is not steered by what a command once wrote."""

    def __init__(self, number: int, *, raw: bool) -> None:
        self._number = number
        self._shown = None if raw or not is_terminal(number) else Shown()

    def write(self, data: bytes, dropped: int = 0, *, last: bool = False) -> None:
        """`dropped` bytes before it are missing."""
        if dropped:
            tell(missing(dropped))
        if self._shown is not None:
            data = self._shown.text(data, last=last).encode()
        write_all(self._number, data)


def _newest(call: VerbCall) -> dict[str, Any] | None:
    named = call.text("space")
    space = {} if _is_run(named) else call.ask("spaces.show", named)
    if word := call.text("run") or (named if _is_run(named) else ""):
        found: dict[str, Any] = call.ask("runs.show", word)
        return found
    if service := call.text("in"):
        return _of_service(call, space["id"], service)
    runs = call.ask("runs.list", space["id"], query=[("limit", NEWEST)])["runs"]
    return next((run for run in runs if not run["service"]), runs[0] if runs else None)


def _of_service(call: VerbCall, space: str, name: str) -> dict[str, Any] | None:
    for one in call.ask("services.list", space)["services"]:
        if one["name"] == name and one["run"]:
            found: dict[str, Any] = call.ask("runs.show", one["run"])
            return found
    raise invalid(
        f"{clean(name)!r} is no service that has run there.", hint="`carrel services` lists them."
    )


def _is_run(word: str) -> bool:
    return word.startswith("ru_") and len(word) == ID_LENGTH


def _follow(call: VerbCall, run_id: str, targets: dict[int, Target]) -> None:
    from carrel.client.exchange import STDERR, STDOUT, RunExchange
    from carrel.client.streams import RunStream

    with RunStream(call.link, RunExchange.attaching(run_id, hold=False)).open() as stream:
        for output in stream:
            targets[{STDOUT: 1, STDERR: 2}[output.stream]].write(output.data, output.dropped)


def _pieces(call: VerbCall, run_id: str, stream: str) -> Iterator[tuple[int, bytes]]:
    """What is there of a stream: pieces with the offset at which each begins; what lies before
    it and after the last is missing. The last piece is empty."""
    from carrel.client.http import operation

    offset = 0
    while True:
        query = [("stream", stream), ("offset", offset)]
        answer = call.link.ask(operation("runs.output", run_id, query=query)).check()
        begin = int(answer.head.headers["carrel-offset"])
        yield begin, answer.body
        if not answer.body:
            return
        offset = begin + len(answer.body)


def _show_output(call: VerbCall, run: dict[str, Any]) -> None:
    content: dict[str, Any] = {"run": run}
    for stream in ("stdout", "stderr"):
        pieces = list(_pieces(call, run["id"], stream))
        data = b"".join(piece for _, piece in pieces)
        content[stream] = data.decode("utf-8", "replace")
        # All that lies before the last piece and did not come.
        content[f"{stream}_missing_bytes"] = pieces[-1][0] - len(data)
    call.show(content)
