"""carrel instance run: an MCP server for as long as this runs, and its client's configuration."""

from __future__ import annotations

import json
import os
import select
import stat
import time

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import flush
from carrel.cli.spec import Option, Verb
from carrel.cli.terminal import STOP_SIGNALS, Signals
from carrel.cli.verbs.instances import (
    KEEP_OPTIONS,
    LIVE,
    SERVER_AND_PROJECT,
    START_OPTIONS,
    TOOL_READY,
    content,
    release,
    start,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LEASE_S = 60.0
BEAT_S = 15.0
"""A daemon that is restarted meanwhile may miss a few."""
FILES = {
    "claude": ".mcp.json",
    "codex": ".codex/config.toml",
    "vscode": ".vscode/mcp.json",
    "cursor": ".cursor/mcp.json",
    "zed": "settings.json",
}
"""The file to which the configuration of each client belongs."""
FORMATS = (*FILES, "json")


@Verb(
    *SERVER_AND_PROJECT,
    Option(f"--format {'|'.join(FORMATS)}", "Choose the client (claude)."),
    *START_OPTIONS,
    *KEEP_OPTIONS,
    TOOL_READY,
)
def instance_run(call: VerbCall) -> int:
    """Start an MCP server, print its client's configuration, and keep it until this ends.

    The server is released at Ctrl-C, or at the end of standard input if that is a pipe.
    --json is the same as --format json.
    """
    format = "json" if call.json else call.text("format") or "claude"
    wanted = {**content(call), "lease": LEASE_S}
    if call.place.socket:
        wanted["owner_pid"] = os.getpid()
    # Whoever loses patience until it is ready ends us, and the daemon gives it up.
    instance = start(call, wanted)
    name = instance["instance_id"]
    try:
        with Signals(STOP_SIGNALS) as signals:
            call.say(config(format, instance))
            flush()
            head = f"For {FILES[format]}. " if format in FILES else ""
            call.note(f"{head}{name} is ready, and there until Ctrl-C.")
            return _hold(call, name, signals)
    finally:
        call.note(f"{name}: {release(call, instance)}.")


def _hold(call: VerbCall, instance_id: str, signals: Signals) -> int:
    poll = select.poll()
    poll.register(signals.descriptor, select.POLLIN)
    if _is_pipe(0):
        poll.register(0, select.POLLIN)
    beat_at = time.monotonic() + BEAT_S
    while True:
        ready = dict(poll.poll(max(0.0, beat_at - time.monotonic()) * 1000))
        if signals.descriptor in ready and signals.take():
            return 0
        if 0 in ready and not os.read(0, 65536):
            return 0
        if time.monotonic() >= beat_at:
            beat_at = time.monotonic() + BEAT_S
            if not _is_live(call, instance_id):
                return 1


def _is_live(call: VerbCall, instance_id: str) -> bool:
    """Says it is wanted. A daemon that is not there now may come back before the lease ends."""
    from carrel.domain.errors import CarrelError, DaemonUnavailable

    try:
        found = call.ask("instances.heartbeat", instance_id)
    except DaemonUnavailable:
        return True
    except CarrelError as error:
        call.note(str(error))
        return False
    if found["state"] in LIVE:
        return True
    problem = found["problem"]
    call.note(f"{instance_id} has ended{': ' + problem['message'] if problem else '.'}")
    return False


def _is_pipe(descriptor: int) -> bool:
    """One that somebody holds open for us; a terminal, a file or nothing says nothing."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


# Configuration


def config(format: str, instance: dict[str, Any]) -> str:
    """The configuration with which a client reaches an instance, as that client writes it.
    `MessageInvalid` when it does not speak as the server does."""
    if format == "json":
        return json.dumps(instance, indent=2)
    if format == "codex":
        return _codex(instance)
    entry: dict[str, Any] = {"url": instance["url"]}
    if headers := _headers(instance):
        entry["headers"] = headers
    if format in ("claude", "vscode"):
        entry = {"type": "sse" if instance["transport"] == "sse" else "http", **entry}
    member = {"vscode": "servers", "zed": "context_servers"}.get(format, "mcpServers")
    return json.dumps({member: {instance["server"]: entry}}, indent=2)


def _codex(instance: dict[str, Any]) -> str:
    if instance["transport"] == "sse":
        raise invalid(
            "Codex does not speak SSE.", hint="Use `carrel instance connect` as its command."
        )
    # Strings of JSON are strings of TOML as well.
    lines = [f"[mcp_servers.{instance['server']}]", f"url = {json.dumps(instance['url'])}"]
    for name, value in _headers(instance).items():
        lines.append(f"http_headers = {{ {json.dumps(name)} = {json.dumps(value)} }}")
    return "\n".join(lines)


def _headers(instance: dict[str, Any]) -> dict[str, str]:
    token = instance.get("token")
    return {"Authorization": f"Bearer {token}"} if token else {}
