"""The launcher's problems as errors: the command's fault, or the sandbox's."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

from carrel.domain.errors import (
    CarrelError,
    CommandInvalid,
    CommandNotExecutable,
    CommandNotFound,
    RunNotFound,
    SandboxUnavailable,
    WarmUnavailable,
)
from carrel.domain.runtimes import MOST_GIVEN, Command, Zygote

ZYGOTE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_MISSING = (errno.ENOENT, errno.ENOTDIR)


def as_error(problem: dict[str, Any], command: Command | None = None) -> CarrelError:
    step, number, text = problem["step"], problem.get("errno", 0), problem.get("text", "")
    if step == "exec" and command is not None:
        return _cannot_execute(number, command)
    if step == "cwd" and command is not None:
        return CommandInvalid(
            f"The working folder {command.cwd!r} cannot be entered: {os.strerror(number)}.",
            hint="Give a folder that is in the tree, relative to it.",
        )
    if step == "call":
        return CommandNotExecutable(
            f"The function cannot be called: {text}.", hint="Look at the file that it is in."
        )
    if step == "zygote":
        return WarmUnavailable(
            f"Nothing can be forked from the warm process: {text}.",
            hint="Start the command cold; the launcher's folder `zygotes` has its output.",
        )
    if step == "attach":
        return RunNotFound("There is no such run.", hint="`carrel runs` lists them.")
    if step == "namespace" and number == errno.EAGAIN:
        return SandboxUnavailable(
            "The sandbox has as many processes as it may.",
            hint="End some of them, or raise its limit.",
        )
    return SandboxUnavailable(
        f"The sandbox failed at the step {step!r}: {text}.",
        hint="`carrel doctor` says what this machine can do.",
        step=step,
    )


def _cannot_execute(number: int, command: Command) -> CarrelError:
    name = command.argv[0]
    if number in _MISSING:
        return CommandNotFound(
            f"There is no command {name!r} in the sandbox.",
            hint="Check the name, or the PATH that the command gets.",
        )
    if number == errno.E2BIG:
        return CommandInvalid(
            "The arguments and the environment are too long.",
            hint="Pass long input on standard input or in a file.",
        )
    return CommandNotExecutable(
        f"{name!r} cannot be executed: {os.strerror(number)}.",
        hint="Make it executable, and give a script a first line such as #!/bin/sh.",
    )


def check_command(command: Command) -> None:
    """What no sandbox could run."""
    words = (*command.argv, *command.env, *command.env.values(), command.cwd)
    if not command.argv or not command.argv[0]:
        raise CommandInvalid("The command is empty.", hint="Give at least a program.")
    if any("\0" in word for word in words):
        raise CommandInvalid("A NUL character cannot be passed to a command.", hint="Remove it.")
    if any("=" in name or not name for name in command.env):
        raise CommandInvalid(
            "A variable's name is empty or has '=' in it.", hint="Give NAME and value apart."
        )
    if command.timeout_s is not None and command.timeout_s <= 0:
        raise CommandInvalid("The time limit is not positive.", hint="Give seconds above 0.")
    _check_descriptors(command)


def check_zygote(zygote: Zygote) -> None:
    if not ZYGOTE_NAME.fullmatch(zygote.name):
        raise CommandInvalid(
            f"{zygote.name!r} is no name of a warm process.",
            hint="Use lower-case letters, digits and hyphens.",
        )
    if os.geteuid() == 0 and zygote.owner.uid == 0:
        raise CommandInvalid(
            "A warm process loads what others wrote, and never as root.",
            hint="Give it the user of the sandboxes that its forks enter.",
        )


def _check_descriptors(command: Command) -> None:
    """One that is not open would cost others the connection on which it is sent."""
    if len(command.descriptors) > MOST_GIVEN:
        raise CommandInvalid(
            f"A command cannot be given {len(command.descriptors)} descriptors.",
            hint=f"Give {MOST_GIVEN} at most.",
        )
    for descriptor in command.descriptors:
        try:
            os.fstat(descriptor)
        except (OSError, OverflowError):
            raise CommandInvalid(
                f"Descriptor {descriptor} is not open.", hint="Close it after the start."
            ) from None
