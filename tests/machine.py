"""What the machine has of sandboxes: control groups, processes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from carrel.domain.ids import is_id
from carrel.linux import cgroupfs

_SPACE = re.compile(rb"(?:^|\0)CARREL_SPACE=([^\0]*)")


def groups() -> Iterator[Path]:
    """Those of all sandboxes; none is made in another's. Others' come and go meanwhile."""
    for tree in cgroupfs.hierarchies():
        for above, names, _files in os.walk(tree.mount):
            yield from (Path(above, name) for name in names if is_id(name))
            names[:] = [name for name in names if not is_id(name)]


def inhabitants(sandbox_ids: Collection[str]) -> list[int]:
    """Processes that were started with the name of one of these in their environment."""
    return [pid for pid, sandbox_id in all_inhabitants() if sandbox_id in sandbox_ids]


def all_inhabitants() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                match = _SPACE.search(Path(f"/proc/{name}/environ").read_bytes())
                if match:
                    yield int(name), match[1].decode(errors="replace")


def running_in(folder: Path) -> list[str]:
    """The ids of processes whose working folder is this one, or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd").startswith(str(folder)):
                    found.append(entry.name)
    return found
