"""Runs in the sandbox while the host works in the tree: sent as source to Python.

Changes the meaning of a path as fast as it can, until something comes in on standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import sys
from collections.abc import Callable

RENAMEAT2 = 316 if os.uname().machine == "x86_64" else 276
AT_FDCWD, EXCHANGE = -100, 2
LIBC = ctypes.CDLL(None, use_errno=True)
BURST = 200
"""Changes between two looks at standard input."""


def exchange(one: str, other: str) -> None:
    LIBC.syscall(RENAMEAT2, AT_FDCWD, one.encode(), AT_FDCWD, other.encode(), EXCHANGE)


def clear() -> None:
    for entry in os.scandir("."):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def fill(path: str) -> None:
    with open(path, "w") as file:
        file.write("inside")


def file_for_link(target: str) -> Callable[[], None]:
    """`name` is a file, or a link to the target."""
    fill("name")
    os.symlink(target, "other")
    return lambda: exchange("name", "other")


def folder_for_link(target: str) -> Callable[[], None]:
    """`folder` is a folder with `file` in it, or a link to the target."""
    os.mkdir("folder")
    os.symlink(target, "other")

    def swap() -> None:
        # What the host has deleted is there again, inside.
        if not os.path.islink("folder"):
            with contextlib.suppress(OSError):
                fill("folder/file")
        exchange("folder", "other")
        exchange("folder", "other")
        exchange("folder", "other")

    return swap


def folder_moved_up(_target: str) -> Callable[[], None]:
    """`deep/er/link` points to a file inside; one folder further up it points out."""
    os.makedirs("deep/er")
    fill("file")
    os.symlink("../../file", "deep/er/link")

    def swap() -> None:
        os.rename("deep/er", "er")
        os.rename("er", "deep/er")

    return swap


def main(kind: str, target: str) -> None:
    os.chdir("/workspace")
    clear()
    kinds = {one.__name__: one for one in (file_for_link, folder_for_link, folder_moved_up)}
    swap = kinds[kind](target)
    print("ready", flush=True)
    while not select.select([0], [], [], 0)[0]:
        for _ in range(BURST):
            swap()


if __name__ == "__main__":
    main(*sys.argv[1:])
