"""carrel instance run: an MCP server for as long as this runs, and the configuration for its
client."""

from __future__ import annotations

import os
import select
import stat
import time

from carrel.cli import instancing
from carrel.cli.call import Call
from carrel.cli.mcp_configs import FILES, FORMATS, config
from carrel.cli.output import flush
from carrel.cli.spec import CHOICE, Option, Verb
from carrel.cli.terminal import Signals
from carrel.client.requests import instance_path, telling

LEASE_S = 60.0
BEAT_S = 15.0
"""A daemon that is restarted meanwhile may miss a few."""
VERB = Verb(
    "Start an MCP server, print its client's configuration, and keep it until this ends.",
    *instancing.WHERE,
    details=(
        "It is released at Ctrl-C, or when what is read on standard input ends, if that is a "
        "pipe. --json is --format json."
    ),
    options=(
        Option("--format", kind=CHOICE, choices=FORMATS, help="For which client (claude)."),
        *instancing.PLACING,
        *instancing.KEEPING,
        instancing.TOOL_READY,
    ),
)


def run(call: Call) -> int:
    format = "json" if call.json else call.text("format") or "claude"
    wanted = {**instancing.content(call), "lease": LEASE_S}
    if call.place.socket:
        wanted["owner_pid"] = os.getpid()
    # Whoever loses patience until it is ready ends us, and the daemon gives it up.
    instance = instancing.start(call, wanted)
    name = instance["instance_id"]
    try:
        with Signals(instancing.STOPPING) as signals:
            call.say(config(format, instance))
            flush()
            _tell(call, name, format)
            return _hold(call, name, signals)
    finally:
        call.note(f"{name}: {instancing.let_go(call, instance)}.")


def _tell(call: Call, name: str, format: str) -> None:
    where = FILES.get(format, "")
    head = f"For {where}. " if where else ""
    call.note(f"{head}{name} is ready, and there until Ctrl-C.")


def _hold(call: Call, instance_id: str, signals: Signals) -> int:
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


def _is_live(call: Call, instance_id: str) -> bool:
    """Says it is wanted. A daemon that is not there now may come back before the lease ends."""
    from carrel.domain.errors import CarrelError, DaemonUnavailable

    try:
        request = telling("POST", instance_path(instance_id, "heartbeat"), again=True)
        found = call.link.json(request)
    except DaemonUnavailable:
        return True
    except CarrelError as error:
        call.note(str(error))
        return False
    if found["state"] in instancing.LIVE:
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
