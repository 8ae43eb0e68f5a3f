"""The folder of one run, with its files in it, or nothing of it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from carrel.domain.errors import CarrelError, CommandInvalid, InsufficientDisk, SandboxUnavailable
from carrel.domain.ids import is_id, new_id
from carrel.domain.runtimes import Command, Sandbox
from carrel.runtimes.streams import Streams, open_streams


def checked_id(command: Command) -> str:
    if command.keep_bytes < 1:
        raise CommandInvalid("No output is to be kept.", hint="Give keep_bytes above 0.")
    if not command.run_id:
        return new_id("ru")
    if not is_id(command.run_id) or not command.run_id.startswith("ru_"):
        raise CommandInvalid(
            f"{command.run_id!r} is no id of a run.", hint="Leave it out, and one is made."
        )
    return command.run_id


def make_folder(folder: Path, sandbox: Sandbox, command: Command) -> Streams:
    """The run's folder with its files in it, or nothing."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        raise CommandInvalid(
            f"There is a run {folder.name} already.", hint="Ids are used once."
        ) from None
    except OSError as error:
        raise cannot_write(error) from None
    try:
        return open_streams(command, folder, sandbox.spec.owner)
    except OSError as error:
        remove_folder(folder)
        raise cannot_write(error) from None


def cannot_write(error: OSError) -> CarrelError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InsufficientDisk(
            "There is no room on the disk for the record of a command.",
            hint="Make some: `carrel gc` removes what is not used.",
        )
    return SandboxUnavailable(
        f"A command's record cannot be written: {error}.", hint="Look at the data folder."
    )


def remove_folder(folder: Path) -> None:
    """The sandbox may have been removed meanwhile, with all its runs."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            os.unlink(entry.path)
        os.rmdir(folder)
