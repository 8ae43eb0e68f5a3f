"""Which host users own what Carrel keeps and runs.

As root, bases on disk belong to one unprivileged user of their own, and every sandbox
runs as another; both are numbers that no account has. As an ordinary user everything is
that user's.
"""

from __future__ import annotations

import os
from pathlib import Path

FIRST_UID = 1_900_000_000
"""Above all that distributions, subuid ranges and systemd hand out, below 2^31."""
UIDS = 1_000_000
_SMALL_UIDS = 4096


def uid_range() -> range:
    """The ids that may be used: the first is the store's, the others are for sandboxes.

    In a container whose user namespace does not map the usual range, the upper end of
    what it maps is taken.
    """
    top = 0
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _outside, count = map(int, line.split())
        if inside <= FIRST_UID and inside + count >= FIRST_UID + UIDS:
            return range(FIRST_UID, FIRST_UID + UIDS)
        top = max(top, inside + count)
    if top > _SMALL_UIDS * 2:
        return range(top - _SMALL_UIDS - 2, top - 2)
    return range(os.getuid(), os.getuid() + 1)


def store_uid() -> int:
    """Whom everything in the bases belongs to on disk."""
    return uid_range()[0] if os.geteuid() == 0 else os.geteuid()


def store_gid() -> int:
    return uid_range()[0] if os.geteuid() == 0 else os.getegid()
