"""carrel top: what each space uses, live."""

from __future__ import annotations

import time

from carrel.cli.call import Call
from carrel.cli.layout import table
from carrel.cli.output import flush, is_terminal, put
from carrel.cli.showing import UNCONFINED, runtime_of
from carrel.cli.spec import SECONDS, Option, Verb
from carrel.cli.values import size_text, time_text
from carrel.client.requests import LONG_S, asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Show what each space uses, again and again; Ctrl-C ends it.",
    options=(
        Option("--once", help="Only once."),
        Option("--interval", kind=SECONDS, metavar="TIME", help="Default: 2s."),
        Option("--disk", help="Also what it takes on disk, which takes longer to find."),
    ),
)
HEADS = ("NAME", "STATE", "RUNTIME", "RUNS", "CPU%", "CPU", "MEMORY", "PEAK", "PROCS", "DISK")
INTERVAL_S = 2.0
NEW_SCREEN, OLD_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST = "\x1b[H", "\x1b[J"
LINE_END = "\x1b[K\n"


def run(call: Call) -> int:
    once = call.flag("once") or call.json or not is_terminal(1)
    if once:
        spaces, usage = _look(call)
        if call.json:
            call.show({"usage": usage})
        else:
            call.say(_table(spaces, usage, {}, 0.0))
        return 0
    put(NEW_SCREEN)
    try:
        _live(call, call.number("interval") or INTERVAL_S)
    finally:
        put(OLD_SCREEN)
        flush()
    return 0


def _live(call: Call, interval_s: float) -> None:
    before: dict[str, float] = {}
    looked_at = 0.0
    while True:
        spaces, usage = _look(call)
        now = time.monotonic()
        text = _table(spaces, usage, before, now - looked_at if looked_at else 0.0)
        before = {one["space"]: one["cpu_seconds"] or 0.0 for one in usage}
        looked_at = now
        put(HOME + text.replace("\n", LINE_END) + LINE_END + REST)
        flush()
        time.sleep(interval_s)


def _look(call: Call) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    query = [("disk", call.flag("disk"))]
    usage = call.link.json(asking("/v1/usage", query, timeout_s=LONG_S))["usage"]
    states = [("limit", 1000), ("state", "ready"), ("state", "running")]
    spaces = call.link.json(asking("/v1/spaces", states))["spaces"]
    return {space["id"]: space for space in spaces}, usage


def _table(
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
    return table(HEADS, rows, shrink=(0,), marked=UNCONFINED)
