"""Runs in the sandbox while the host starts commands in it: sent as source to Python.

A process on its way in (or standing ready there) is still a copy of the launcher: it has the
launcher's memory, its program and, for a moment, its rights. Tries to get at each of them
until something comes in on standard input, then tells what it saw.
"""

from __future__ import annotations

import json
import os
import select

WAYS = ("mem", "environ", "maps", "auxv")
"""To open `mem` needs the right to trace. Tracing itself is not tried: who had by then become
a command could be traced, and would not end before its tracer let go."""
LINKS = ("exe", "cwd", "root", "fd/0")
COPIES = b"\0-S\0"
"""Of the launcher's arguments, and of nothing else in here."""


def is_a_copy(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return COPIES in file.read()
    except OSError:
        return False


def got_at(pid: str) -> list[str]:
    """What could be opened of it."""
    found = []
    for way in WAYS:
        try:
            os.close(os.open(f"/proc/{pid}/{way}", os.O_RDONLY))
            found.append(way)
        except OSError:
            continue
    for link in LINKS:
        try:
            os.readlink(f"/proc/{pid}/{link}")
            found.append(link)
        except OSError:
            continue
    return found


def main() -> None:
    seen: set[str] = set()
    got: dict[str, list[str]] = {}
    print("ready", flush=True)
    while not select.select([0], [], [], 0)[0]:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if not is_a_copy(pid):
                continue
            seen.add(pid)
            found = got_at(pid)
            # It may have become its command in between: then it is none any more.
            if found and is_a_copy(pid):
                got[pid] = found
    print(json.dumps({"seen": len(seen), "got": got}))


if __name__ == "__main__":
    main()
