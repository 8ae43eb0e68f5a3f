"""carrel codesmith: an MCP server that has something made."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import CHOICE, PAIRS, SECONDS, TEXT, Option, Verb

VERB = Verb(
    "Serve the tool `generate` to an agent or editor, by the Model Context Protocol.",
    details="On standard input and output, until that ends: docs/codesmith.md.",
    options=(
        Option("--agent", kind=TEXT, metavar="NAME", help="When a call names none."),
        Option("--model", kind=TEXT, help="When a call names none."),
        Option("--timeout", kind=SECONDS, metavar="TIME", help="Agents are ended after so long."),
        Option("--tier", kind=CHOICE, choices=("minimal", "default", "large"), help="Of spaces."),
        Option("-e", "--env", kind=PAIRS, metavar="K=V", help="A variable for the agents."),
    ),
)


def run(call: Call) -> int:
    from carrel.mcp.codesmith.serving import serve

    usual = {
        "frontend": call.text("agent"),
        "model": call.text("model"),
        "timeout_s": call.number("timeout"),
        "tier": call.text("tier"),
        "env": call.pairs("env"),
    }
    serve(
        data=call.text("data"),
        url=call.text("url"),
        autostart=not call.flag("no_start"),
        usual={name: value for name, value in usual.items() if value},
    )
    return 0
