"""carrel inspect: which toolchain a project asks for. Reads files only; no daemon."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, loud
from carrel.cli.spec import FILES, Argument, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERB = Verb(
    "Say which toolchain a project asks for, and what is missing of it here.",
    Argument("path", required=False, completes=FILES),
    details="Reads the project's files and runs nothing. Without a path: the current folder.",
)


def run(call: Call) -> int:
    from pathlib import Path

    import msgspec

    from carrel.environments.discovery import inspect_project
    from carrel.environments.programs import HostPrograms
    from carrel.runtimes.environment import PATH
    from carrel.runtimes.landlock_policy import TOOLCHAIN

    report = inspect_project(Path(call.text("path") or "."), HostPrograms(PATH, TOOLCHAIN))
    content = msgspec.to_builtins(report)
    if call.json:
        call.show({**content, "missing": [one.name for one in report.toolchain.missing]})
        return 0
    for line in _lines(content):
        call.say(line)
    packages = report.toolchain.packages
    if packages:
        call.say(f"install: sudo apt-get install {' '.join(packages)}")
    return 0


def _lines(report: dict[str, Any]) -> Iterator[str]:
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
