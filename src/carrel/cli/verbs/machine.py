"""The machine: what it can do, what spaces use of it, what is cleaned up, what a project needs."""

from __future__ import annotations

import os
import time

from carrel.cli.call import UNSOUND, VerbCall
from carrel.cli.output import (
    FAINT,
    LOUD,
    WARM,
    AnswerTable,
    clean,
    cut,
    flush,
    is_terminal,
    loud,
    painted,
    put,
    table,
    terminal_width,
)
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import size_text, time_text
from carrel.cli.verbs.spaces import UNCONFINED, runtime_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from carrel.domain.plans import EnvironmentPlan
    from carrel.domain.services import StackPlan

MARKS = {"good": "ok", "warning": "!", "bad": "!!", "unused": "-"}
USAGE = ("NAME", "STATE", "RUNTIME", "RUNS", "CPU%", "CPU", "MEMORY", "PEAK", "PROCS", "DISK")
INTERVAL_S = 2.0
NEW_SCREEN, OLD_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST = "\x1b[H", "\x1b[J"
LINE_END = "\x1b[K\n"


# Disk


def _part_note(part: dict[str, Any]) -> str:
    sizes = (f"{name} {size_text(size)}" for name, size in part["of"].items())
    return part["note"] or ", ".join(sizes)


PARTS = AnswerTable(
    "parts",
    {
        "WHAT": "kind",
        "NAME": lambda part: part["name"],
        "SIZE": lambda part: size_text(part["bytes"]),
        "": _part_note,
    },
    shrink=("", "NAME"),
)


def _disk_use(report: dict[str, Any]) -> str:
    free, total = size_text(report["free_bytes"]), size_text(report["total_bytes"])
    where = clean(report["path"])
    return f"{PARTS(report)}\n\n{free} of {total} are free on the disk with {where}."


df = Verb(
    help="""Show what uses the disk: bases, spaces, trash, records and the rest.

    It works on a full disk too. `carrel gc --bases` removes bases that no space uses.""",
    ask="cleanup.disk_use",
    text=_disk_use,
)


@Verb(
    Option("-n, --dry-run", "Only say what would be done.", to="dry_run"),
    Option(
        "--bases",
        "Remove every base and all downloads that no space uses, whatever their age.",
        to="bases",
    ),
)
def gc(call: VerbCall) -> None:
    """Clean up: expired spaces, unused bases, old trash, leftovers."""
    report = call.ask("cleanup.collect", content=call.content())

    def verb(action: dict[str, Any]) -> str:
        done = action["done"] or report["dry_run"]
        return str(action["verb"] if done else f"not: {action['verb']}")

    columns = {
        "WHAT": verb,
        "TARGET": lambda action: action["target"],
        "FREES": lambda one: size_text(one["bytes_freed"]) if one["bytes_freed"] else "-",
        "WHY": lambda action: action["why"],
    }
    shrink = ("WHY", "TARGET")
    none = "There is nothing to clean up."
    call.answer(report, AnswerTable("actions", columns, shrink=shrink, empty=none))


# What the machine can do


@Verb()
def doctor(call: VerbCall) -> int:
    """Check what this machine can do, what is missing, and how to fix it.

    The exit code is 8 when something that is promised does not work.
    """
    diagnosis = call.ask("cleanup.examine")
    call.answer(diagnosis, _diagnosis)
    return 0 if diagnosis["healthy"] else UNSOUND


def _diagnosis(diagnosis: dict[str, Any]) -> str:
    areas: dict[str, list[dict[str, Any]]] = {}
    for finding in diagnosis["findings"]:
        areas.setdefault(finding["area"], []).append(finding)
    lines = []
    for area, findings in areas.items():
        lines.append(f"{area}:")
        for finding in findings:
            lines += _finding_lines(finding)
    runtime = diagnosis["runtime"] or loud("nothing")
    driver = diagnosis["driver"] or "-"
    lines.append(f"\nSpaces are confined by {runtime}, with trees by {driver}.")
    return "\n".join(lines)


def _finding_lines(finding: dict[str, Any]) -> Iterator[str]:
    grade, width = finding["grade"], terminal_width()
    line = f"  {MARKS[grade].ljust(2)} {finding['name']}: {clean(finding['what'])}"
    quiet = grade in ("good", "unused")
    line = cut(line, width) if quiet and width is not None else line
    yield painted(line, {"warning": WARM, "bad": LOUD, "unused": FAINT}.get(grade, ""))
    if finding["remedy"]:
        yield f"     {'if you want it' if quiet else 'mend it'}: {clean(finding['remedy'])}"


