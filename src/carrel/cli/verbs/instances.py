"""Instances: dedicated MCP servers, one process for each client; and the servers there are."""

from __future__ import annotations

import os

from carrel.cli.call import VerbCall, each, invalid
from carrel.cli.output import AnswerTable, clean, fields, loud, shown, tell
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.values import age_of, time_text
from carrel.cli.verbs.spaces import UNCONFINED, limits_text
from carrel.client.http import operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIVE = ("starting", "ready", "restarting")
INSTANCE = Argument("instance")
SERVER_AND_PROJECT = (Argument("server"), Argument("project", required=False, completes="files"))
NETWORK = ("none", "open")
START_OPTIONS = (
    Option("--space SPACE", "Start it in this space."),
    Option("--memory SIZE", "Limit its memory (512M, 4G).", to="limits.memory_bytes"),
    Option(
        f"--network {'|'.join(NETWORK)}",
        "Choose its network; default: the server's own.",
        to="network",
    ),
    Option(
        "--unconfined", "Do not confine it: it may do all that you may.", to="confined", value=False
    ),
    Option("-e, --env K=V", "Set a variable for the server.", to="env"),
)
"""Options of every verb that starts an instance."""
TOOL_READY = Option(
    "--tool-ready TOOL[=JSON]", "Count it as ready when it has answered this tool call."
)
KEEP_OPTIONS = (
    Option(
        "--restart",
        "Start it again, under the same id, when it crashes.",
        to="restart",
        value="on-failure",
    ),
    Option(
        "--share",
        "Share it with others who ask for this server and project with --share.",
        to="share",
        value="project",
    ),
)


# What is asked for


def content(call: VerbCall) -> dict[str, Any]:
    """The instance as the API takes it; what was not said is left to the daemon."""
    wanted = {"server": call.text("server"), **_place(call), **call.content()}
    if tool := _tool_call(call.text("tool_ready")):
        wanted["tool_ready"] = tool
    return wanted


def _place(call: VerbCall) -> dict[str, str]:
    """A path is made absolute: the daemon's current folder is another."""
    space, project = call.text("space"), call.text("project")
    if space and project:
        raise invalid(
            "An instance is for a project or for a space.", hint="Leave PROJECT or --space out."
        )
    if space:
        return {"space_id": space}
    project = project or "."
    path = os.path.expanduser(project) if project.startswith("~/") else project
    return {"project_path": os.path.abspath(path)}


def _tool_call(text: str) -> dict[str, Any] | None:
    """Reads NAME or NAME=JSON. `MessageInvalid`."""
    if not text:
        return None
    name, equals, arguments = text.partition("=")
    from carrel.cli.verbs.hub import payload_of

    return {"name": name, "arguments": payload_of(arguments) if equals else {}}


def start(call: VerbCall, wanted: dict[str, Any]) -> dict[str, Any]:
    """Starts an instance, which is ready when this returns; tells what one should know of it."""
    answer = call.link.ask(operation("instances.start", content=wanted))
    if answer.head.status >= 400 and not call.json:
        _tell_output(answer.body)
    found: dict[str, Any] = answer.json()
    if found["confined"] is False:
        call.note(loud("unconfined !") + " Nothing confines this server.")
    for note in found["notes"]:
        call.note(f"{loud('note !')} {clean(note)}")
    return found


def _tell_output(body: bytes) -> None:
    """Tells what a server wrote that failed, before the sentence that says so."""
    import json

    try:
        tell(shown(str(json.loads(body).get("output") or ""), 2))
    except (ValueError, AttributeError):
        # The error itself says what came instead.
        return


def release(call: VerbCall, instance: dict[str, Any]) -> str:
    """Releases an instance that we started; a share of it that somebody else has stays."""
    return _release(call, instance["instance_id"], instance.get("hold") or "")


def _release(call: VerbCall, instance_id: str, hold: str) -> str:
    """`hold`: as its start was answered; nobody else's goes then."""
    query = [("hold", hold)] if hold else []
    return str(call.ask("instances.release", instance_id, query=query)["status"])


def read_log(call: VerbCall, instance_id: str, limit: int | None) -> str:
    """The last bytes that a server wrote."""
    query = [] if limit is None else [("limit", limit)]
    answer = call.link.ask(operation("instances.logs", instance_id, query=query)).check()
    return answer.body.decode("utf-8", "replace")


# How instances and servers are shown


def _runtime(instance: dict[str, Any]) -> str:
    mark = UNCONFINED if instance["confined"] is False else ""
    return f"{instance['runtime'] or '-'}{mark}"


INSTANCES = AnswerTable(
    "instances",
    {
        "ID": "instance_id",
        "SERVER": "server",
        "STATE": "state",
        "AGE": lambda one: age_of(one["created_at"]),
        "RUNTIME": _runtime,
        "FOR": lambda one: one["project_path"] or one["space_id"],
        "URL": lambda one: one["url"] or one["socket"] or "-",
    },
    shrink=("FOR", "URL"),
    marked=UNCONFINED,
    empty="There are no instances.",
)


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


