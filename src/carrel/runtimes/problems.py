"""The launcher's problems as errors: the command's fault, or the sandbox's."""

from __future__ import annotations

import errno
import os
from typing import Any

from carrel.domain.errors import (
    CarrelError,
    CommandInvalid,
    CommandNotExecutable,
    CommandNotFound,
    RunNotFound,
    SandboxUnavailable,
)
from carrel.domain.runtimes import Command

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