# What spaces use


@Verb(
    Option("--once", "Show it only once."),
    Option("--interval TIME", "Refresh after this time (2s)."),
    Option("--disk", "Show disk use too, which takes longer to measure."),
)
def top(call: VerbCall) -> None:
    """Show what each space uses, and refresh it until Ctrl-C."""
    if call.flag("once") or call.json or not is_terminal(1):
        spaces, usage = _usage(call)
        call.answer({"usage": usage}, lambda _: _top_table(spaces, usage, {}, 0.0))
        return
    put(NEW_SCREEN)
    try:
        _top_live(call, call.number("interval") or INTERVAL_S)
    finally:
        put(OLD_SCREEN)
        flush()


def _top_live(call: VerbCall, interval_s: float) -> None:
    before: dict[str, float] = {}
    looked_at = 0.0
    while True:
        spaces, usage = _usage(call)
        now = time.monotonic()
        text = _top_table(spaces, usage, before, now - looked_at if looked_at else 0.0)
        before = {one["space"]: one["cpu_seconds"] or 0.0 for one in usage}
        looked_at = now
        put(HOME + text.replace("\n", LINE_END) + LINE_END + REST)
        flush()
        time.sleep(interval_s)


def _usage(call: VerbCall) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    query = [("disk", call.flag("disk"))]
    usage = call.ask("spaces.usage_of_all", query=query)["usage"]
    states = [("limit", 1000), ("state", "ready"), ("state", "running")]
    spaces = call.ask("spaces.list", query=states)["spaces"]
    return {space["id"]: space for space in spaces}, usage


def _top_table(
    spaces: dict[str, dict[str, Any]],
    usage: list[dict[str, Any]],
    before: dict[str, float],
    span_s: float,
) -> str:
    rows = []
    for one in sorted(usage, key=lambda one: one["memory_bytes"] or 0, reverse=True):
        space = spaces.get(one["space"])
        if space is None:
            continue
        used = (one["cpu_seconds"] or 0.0) - before.get(one["space"], one["cpu_seconds"] or 0.0)
        rows.append(
            (
                space["name"],
                space["state"],
                runtime_of(space),
                str(space["live_runs"] or "-"),
                f"{100 * used / span_s:.0f}" if span_s else "-",
                time_text(one["cpu_seconds"]),
                size_text(one["memory_bytes"]),
                size_text(one["memory_peak_bytes"]),
                "-" if one["pids"] is None else str(one["pids"]),
                size_text(one["disk_bytes"]),
            )
        )
    return table(USAGE, rows, shrink=(0,), marked=UNCONFINED)


# What a project needs. Reads files only; no daemon.


@Verb(
    Argument("path", required=False, completes="files"),
    Option("--image IMAGE", "auto, none, or a name, an archive or a folder."),
    Option("--dockerfile PATH", "This one, relative to the project."),
    Option("--devcontainer PATH", "This devcontainer.json, or its folder."),
    Option("--services PATH", "auto, none, or a compose file of the project."),
)
def inspect(call: VerbCall) -> None:
    """Say which toolchain a project needs, what of it is missing here, and with which image.

    It reads the project's files, and runs nothing of them. Without PATH: the current folder.
    """
    from pathlib import Path

    import msgspec

    from carrel.domain.plans import PlanKind
    from carrel.environments.discovery import inspect_project
    from carrel.environments.home_tools import tools_of_the_caller
    from carrel.environments.programs import HostPrograms
    from carrel.runtimes.sandbox import PATH, TOOLCHAIN, Identities

    tools = tools_of_the_caller()
    search = ":".join((*tools.path_first, PATH, *tools.path_last))
    shown = (*TOOLCHAIN, *(path for tool in tools.tools for path in tool.shown))
    root = Path(call.text("path") or ".")
    report = inspect_project(root, HostPrograms(search, shown))
    content = msgspec.to_builtins(report)
    plan, stack = _plan(call, root)
    content |= {"plan": msgspec.to_builtins(plan), "services": msgspec.to_builtins(stack)}
    if call.json:
        call.show({**content, "missing": [one.name for one in report.toolchain.missing]})
        return
    lines = (*_plan_lines(content["plan"]), *_stack_lines(content["services"]))
    for line in (*_report_lines(content), *lines):
        call.say(line)
    if plan.kind is not PlanKind.HOST and (missing := Identities(root).why_no_range()):
        call.say(f"ids: In its image everything would belong to one user. {missing}")
    packages = report.toolchain.packages
    if packages:
        call.say(f"install: sudo apt-get install {' '.join(packages)}")