# Verbs

instance_show = Verb(
    INSTANCE,
    help="Show one instance: its address, what confines it, why it ended.",
    ask="instances.show",
    text=describe,
)


@Verb(
    *SERVER_AND_PROJECT,
    Option("--ttl TIME", "End it this long after it was ready.", to="ttl"),
    Option("--idle TIME", "End it after this long without a client.", to="idle_timeout"),
    Option("--lease TIME", "End it when no heartbeat came for this long.", to="lease"),
    Option("--survive", "Keep it running when the daemon is stopped.", to="survive"),
    *START_OPTIONS,
    *KEEP_OPTIONS,
    TOOL_READY,
)
def instance_start(call: VerbCall) -> None:
    """Start an MCP server for one client: for a project, or in a space.

    Without PROJECT it is for the current folder. It runs until `carrel instance stop`, unless
    --ttl, --idle or --lease end it earlier. Its client sends the token: Authorization: Bearer
    TOKEN.
    """
    call.answer(start(call, content(call)), describe)


@Verb(
    Option("-a, --all", "List ended ones too."),
    Option("--space SPACE", "List those in this space."),
)
def instance_ls(call: VerbCall) -> None:
    """List instances."""
    query = [("space", call.text("space"))] if call.text("space") else []
    query += [("ended", "true")] if call.flag("all") else []
    call.answer(call.ask("instances.list", query=query), INSTANCES)


@Verb(INSTANCE, Option("--limit SIZE", "Show this much of it (64K)."))
def instance_logs(call: VerbCall) -> None:
    """Print the end of an instance's output."""
    name = call.text("instance")
    text = read_log(call, name, call.whole("limit"))
    if call.json:
        call.show({"instance_id": name, "logs": text})
    elif text:
        call.say(shown(text.removesuffix("\n")))


@Verb(
    Argument("instance", many=True),
    Option("--hold HOLD", "Give up this share of a shared one."),
)
def instance_stop(call: VerbCall) -> int:
    """Release instances; a shared one ends when the last client releases it."""

    def work(instance: str) -> Any:
        status = _release(call, instance, call.text("hold"))
        if not call.json:
            call.say(f"{instance} {status}")
        return {"instance_id": instance, "status": status}

    return each(call, call.texts("instance"), work, names=False)


def _where(server: dict[str, Any]) -> str:
    return str(server["where"] if server["installed"] else f"missing: {server['install'] or '-'}")


instance_servers = Verb(
    help="List the MCP servers that can be started as instances.",
    ask="servers.list",
    text=AnswerTable(
        "servers",
        {
            "SERVER": "name",
            "TRANSPORT": "transport",
            "FROM": "source",
            "WARM": "warm",
            "WHERE, OR HOW TO INSTALL": _where,
        },
        shrink=("WHERE, OR HOW TO INSTALL",),
    ),
)


@Verb(
    Argument("name"),
    Argument("command", many=True),
    Option(
        "--transport streamable-http|sse|stdio",
        "Choose how it speaks; stdio is offered over HTTP too.",
        to="transport",
    ),
    Option(
        "--port-by socket|file|process|log|reserved",
        "Choose how its port is found; otherwise by what it listens on.",
        to="port.by",
    ),
    Option(
        "--port-line PATTERN",
        "Read the port from its log: a group of this pattern.",
        to="port.line",
    ),
    Option("--path PATH", "Set the path of its address (/mcp).", to="path"),
    Option(
        "--wrap uvicorn|stdio",
        "Wrap it; uvicorn gives a Python server our socket and a token.",
        to="wrap",
    ),
    Option("-e, --env K=V", "Set a variable.", to="env"),
    Option(f"--network {'|'.join(NETWORK)}", "Choose what it may reach.", to="network"),
    Option("--bind PATH...", "Show this path in its sandbox too.", to="binds"),
    Option("--warm N", "Keep this many started in advance.", to="warm"),
    Option("--timeout TIME", "Wait this long for it to be ready (60s).", to="readiness.timeout_s"),
    TOOL_READY,
)
def instance_add(call: VerbCall) -> None:
    """Add an MCP server, by the command that starts it.

    Placeholders in the command and in variables are filled in: {project}, {state}, {host},
    {port}, {port_file}, {fd}. Put -- before the command.
    """
    name, command = call.text("name"), call.texts("command")
    wanted = {"command": command, **call.content()}
    if call.text("port_line"):
        wanted["port"].setdefault("by", "log")
    if tool := _tool_call(call.text("tool_ready")):
        wanted.setdefault("readiness", {})["tool"] = tool
    answer = call.ask("servers.put", name, content=wanted)
    call.answer(answer)
    installed = next((one["installed"] for one in answer["servers"] if one["name"] == name), True)
    if not call.json and not installed:
        call.note(f"{command[0]} is not installed here yet.")
