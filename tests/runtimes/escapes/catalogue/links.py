"""Symbolic links, hard links and renames across the wall."""

from __future__ import annotations

import errno
import os

from tests.runtimes.escapes.inside import (
    USER,
    Targets,
    create,
    escape,
    own_file,
    own_folder,
    read,
    syscall,
)

AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
AT_EMPTY_PATH = 0x1000
RENAME_EXCHANGE = 2


def link(targets: Targets, name: str, to: str) -> str:
    path = f"{targets.work}/{name}"
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(to, path)
    return path


@escape("symlinks.absolute", USER)
def absolute(targets: Targets) -> str:
    return read(link(targets, "absolute", targets.canary))


@escape("symlinks.relative", USER)
def relative(targets: Targets) -> str:
    return read(link(targets, "relative", "../" * 60 + targets.canary.lstrip("/")))


@escape("symlinks.chain", USER)
def chain(targets: Targets) -> str:
    folder = own_folder(targets, "chain")
    last = targets.canary
    for number in range(20):
        last = link(targets, f"chain/{number}", last)
    assert last.startswith(folder)
    return read(last)


@escape("symlinks.through_proc", USER)
def through_proc(targets: Targets) -> str:
    return read(link(targets, "magic", f"/proc/{targets.victim}/fd/0"))


@escape("symlinks.folder", USER)
def folder_link(targets: Targets) -> str:
    return create(link(targets, "folder", targets.outside_folder) + "/from-inside")


@escape("symlinks.dangling", USER)
def dangling(targets: Targets) -> str:
    """Making the file that a link points to."""
    path = link(targets, "dangling", f"{targets.outside_folder}/dangling")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(f"{targets.outside_folder}/dangling")
    return "made a file outside"


@escape("symlinks.over_system_files")
def over_system_files(targets: Targets) -> str:
    os.rename(link(targets, "passwd", "/workspace/passwd"), "/etc/passwd")
    return "replaced /etc/passwd"


@escape("hardlinks.into_the_tree", USER, setting=("fs/protected_hardlinks", ("0", "1")))
def into_the_tree(targets: Targets) -> str:
    path = f"{targets.work}/linked"
    os.link(targets.exchange, path)
    os.unlink(path)
    return "linked a file of the host"


@escape("hardlinks.out_of_the_tree", USER)
def out_of_the_tree(targets: Targets) -> str:
    path = f"{targets.outside_folder}/linked"
    os.link(own_file(targets, "mine"), path)
    os.unlink(path)
    return "linked its own file outside"


@escape("hardlinks.of_a_system_file")
def of_a_system_file(targets: Targets) -> str:
    os.link("/usr/bin/su", f"{targets.work}/su")
    return "linked a set-uid program"


@escape("hardlinks.of_a_nameless_file", USER, also=(errno.EOPNOTSUPP,))
def of_a_nameless_file(targets: Targets) -> str:
    descriptor = os.open(targets.work, os.O_TMPFILE | os.O_RDWR, 0o600)
    path = f"{targets.outside_folder}/nameless"
    source = f"/proc/self/fd/{descriptor}".encode()
    syscall("linkat", AT_FDCWD, source, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW)
    os.unlink(path)
    return "gave it a name outside"


@escape("hardlinks.of_standard_output")
def of_standard_output(targets: Targets) -> str:
    """A file that came in as a descriptor is not on the tree's own mount."""
    path = f"{targets.work}/output"
    source = b"/proc/self/fd/1"
    syscall("linkat", AT_FDCWD, source, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW)
    os.unlink(path)
    return "linked standard output"


@escape("hardlinks.by_empty_path")
def by_empty_path(targets: Targets) -> str:
    descriptor = os.open("/usr/bin/su", os.O_PATH)
    target = f"{targets.work}/su".encode()
    syscall("linkat", descriptor, b"", AT_FDCWD, target, AT_EMPTY_PATH)
    return "linked a set-uid program"


@escape("renames.out_of_the_tree", USER)
def rename_out(targets: Targets) -> str:
    path = f"{targets.outside_folder}/renamed"
    os.rename(own_file(targets, "to-rename"), path)
    os.unlink(path)
    return "moved out"


@escape("renames.exchange", USER)
def exchange(targets: Targets) -> str:
    mine, theirs = own_file(targets, "to-exchange").encode(), targets.exchange.encode()
    for _ in range(2):  # and back
        syscall("renameat2", AT_FDCWD, mine, AT_FDCWD, theirs, RENAME_EXCHANGE)
    return "exchanged its own file for one of the host"


@escape("renames.of_a_folder_in_use", USER)
def folder_in_use(targets: Targets) -> str:
    """Moves the working folder up and away while it is in it, then walks up from there."""
    inner = own_folder(targets, "outer/inner")
    os.chdir(inner)
    os.rename(inner, f"{targets.work}/moved")
    try:
        return read("../" * 60 + targets.canary.lstrip("/"))
    finally:
        os.rmdir(f"{targets.work}/moved")