def _plan(call: VerbCall, root: Path) -> tuple[EnvironmentPlan, StackPlan]:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from carrel.domain.plans import PlanRequest
    from carrel.environments.engines.catalogue import Engines
    from carrel.environments.engines.maker import EngineMeans
    from carrel.environments.plans import plan_project
    from carrel.environments.stacks import plan_stack

    asked = PlanRequest(
        call.text("image") or "auto",
        call.text("dockerfile"),
        call.text("devcontainer"),
        services=call.text("services"),
    )
    kept = _images_of(call.place.data)
    # Engines are asked with an empty place of their own.
    with TemporaryDirectory(prefix="carrel-inspect-") as folder:
        means = EngineMeans(Engines(Path(folder)), kept)
        plan = plan_project(root, asked, means)
        return plan, plan_stack(root, asked, plan, means)


def _images_of(data: str) -> Callable[[str], bool]:
    """Whether an image is in the data folder, which needs no daemon; nobody else's can be read."""
    from pathlib import Path

    from carrel.domain.errors import ImageNotFound, TreeDamaged
    from carrel.trees.images.store import ImageStore

    if not data or not os.access(f"{data}/images", os.R_OK | os.X_OK):
        return lambda _name: False
    store = ImageStore(Path(data))

    def kept(name: str) -> bool:
        try:
            store.get(name)
        except (ImageNotFound, TreeDamaged):
            return False
        return True

    return kept


def _stack_lines(stack: dict[str, Any]) -> Iterator[str]:
    if stack["why"]:
        yield clean(f"services: {stack['why']}")
    for dropped in stack["dropped"]:
        yield clean(f"services: without {dropped['what']}: {dropped['why']}")


def _plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    """All text is the project's own."""
    yield clean(f"plan: {plan['kind']}: {plan['why']}")
    if plan["user"]:
        yield clean(f"plan: as the user {plan['user']}")
    for mount in plan["mounts"]:
        yield clean(f"plan: {mount['kind']} at {mount['target']}")
    for dropped in plan["dropped"]:
        yield clean(f"plan: without {dropped['what']}: {dropped['why']}")


def _report_lines(report: dict[str, Any]) -> Iterator[str]:
    """All text is the project's own."""
    yield f"decided: {_because(report['decided'])}"
    for match in report["also"]:
        yield f"also: {_because(match)}"
    yield from _image(report["image"])
    for version in report["versions"]:
        where = _where(version)
        yield clean(f"version: {version['tool']} {version['version']} ({where})")
    for command in report["setup"]:
        yield clean(f"set-up: {_command(command)} ({command['path']}, at {command['stage']})")
    for port in report["ports"]:
        yield clean(f"port: {port['number']}/{port['protocol']} ({port['path']})")
    for variable in report["variables"]:
        mark = "" if variable["resolved"] else ", not resolved"
        yield clean(f"variable: {variable['name']}={variable['value']} ({_where(variable)}{mark})")
    for program in report["toolchain"]["programs"]:
        yield _program(program)
    for note in report["notes"]:
        yield clean(f"note: {_where(note)}: {note['message']}")


def _because(match: dict[str, Any]) -> str:
    return clean(f"{match['rule']}: {match['why']}")


def _image(image: dict[str, Any]) -> Iterator[str]:
    if image["build"]:
        yield clean(f"image: built from {image['build']['dockerfile']}")
    if image["reference"]:
        word = "stands on" if image["build"] else "image"
        yield clean(f"{word}: {image['reference']}")
    if image["compose"]:
        yield clean(f"image: service {image['compose']['service']} of compose files")


def _command(command: dict[str, Any]) -> str:
    from shlex import join

    argv = command["argv"]
    text = argv[2] if argv[:2] == ["/bin/sh", "-c"] and len(argv) == 3 else join(argv)
    return text if command["folder"] == "." else f"{text} (in {command['folder']})"


def _program(program: dict[str, Any]) -> str:
    asked = f", asked for {program['asked']}" if program["asked"] else ""
    if program["found"]:
        return clean(f"program: {program['name']} at {program['found']}{asked}")
    hint = f" {program['hint']}" if program["hint"] else ""
    return f"program: {loud(clean(program['name']) + ' is missing')}{clean(asked + hint)}"


def _where(item: dict[str, Any]) -> str:
    line = f":{item['line']}" if item.get("line") else ""
    return f"{item['path']}{line}"
