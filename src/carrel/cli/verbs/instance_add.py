"""carrel instance add: a kind of MCP server of one's own."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.instancing import TOOL_READY, tool_of
from carrel.cli.spec import CHOICE, MANY, PAIRS, SECONDS, TEXT, WHOLE, Argument, Option, Verb
from carrel.client.requests import telling
from carrel.client.wire import segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Add an MCP server, by the command that starts it.",
    Argument("name"),
    Argument("command", many=True),
    details=(
        "Words of the command and values of variables have places: {project}, {state}, {host}, "
        "{port}, {port_file}, {fd}. Put -- before the command."
    ),
    options=(
        Option(
            "--transport",
            kind=CHOICE,
            choices=("streamable-http", "sse", "stdio"),
            help="How it speaks; stdio is offered over HTTP too.",
        ),
        Option(
            "--port-by",
            kind=CHOICE,
            choices=("socket", "file", "process", "log", "reserved"),
            help="How its port is learned; otherwise by what it listens on.",
        ),
        Option("--port-line", kind=TEXT, metavar="PATTERN", help="For log: a group is the port."),
        Option("--path", kind=TEXT, metavar="PATH", help="Of its address (/mcp)."),
        Option(
            "--wrap",
            kind=CHOICE,
            choices=("uvicorn", "stdio"),
            help="A Python server takes our socket and a token by uvicorn.",
        ),
        Option("-e", "--env", kind=PAIRS, metavar="K=V", help="A variable."),
        Option("--network", kind=CHOICE, choices=("none", "open"), help="What it may reach."),
        Option("--bind", kind=MANY, metavar="PATH", help="What its sandbox must show as well."),
        Option("--warm", kind=WHOLE, metavar="N", help="Keep so many ready."),
        Option("--timeout", kind=SECONDS, metavar="TIME", help="To be ready (60s)."),
        TOOL_READY,
    ),
)


def run(call: Call) -> int:
    name = call.text("name")
    answer = call.link.json(telling("PUT", f"/v1/servers/{segment(name)}", _content(call)))
    if call.json:
        call.show(answer)
        return 0
    for one in answer["servers"]:
        if one["name"] == name and not one["installed"]:
            call.note(f"{call.texts('command')[0]} is not installed here yet.")
    return 0


def _content(call: Call) -> dict[str, Any]:
    port = {"by": call.text("port_by"), "line": call.text("port_line")}
    if port["line"] and not port["by"]:
        port["by"] = "log"
    ready = {"timeout_s": call.number("timeout"), "tool": tool_of(call.text("tool_ready"))}
    found: dict[str, Any] = {
        "transport": call.text("transport"),
        "port": {name: value for name, value in port.items() if value},
        "path": call.text("path"),
        "wrap": call.text("wrap"),
        "env": call.pairs("env"),
        "network": call.text("network"),
        "binds": call.texts("bind"),
        "warm": call.whole("warm"),
        "readiness": {name: value for name, value in ready.items() if value is not None},
    }
    given = {name: value for name, value in found.items() if value}
    return {"command": call.texts("command"), **given}
