"""How a command ended: what is written down of it, and how clients are told."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from typing import Any

Use = dict[str, Any]


def exit_record(status: int, use: Use, reason: str, started_at: float) -> dict[str, Any]:
    """`reason` is empty when nobody but the command itself ended it."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return {
        "reason": reason or ("exited" if number is None else "signaled"),
        "code": None if number is not None else os.WEXITSTATUS(status),
        "signal": number,
        "started_at": started_at,
        "ended_at": time.time(),
        "cpu_seconds": use["cpu"],
        "max_rss_bytes": use["rss"],
    }


def lost_record(started_at: float) -> dict[str, Any]:
    """Somebody else's child: that it ended can be seen, but not how."""
    return {
        "reason": "lost",
        "code": None,
        "signal": None,
        "started_at": started_at,
        "ended_at": time.time(),
        "cpu_seconds": 0.0,
        "max_rss_bytes": 0,
    }


def was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def tell(descriptor: int, message: dict[str, Any]) -> None:
    # A client that is gone finds it in the exit file.
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(message).encode() + b"\n")


def use_of(usage: resource.struct_rusage) -> Use:
    return {"cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss * 1024}


def count_kills(source: list[str] | None) -> int:
    """How often the kernel killed something of the sandbox for want of memory."""
    if source is None:
        return 0
    path, key = source
    try:
        with open(path) as file:
            pairs = dict(line.split()[:2] for line in file if len(line.split()) >= 2)
    except OSError:
        return 0
    return int(pairs.get(key, 0))
