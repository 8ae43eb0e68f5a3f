"""carrel new: a space, ready when this returns."""

from __future__ import annotations

from carrel.cli import giving, turns
from carrel.cli.call import Call
from carrel.cli.layout import clean, cut, loud, terminal_width
from carrel.cli.output import is_terminal, tell
from carrel.cli.showing import confined
from carrel.cli.spec import (
    CHOICE,
    FILES,
    MANY,
    NUMBER,
    PAIRS,
    SECONDS,
    SIZE,
    TEXT,
    WHOLE,
    Argument,
    Option,
    Verb,
)
from carrel.cli.values import size_text
from carrel.client.creating import create
from carrel.client.projects import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNTIMES = ("auto", "bubblewrap", "landlock", "process")
VERB = Verb(
    "Make a space from a project: a folder, a git URL, an archive.",
    Argument("project", required=False, completes=FILES),
    details=(
        "Without a project: from the current folder. A folder is taken as it is, with "
        "uncommitted and ignored files; with --ref it is taken as a repository, at that ref. "
        "Prints the name of the space when it is ready."
    ),
    options=(
        Option("--empty", help="Start from nothing."),
        Option("--name", kind=TEXT, help="A name; otherwise one is made up."),
        Option("--ref", kind=TEXT, help="A branch, tag or commit of a repository."),
        Option("--base", kind=TEXT, metavar="ID", help="Start from a base that is ready."),
        Option("--exclude", kind=MANY, metavar="PATTERN", help="Leave out, as in .gitignore."),
        Option("--runtime", kind=CHOICE, choices=RUNTIMES, help="What confines it."),
        Option("--driver", kind=TEXT, help="How its tree is made; otherwise the best."),
        Option(
            "--network",
            kind=CHOICE,
            choices=("none", "open"),
            help="Default: none, or open where the agent must reach a model.",
        ),
        Option(
            "--tier", kind=CHOICE, choices=("minimal", "default", "large"), help="A set of limits."
        ),
        Option("--memory", kind=SIZE, metavar="SIZE", help="At most so much memory (512M, 4G)."),
        Option("--cpus", kind=NUMBER, metavar="N", help="At most so many processors."),
        Option("--pids", kind=WHOLE, metavar="N", help="At most so many processes."),
        Option("--disk", kind=SIZE, metavar="SIZE", help="At most so much on disk."),
        Option("--wall", kind=SECONDS, metavar="TIME", help="A command runs at most so long."),
        Option("--strict", help="Refuse when a limit cannot be enforced."),
        Option("-l", "--label", kind=PAIRS, metavar="K=V", help="A label."),
        Option("--ttl", kind=SECONDS, metavar="TIME", help="Removed so long after it was made."),
        Option("--idle", kind=SECONDS, metavar="TIME", help="Stopped after so long unused."),
        Option("--keep", kind=SECONDS, metavar="TIME", help="Removed so long after its stop."),
        Option("--discard", help="Clean-up may remove it with changes that nobody took out."),
        Option("-e", "--env", kind=PAIRS, metavar="K=V", help="A variable for all its commands."),
        Option("--agent", kind=TEXT, metavar="NAME", help="Who works in it: see `carrel agents`."),
        Option(
            "--mcp",
            kind=MANY,
            metavar="SERVER",
            help="An MCP server for its agent: see `carrel instance servers`.",
        ),
        Option("-m", "--message", kind=TEXT, metavar="PROMPT", help="What it is to do first."),
        *turns.OPTIONS,
    ),
)


def run(call: Call) -> int:
    progress = Progress() if is_terminal(2) and not call.json else None
    try:
        space = create(call.link, content(call), progress)
    finally:
        if progress is not None:
            progress.clear()
    if call.json:
        call.show(space)
        return _first_turn(call, space)
    call.say(space["name"])
    if not confined(space):
        call.note(loud("process !") + " Nothing confines what runs in this space.")
    if is_terminal(2):
        call.note(f"Ready ({space['id']}): carrel shell {space['name']}")
    return _first_turn(call, space)


def _first_turn(call: Call, space: dict[str, Any]) -> int:
    if not call.text("message"):
        giving.give(call, space["id"])
        return 0
    return turns.send(call, space["id"], turns.content(call, turns.prompt_of(call.text("message"))))


def content(call: Call) -> dict[str, Any]:
    """What is asked for, as the API takes it; what was not said is left to the daemon."""
    limits = {
        "memory_bytes": call.whole("memory"),
        "cpus": call.number("cpus"),
        "pids": call.whole("pids"),
        "disk_bytes": call.whole("disk"),
        "wall_seconds": call.number("wall"),
        "strict": call.flag("strict") or None,
    }
    retention = {
        "ttl_s": call.number("ttl"),
        "idle_s": call.number("idle"),
        "keep_s": call.number("keep"),
        "discard": call.flag("discard") or None,
    }
    found: dict[str, Any] = {
        "name": call.text("name"),
        "exclude": call.texts("exclude"),
        "runtime": call.text("runtime"),
        "driver": call.text("driver"),
        "network": call.text("network"),
        "tier": call.text("tier"),
        "agent": call.text("agent"),
        "mcp": call.texts("mcp"),
        "limits": _given(limits),
        "labels": call.pairs("label"),
        "env": call.pairs("env"),
        "retention": _given(retention),
    }
    return {**_origin(call), **{name: value for name, value in found.items() if value}}


def _origin(call: Call) -> dict[str, Any]:
    project, base, empty = call.text("project"), call.text("base"), call.flag("empty")
    if sum(map(bool, (project, base, empty))) > 1:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "A space starts from one thing.", hint="Give a project, --base or --empty."
        )
    if base:
        return {"base": base}
    if empty:
        return {"project": describe(None)}
    return {"project": describe(project or ".", call.text("ref") or None)}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class Progress:
    """One line on standard error that says how far it is."""

    def __call__(self, step: dict[str, Any]) -> None:
        done, total = step.get("done", 0), step.get("total", 0)
        words = clean(step.get("stage", ""))
        if total:
            words += f" {done:,}/{total:,}"
        elif done:
            words += f" {done:,}"
        if step.get("bytes_done"):
            words += f", {size_text(step['bytes_done'])}"
        tell(f"\r\x1b[K{cut(words, (terminal_width() or 80) - 1)}")

    def clear(self) -> None:
        tell("\r\x1b[K")
