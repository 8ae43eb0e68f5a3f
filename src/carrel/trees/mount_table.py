"""Where a path is in its file system: one that is mounted twice has two names for it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_TABLE = Path("/proc/self/mountinfo")


class Inner(NamedTuple):
    """`device` as the kernel writes it; `path` from the file system's own root."""

    device: str
    path: str


class _Mount(NamedTuple):
    shown: Inner
    point: str


def inner_path(real: str) -> Inner:
    """Of a path without symlinks."""
    found = Inner("", real)
    best = -1
    for mount in _mounts():
        point = mount.point.rstrip("/")
        # Of two in the same place the later one is on top.
        if len(point) >= best and f"{real}/".startswith(f"{point}/"):
            best = len(point)
            below = real[len(point) :].rstrip("/")
            found = Inner(mount.shown.device, mount.shown.path.rstrip("/") + below or "/")
    return found


def mounted_below(real: str) -> list[Inner]:
    """What is mounted in a folder, its own top apart."""
    inside = real.rstrip("/") + "/"
    return [mount.shown for mount in _mounts() if mount.point.startswith(inside)]


def _mounts() -> list[_Mount]:
    mounts = []
    for line in _TABLE.read_bytes().splitlines():
        _id, _parent, device, root, point, *_rest = line.split(b" ")
        shown = Inner(device.decode(), _unescape(root))
        mounts.append(_Mount(shown, _unescape(point)))
    return mounts


def _unescape(field: bytes) -> str:
    """The kernel writes spaces and the like as octal numbers."""
    raw = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)
    return os.fsdecode(raw)
