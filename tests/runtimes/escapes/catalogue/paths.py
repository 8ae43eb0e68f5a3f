"""Ways to files of the host by name alone."""

from __future__ import annotations

import os
import shutil

from tests.runtimes.escapes.inside import (
    ROOT,
    USER,
    Refused,
    Targets,
    create,
    escape,
    first_success,
    open_for_writing,
    own_folder,
    read,
)

UP = "../" * 60


def look_into(folder: str) -> str:
    if found := os.listdir(folder):
        return f"lists {found[:3]}"
    raise Refused("empty")


@escape("paths.absolute", USER)
def absolute(targets: Targets) -> str:
    return read(targets.canary)


@escape("paths.up_and_out", USER)
def up_and_out(targets: Targets) -> str:
    return read(UP + targets.canary.lstrip("/"))


@escape("paths.odd_spellings", USER)
def odd_spellings(targets: Targets) -> str:
    folder, name = os.path.split(targets.canary)
    spellings = (
        "//" + targets.canary.lstrip("/"),
        f"{folder}/./../{os.path.basename(folder)}//{name}",
        f"/proc/../{targets.canary}",
        f"{targets.work}/{UP}{targets.canary}",
    )
    return first_success(read, spellings)


@escape("paths.own_root", USER)
def own_root(targets: Targets) -> str:
    return read("/proc/self/root" + targets.canary)


@escape("paths.own_working_folder", USER)
def own_working_folder(targets: Targets) -> str:
    return read("/proc/self/cwd/" + UP + targets.canary.lstrip("/"))


@escape("paths.root_of_a_thread", USER)
def root_of_a_thread(targets: Targets) -> str:
    return read("/proc/thread-self/root/" + UP + targets.canary.lstrip("/"))


@escape("paths.descriptor_of_the_root", USER)
def descriptor_of_the_root(targets: Targets) -> str:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    found = os.open(UP + targets.canary.lstrip("/"), os.O_RDONLY, dir_fd=root)
    return f"read {os.read(found, 80)!r}"


@escape("paths.link_of_a_descriptor", USER)
def link_of_a_descriptor(targets: Targets) -> str:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    return read(f"/proc/self/fd/{root}/{UP}{targets.canary.lstrip('/')}")


@escape("paths.deeper_than_a_path_may_be", USER)
def deeper_than_a_path_may_be(targets: Targets) -> str:
    """A working folder that has no path any more, as it would be too long."""
    top = own_folder(targets, "deep")
    os.chdir(top)
    try:
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        return read(UP + targets.canary.lstrip("/"))
    finally:
        os.chdir(targets.work)
        shutil.rmtree(top)


@escape("paths.data_folder", USER)
def data_folder(targets: Targets) -> str:
    """Not to be listed by others even outside, but what is below can be reached there."""
    return f"sees {os.stat(targets.data).st_ino}"


@escape("paths.home_of_root", ROOT)
def home_of_root(_targets: Targets) -> str:
    return look_into("/root")


@escape("paths.shadow", ROOT)
def shadow(_targets: Targets) -> str:
    return read("/etc/shadow")[:10]


@escape("paths.folders_of_the_host", ROOT)
def folders_of_the_host(_targets: Targets) -> str:
    folders = ("/var/log", "/var/lib", "/boot", "/srv", "/media", "/mnt", "/root")
    return first_success(look_into, folders)


@escape("paths.sources_of_mounts")
def sources_of_mounts(targets: Targets) -> str:
    """The kernel tells where binds and layers come from: is any of that in reach?"""
    with open("/proc/self/mountinfo") as file:
        words = file.read().replace(",", " ").replace("=", " ").replace(":", " ").split()
    told = {word for word in words if word.startswith(targets.data)}
    return first_success(look_into, sorted(told))


@escape("paths.where_output_goes")
def where_output_goes(targets: Targets) -> str:
    told = [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]
    folders = [os.path.dirname(path) for path in told if path.startswith(targets.data)]
    return first_success(look_into, folders)


@escape("paths.new_system_files")
def new_system_files(_targets: Targets) -> str:
    folders = (
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local/bin",
        "/etc",
        "/bin",
        "/lib",
        "/sys",
    )
    return first_success(create, [f"{folder}/carrel-escape" for folder in folders])


@escape("paths.system_programs")
def system_programs(_targets: Targets) -> str:
    files = ("/usr/bin/env", "/bin/sh", "/etc/passwd", "/etc/hosts", "/etc/ld.so.cache")
    return first_success(open_for_writing, files)


@escape("paths.modes_of_system_files")
def modes_of_system_files(_targets: Targets) -> str:
    """The mode that it has already: who may set it, could set another."""
    os.chmod("/usr/bin/env", os.stat("/usr/bin/env").st_mode & 0o7777)
    return "set a mode"
