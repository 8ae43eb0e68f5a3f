"""Opens servers' own folders from outside. What runs in their sandboxes may have put anything in
their place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from carrel.linux.openat2 import open_beneath

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_REACHED = 2
"""A sandbox may exchange that many names at the end of such a path: in a space also the folder
that holds those of all its servers."""


def open_state(path: Path) -> int:
    """Opens the folder as an O_PATH descriptor. Raises OSError, also for a link."""
    here = os.open(path.parents[_REACHED - 1], _FOLDER)
    for name in path.parts[-_REACHED:]:
        try:
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def read_beneath(root: int, path: str, most: int) -> bytes | None:
    """The content of a file below the folder, without following links. None when it is missing, too
    large or no file: a pipe would keep us waiting."""
    try:
        found = open_beneath(root, os.fsencode(path), follow=False)
    except OSError:
        return None
    try:
        about = os.fstat(found)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            return None
        with open(f"/proc/self/fd/{found}", "rb") as file:
            return file.read(most)
    except OSError:
        return None
    finally:
        os.close(found)
