"""How spaces, runs and their parts are shown to people."""

from __future__ import annotations

import time

from carrel.cli.layout import clean, loud
from carrel.cli.values import seconds_of, size_text, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

UNCONFINED = " !"
"""Behind the name of a runtime that confines nothing."""
_SIZES = {"memory_bytes": "memory", "disk_bytes": "disk", "file_bytes": "file size"}
_COUNTS = {"cpus": "cpus", "pids": "processes", "open_files": "open files"}


def runtime_of(space: dict[str, Any]) -> str:
    """Loud when nothing confines what runs there."""
    return f"{space['runtime']}{'' if confined(space) else UNCONFINED}"


def confined(space: dict[str, Any]) -> bool:
    """While it is created nobody knows; `auto` never takes one that does not confine."""
    return space.get("confined") is not False


def project_of(space: dict[str, Any]) -> str:
    project = space["project"]
    place = project["location"] or f"({project['kind']})"
    return f"{place}@{project['ref']}" if project.get("ref") else str(place)


def age_of(moment: str | None) -> str:
    return "-" if not moment else time_text(time.time() - seconds_of(moment))


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values below one another; what is empty is left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in shown)


def describe_space(space: dict[str, Any]) -> str:
    problem = space.get("problem")
    runtime = space["runtime"] if confined(space) else loud("process !  nothing confines it")
    pairs = [
        ("name", space["name"]),
        ("id", space["id"]),
        ("state", space["state"] + (f" ({n} running)" if (n := space["live_runs"]) else "")),
        ("problem", f"{problem['step']}: {problem['message']}" if problem else ""),
        ("hint", problem["hint"] if problem else ""),
        ("project", clean(project_of(space))),
        ("base", space["base"]),
        ("runtime", runtime),
        ("network", space["network"]),
        ("files", f"{clean(space['path'])} ({space['driver']})" if space["path"] else ""),
        ("tier", space["tier"]),
        ("limits", limits_text(space)),
        ("labels", clean(_pairs(space["labels"]))),
        ("variables", clean(_pairs(space["env"]))),
        ("goes", retention_text(space["retention"])),
        ("restored", space["restored_from"]),
        ("is for", clean(space["description"])),
        ("agent", agent_text(space)),
        ("servers", clean("; ".join(map(server_text, space.get("mcp", ()))))),
        ("made by", space["parent"]),
        ("created", f"{space['created_at']} ({age_of(space['created_at'])} ago)"),
        ("last used", f"{age_of(space['active_at'])} ago"),
        ("stopped", space["stopped_at"] or ""),
        ("removed", space["removed_at"] or ""),
    ]
    pairs += [("not covered" if at == 0 else "", gap) for at, gap in enumerate(space["uncovered"])]
    width = max(len(name) for name, value in pairs if value)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs if value)


def agent_text(space: dict[str, Any]) -> str:
    """Which, what it does, and what it has used."""
    if not space.get("agent"):
        return ""
    spent = space["spent"]
    words = [f"{clean(space['agent'])}, {space['activity']}"]
    if spent["turns"]:
        tokens = f"{spent['input_tokens']:,} in, {spent['output_tokens']:,} out"
        words.append(f"{spent['turns']} turns, tokens {tokens}")
    if spent["cost_usd"]:
        words.append(f"${spent['cost_usd']:.2f}")
    return "; ".join(words)


def server_text(one: dict[str, Any]) -> str:
    """An MCP server of a space, and what is wrong with it."""
    words = f"{one['name']}, {one['state'] or 'not there'}"
    return f"{words} ({one['problem']['message']})" if one["problem"] else words


def limits_text(space: dict[str, Any]) -> str:
    limits = space["limits"]
    words = [f"{_SIZES[key]} {size_text(limits[key])}" for key in _SIZES if limits.get(key)]
    words += [f"{_COUNTS[key]} {limits[key]:g}" for key in _COUNTS if limits.get(key)]
    if limits.get("wall_seconds"):
        words.append(f"time {time_text(limits['wall_seconds'])}")
    loose = [one["kind"] for one in space["enforced"] if not one["enforced"]]
    if loose:
        words.append(f"not enforced here: {', '.join(loose)}")
    return ", ".join(words)


def retention_text(retention: dict[str, Any]) -> str:
    words = []
    for key, what in (("ttl_s", "removed"), ("idle_s", "stopped when idle"), ("keep_s", "")):
        if retention.get(key):
            rest = " after" if what else "removed so long after a stop:"
            words.append(f"{what}{rest} {time_text(retention[key])}")
    if retention.get("discard"):
        words.append("changes and all")
    return ", ".join(words)


def exit_text(run: dict[str, Any]) -> str:
    """How it ended, in a word."""
    ended = run.get("exit")
    if ended is None:
        return run["failure_code"] if run["state"] == "failed" else "-"
    if ended["reason"] == "exited":
        return str(ended["code"])
    number = f" {ended['signal']}" if ended["reason"] == "signaled" else ""
    return f"{ended['reason']}{number}"


def span_text(run: dict[str, Any]) -> str:
    """How long it ran, or has been running."""
    ended = run.get("exit")
    if ended is None:
        return "-" if run["state"] == "failed" else age_of(run["created_at"])
    return time_text(seconds_of(ended["ended_at"]) - seconds_of(ended["started_at"]))


def command_text(run: dict[str, Any]) -> str:
    return clean(run["display_command"])


def describe_run(run: dict[str, Any]) -> str:
    ended = run.get("exit") or {}
    return fields(
        [
            ("id", run["id"]),
            ("space", run["space"]),
            ("command", command_text(run)),
            ("folder", clean(run["cwd"])),
            ("state", run["state"]),
            ("exit", exit_text(run) if ended else ""),
            ("failure", run["failure"]),
            ("terminal", "yes" if run["terminal"] else ""),
            ("process", str(run["pid"] or "")),
            ("created", f"{run['created_at']} ({age_of(run['created_at'])} ago)"),
            ("time", span_text(run)),
            ("cpu", time_text(ended.get("cpu_seconds")) if ended else ""),
            ("memory", size_text(ended.get("max_rss_bytes")) if ended else ""),
        ]
    )


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
