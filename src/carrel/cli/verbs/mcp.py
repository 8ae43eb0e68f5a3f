"""carrel mcp: the tools of this space, or of all spaces, for agents and editors."""

from __future__ import annotations

import os

from carrel.cli.call import Call
from carrel.cli.spec import MANY, TEXT, Option, Verb

TOKEN = "CARREL_MCP_TOKEN"

VERB = Verb(
    "Serve Carrel's tools to an agent or editor, by the Model Context Protocol.",
    details="On standard input and output, unless --http says where. In a space it speaks for"
    " that space, elsewhere it manages spaces: docs/mcp.md.",
    options=(
        Option("--http", kind=TEXT, metavar="HOST:PORT", help="Over HTTP, at /mcp; port 0: any."),
        Option("--token", kind=TEXT, metavar="TOKEN", help=f"Clients need it; or {TOKEN}."),
        Option("--allow-host", kind=MANY, metavar="NAME", help="Another name of this machine."),
    ),
)


def run(call: Call) -> int:
    data, url, autostart = call.text("data"), call.text("url"), not call.flag("no_start")
    if not call.text("http"):
        from carrel.mcp import front

        front.serve(data=data, url=url, autostart=autostart)
        return 0
    from carrel.mcp.addressing import Http

    token = call.text("token") or os.environ.get(TOKEN, "")
    http = Http.at(call.text("http"), token, call.texts("allow_host"))
    from carrel.mcp.serving import serve

    serve(data=data, url=url, autostart=autostart, client=http)
    return 0
