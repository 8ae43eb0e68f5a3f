"""carrel race: the same task for several agents, and one table of what they made."""

from __future__ import annotations

from carrel.cli.call import FAILED, VerbCall, invalid
from carrel.cli.output import AnswerTable, StatusLine, clean
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.transcript import cost_text
from carrel.cli.values import count_text, time_text
from carrel.cli.verbs import turns
from carrel.cli.verbs.spaces import ENV, MCP, NETWORK
from carrel.client.projects import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOR_SPACES = ("name", "network", "env", "mcp", "tier")


def _lines(one: dict[str, Any]) -> str:
    return "-" if one["added"] is None else f"+{one['added']} -{one['deleted']}"


def _tokens(one: dict[str, Any]) -> str:
    return count_text(one["usage"]["input_tokens"] + one["usage"]["output_tokens"])


RACERS = AnswerTable(
    "racers",
    {
        "NAME": "name",
        "AGENT": "agent",
        "OUTCOME": "outcome",
        "CHECK": "check",
        "FILES": lambda one: "-" if one["files"] is None else str(one["files"]),
        "LINES": _lines,
        "TIME": lambda one: time_text(one["seconds"]),
        "TOKENS": _tokens,
        "COST": lambda one: cost_text(one["usage"]) or "-",
    },
    shrink=("NAME", "AGENT"),
)


@Verb(
    Argument("project", required=False, completes="files"),
    Option("-m, --message PROMPT", "What each agent is to do; - reads it from standard input."),
    Option("--agents NAMES", "The agents, with commas between them: see `carrel agents`."),
    Option("--count N", "Make so many spaces for each agent."),
    Option("--check COMMAND", "Run this in each space when its agent has ended."),
    Option("--check-timeout TIME", "How long the check may run; 10m by default."),
    Option("--name TEXT", "Begin the names of the spaces with this.", to="name"),
    Option("--ref TEXT", "Start from a branch, tag or commit of a repository."),
    NETWORK,
    ENV,
    MCP,
    Option("--tier minimal|default|large", "Use this set of limits.", to="tier"),
    Option("--model TEXT", "Use this model; otherwise each agent's default.", to="turn.model"),
    Option(turns.PERMISSION, "Choose what they may do without asking.", to="turn.permission"),
    Option("--timeout TIME", "End a turn after this time.", to="turn.timeout_s"),
    Option("--show RACE", "Show the table of a race, instead of beginning one."),
    Option("--wait", "With --show: wait until all have ended, and run checks that have not run."),
)
def race(call: VerbCall) -> int:
    """Give the same task to several agents, each in a space of its own, and compare.

    It waits until all have ended, and prints one table. Ctrl-C leaves the agents at work. Without
    PROJECT it takes the current folder. The exit code is 0 if one has succeeded, with its check.
    """
    shown = call.text("show")
    if shown and (call.text("project") or call.text("message") or call.text("agents")):
        raise invalid("--show is about a race that was begun.", hint="Leave the others out.")
    if call.flag("wait") and not shown:
        raise invalid("A new race is always waited for.", hint="Use --wait with --show.")
    if shown:
        race_id = shown
    else:
        made = call.ask("races.create", content=_content(call))
        race_id = made["id"]
        call.note(f"Race {race_id}: {', '.join(clean(one['name']) for one in made['racers'])}")
    try:
        if call.flag("wait") or not shown:
            _wait(call, race_id)
        found = call.ask("races.show", race_id)
    except KeyboardInterrupt:
        return _left(call, race_id)
    call.answer(found, RACERS)
    if not call.json:
        _tell(call, found)
    return 0 if not found["ended"] or any(map(_good, found["racers"])) else FAILED


def _content(call: VerbCall) -> dict[str, Any]:
    agents = [name.strip() for name in call.text("agents").split(",") if name.strip()]
    if not agents:
        raise invalid("No agents are named.", hint="Name them: --agents claude-code,codex-cli")
    said = call.content()
    space = {name: said[name] for name in _FOR_SPACES if name in said}
    space["project"] = describe(call.text("project") or ".", call.text("ref") or None)
    content: dict[str, Any] = {
        "agents": agents,
        "space": space,
        "turn": {"prompt": turns.prompt_of(call.text("message")), **said.get("turn", {})},
        "check": call.text("check"),
    }
    if (count := call.whole("count")) is not None:
        content["count"] = count
    if (check_s := call.number("check_timeout")) is not None:
        content["check_s"] = check_s
    return content


def _wait(call: VerbCall, race_id: str) -> None:
    from carrel.client.exchange import WAIT_S

    line = StatusLine()
    wait_s = 0.0
    try:
        while True:
            found = call.ask("races.check", race_id, query=[("wait_s", wait_s)])
            if found["ended"]:
                return
            wait_s = WAIT_S
            if line.live and not call.json:
                line.show(", ".join(_doing(one) for one in found["racers"]))
    finally:
        line.clear()


def _doing(one: dict[str, Any]) -> str:
    checking = one["check"] not in ("", "waiting")
    return f"{clean(one['name'])}: {'check ' + one['check'] if checking else one['outcome']}"


def _good(one: dict[str, Any]) -> bool:
    return bool(one["outcome"] == "complete" and one["check"] in ("", "passed"))


def _left(call: VerbCall, race_id: str) -> int:
    from carrel.cli.errors import INTERRUPTED

    call.note(f"\nThe agents go on. Wait again: carrel race --show {race_id} --wait")
    call.note("To end one: carrel interrupt NAME")
    return INTERRUPTED


def _tell(call: VerbCall, found: dict[str, Any]) -> None:
    for one in found["racers"]:
        if one["problem"]:
            call.note(clean(f"{one['name']}: {one['problem']}"))
        if one["check"] == "failed":
            call.note(clean(f"{one['name']}: what its check wrote: carrel logs {one['check_run']}"))
    if not found["ended"]:
        call.note(f"Not all have ended. Wait for them: carrel race --show {found['id']} --wait")
        return
    call.note(
        "Go on with: carrel diff NAME; carrel land NAME; carrel take NAME PATH… --into OTHER;"
        " carrel rm NAME"
    )
    call.note(f"This table again: carrel race --show {found['id']}")
