"""Whether an ordinary user has further ids here that can be used: found by trying it once."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys

from carrel.linux.ids import RANGE
from carrel.linux.subids import GROUPS, USERS, SubIds, granted, listed

_TRY_S = 20.0
"""Two small programs and an interpreter; the rest is for a loaded machine."""
_known: dict[int, str] = {}
"""Why this user has none here, as it was found out by trying; empty: it has."""


def usable() -> SubIds | None:
    """As `granted`, where it works. What failed is tried again when something has changed."""
    found = granted()
    return found if found is not None and not why_not() else None


def why_not() -> str:
    """In a sentence, with what to do; empty: nothing is missing."""
    found = granted()
    if found is None and listed() is not None:
        return _NO_PROGRAMS
    if found is None:
        first = _free_range()
        return _NOT_GRANTED.format(user=_user(), first=first, last=first + RANGE - 1)
    if not _known.get(found.uid, "-"):
        return ""
    _known[found.uid] = _try()
    return _known[found.uid]


_NO_PROGRAMS = (
    "You have a range of ids, but not newuidmap and newgidmap: sudo apt-get install uidmap"
)
_NOT_GRANTED = (
    "You have no range of ids: sudo usermod --add-subuids {first}-{last} --add-subgids "
    "{first}-{last} {user}"
)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _free_range() -> int:
    """Above those of all others."""
    last = 100_000
    for file in (USERS, GROUPS):
        with contextlib.suppress(OSError, ValueError), open(file, encoding="utf-8") as lines:
            for line in lines:
                _, first, count = line.strip().split(":")
                last = max(last, int(first) + int(count))
    return last


def _try() -> str:
    code = "from carrel.linux import subids; subids.enter()"
    argv = [sys.executable, "-P", "-c", code]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_TRY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Your range of ids cannot be used: {error}."
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
    return f"Your range of ids cannot be used: {last[:300].removeprefix('OSError: ')}."
