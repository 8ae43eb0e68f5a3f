"""Dedicated MCP servers from the command line: what is asked for, and how they are shown."""

from __future__ import annotations

import os
import signal

from carrel.cli.call import Call
from carrel.cli.layout import clean, loud
from carrel.cli.output import tell
from carrel.cli.showing import UNCONFINED, age_of, fields, limits_text
from carrel.cli.spec import CHOICE, FILES, PAIRS, SECONDS, SIZE, SPACES, TEXT, Argument, Option
from carrel.cli.values import time_text
from carrel.client.requests import LONG_S, Request, instance_path, telling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIVE = ("starting", "ready", "restarting")
STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""They end who holds an instance, after it was released."""
LAST_BYTES = 4096
"""Of what a server wrote, when it failed."""

WHERE = (Argument("server"), Argument("project", required=False, completes=FILES))
PLACING = (
    Option("--space", kind=TEXT, metavar="SPACE", completes=SPACES, help="In this space."),
    Option("--memory", kind=SIZE, metavar="SIZE", help="At most so much memory (512M, 4G)."),
    Option("--network", kind=CHOICE, choices=("none", "open"), help="Default: the server's own."),
    Option("--unconfined", help="Nothing holds it: it may do all that you may."),
    Option("-e", "--env", kind=PAIRS, metavar="K=V", help="A variable for the server."),
)
"""Of every verb that starts one."""
TOOL_READY = Option(
    "--tool-ready",
    kind=TEXT,
    metavar="TOOL[=JSON]",
    help="It is ready when it has answered this call.",
)
LASTING = (
    Option("--ttl", kind=SECONDS, metavar="TIME", help="Ends so long after it was ready."),
    Option("--idle", kind=SECONDS, metavar="TIME", help="Ends after so long without a client."),
    Option(
        "--lease", kind=SECONDS, metavar="TIME", help="Ends when no heartbeat came for so long."
    ),
    Option("--survive", help="Goes on when the daemon is stopped."),
)
KEEPING = (
    Option("--restart", help="Started again, under the same id, when it crashes."),
    Option("--share", help="With who else asks for this server and project by --share."),
)


def content(call: Call) -> dict[str, Any]:
    """What is asked for, as the API takes it; what was not said is left to the daemon."""
    memory = call.whole("memory")
    found: dict[str, Any] = {
        "ttl": call.number("ttl"),
        "idle_timeout": call.number("idle"),
        "lease": call.number("lease"),
        "limits": None if memory is None else {"memory_bytes": memory},
        "network": call.text("network") or None,
        "confined": False if call.flag("unconfined") else None,
        "env": call.pairs("env") or None,
        "survive": call.flag("survive") or None,
        "restart": "on-failure" if call.flag("restart") else None,
        "share": "project" if call.flag("share") else None,
        "tool_ready": tool_of(call.text("tool_ready")),
    }
    given = {name: value for name, value in found.items() if value is not None}
    return {"server": call.text("server"), **_place(call), **given}


def _place(call: Call) -> dict[str, str]:
    """A path is made absolute: the daemon stands elsewhere."""
    space, project = call.text("space"), call.text("project")
    if space and project:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "An instance is for a project or for a space.", hint="Leave PROJECT or --space out."
        )
    if space:
        return {"space_id": space}
    project = project or "."
    path = os.path.expanduser(project) if project.startswith("~/") else project
    return {"project_path": os.path.abspath(path)}


def tool_of(text: str) -> dict[str, Any] | None:
    """NAME or NAME=JSON. `MessageInvalid`."""
    if not text:
        return None
    name, equals, given = text.partition("=")
    from carrel.cli.speaking import payload_of

    return {"name": name, "arguments": payload_of(given) if equals else {}}


def start(call: Call, wanted: dict[str, Any]) -> dict[str, Any]:
    """Ready when this returns; what one should know of it was told."""
    answer = call.link.ask(telling("POST", "/v1/instances", wanted, timeout_s=LONG_S))
    if answer.head.status >= 400 and not call.json:
        _tell_output(answer.body)
    found: dict[str, Any] = answer.json()
    warn(call, found)
    return found


def _tell_output(body: bytes) -> None:
    """What a server wrote that failed, before the sentence that says so."""
    import json

    try:
        tell(str(json.loads(body).get("output") or ""))
    except (ValueError, AttributeError):
        # The error itself says what came instead.
        return


def warn(call: Call, instance: dict[str, Any]) -> None:
    if instance["confined"] is False:
        call.note(loud("unconfined !") + " Nothing confines this server.")
    for note in instance["notes"]:
        call.note(f"{loud('note !')} {clean(note)}")


def release(call: Call, instance_id: str, hold: str = "") -> str:
    """`hold`: as its start was answered; nobody else's goes then."""
    query = [("hold", hold)] if hold else []
    request = Request("DELETE", instance_path(instance_id), query, timeout_s=LONG_S, again=True)
    return str(call.link.json(request)["status"])


def let_go(call: Call, instance: dict[str, Any]) -> str:
    """One that we started."""
    return release(call, instance["instance_id"], instance.get("hold") or "")


def last_lines(call: Call, instance_id: str) -> str:
    query = [("limit", LAST_BYTES)]
    answer = call.link.ask(Request("GET", instance_path(instance_id, "logs"), query)).check()
    return answer.body.decode("utf-8", "replace")


def where_of(instance: dict[str, Any]) -> str:
    return clean(instance["project_path"] or instance["space_id"])


def runtime_of(instance: dict[str, Any]) -> str:
    confined = instance["confined"] is not False
    return f"{instance['runtime'] or '-'}{'' if confined else UNCONFINED}"


def describe(instance: dict[str, Any]) -> str:
    problem = instance["problem"]
    unconfined = loud(f"{instance['runtime']} !  nothing confines it")
    pairs = [
        ("id", instance["instance_id"]),
        ("server", instance["server"]),
        ("state", instance["state"] + _restarts(instance)),
        ("problem", clean(problem["message"]) if problem else ""),
        ("hint", clean(problem["hint"]) if problem else ""),
        ("url", instance["url"]),
        ("token", instance.get("token") or ""),
        ("socket", clean(instance["socket"])),
        ("in the space", instance["inside_url"]),
        ("transport", instance["transport"]),
        ("project", clean(instance["project_path"])),
        ("space", instance["space_id"]),
        ("runtime", instance["runtime"] if instance["confined"] is not False else unconfined),
        ("network", instance["network"]),
        ("limits", limits_text(instance)),
        ("process", str(instance["pid"] or "")),
        ("shared by", str(instance["clients"]) if instance["share"] != "none" else ""),
        ("hold", (instance.get("hold") or "") if instance["share"] != "none" else ""),
        ("ends", _ends(instance)),
        ("created", f"{instance['created_at']} ({age_of(instance['created_at'])} ago)"),
        ("ready in", f"{instance['started_in_ms']:.0f} ms ({instance['warmth']})"),
        ("ended", instance["ended_at"] or ""),
    ]
    pairs += [("note", clean(note)) for note in instance["notes"]]
    return fields(pairs)


def _restarts(instance: dict[str, Any]) -> str:
    return f" (started again {count} times)" if (count := instance["restarts"]) else ""


def _ends(instance: dict[str, Any]) -> str:
    names = (
        ("ttl", "after"),
        ("idle_timeout", "when idle for"),
        ("lease", "without heartbeat for"),
    )
    words = [f"{what} {time_text(instance[key])}" for key, what in names if instance[key]]
    return ", ".join(words) or "when it is released"
