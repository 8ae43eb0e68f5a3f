"""The own folders of servers, opened from outside. What runs in their sandboxes may have put
anything in their place."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_REACHED = 2
"""A sandbox may exchange that many names at the end of such a path: in a space also the folder
that holds those of all its servers."""


def open_state(path: Path) -> int:
    """An O_PATH descriptor. Raises OSError, also for a link."""
    here = os.open(path.parents[_REACHED - 1], _FOLDER)
    for name in path.parts[-_REACHED:]:
        try:
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here
