"""Between the runtimes and the launcher: requests, checks before them, errors from its answers.

The messages are those of `carrel.launcher.messages`. An error says whose fault it was: the
command's, or the sandbox's.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from carrel.domain.errors import (
    CarrelError,
    CommandInvalid,
    CommandNotExecutable,
    CommandNotFound,
    ContainerGone,
    RunNotFound,
    SandboxUnavailable,
    TreeDamaged,
    WarmUnavailable,
)
from carrel.domain.runtimes import MOST_GIVEN, Call, Command, Output, Sandbox, Zygote
from carrel.domain.trees import Owner
from carrel.runtimes.limits.cgroups import CgroupHandle
from carrel.runtimes.limits.enforcement import Enforcement
from carrel.runtimes.recordings import Readers
from carrel.runtimes.runs import RECORDED
from carrel.runtimes.sandbox import SandboxFolders

if TYPE_CHECKING:
    from carrel.launcher import messages

ZYGOTE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_MISSING = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True)
class SandboxSetup:
    """How a sandbox with namespaces is set up."""

    argv: list[str]
    """Of bubblewrap."""
    kept: list[str]
    """All that it takes from the host by its path; else it is given mounts. Empty: it may take
    anything."""
    namespace: str | None
    """The held mount in which it starts."""
    late: list[str]
    """Targets whose mounts come later."""
    points: list[messages.MountPoint]
    """Where it mounts below what code in it may write."""
    staged: dict[str, int]
    """Detached mounts by name, which the engine closes."""
    pod: str = ""
    """Whose network it has, with others."""
    owner: Owner | None = None
    """Whom its mount points belong to, if not to the sandbox's owner."""
    container: ContainerProcess | None = None
    """Instead of what `argv` makes."""
    ranged: RangedStart | None = None


@dataclass(frozen=True)
class RangedStart:
    """For an ordinary user with a range of ids."""

    paths: dict[str, str]
    """What is staged in the namespace of the tree, by name."""
    users: messages.UserMap
    links: list[messages.LinkPoint]


@dataclass(frozen=True)
class ContainerProcess:
    """The first process of a container that an engine has made, on the host."""

    pid: int
    started: int
    """By which it is told from a later one of that number."""


@dataclass(frozen=True)
class Confinement:
    """How one command is confined, as the launcher wants it.

    `hold` is for runtimes with namespaces only, and is called when the sandbox has to be set up.
    """

    uid: int | None
    gid: int | None
    confined: bool
    cwd: str
    env: dict[str, str]
    landlock: dict[str, Any] | None = None
    shared_memory: str = ""
    """A folder that it has as /dev/shm, where the launcher may mount it; else it has none."""
    scope_sockets: bool = False
    """Abstract Unix sockets of others are out of reach, where the network is not one's own."""
    seccomp: bytes = b""
    capabilities: int = 0
    """Bits of those that its commands keep."""
    users: messages.UserMap | None = None
    """For an engine's container: who its users are on the host."""
    hold: Callable[[], SandboxSetup] | None = None
    probe: dict[str, Any] | None = None


class LauncherRequests:
    """Makes what the launcher is asked of the domain's words."""

    def __init__(self, enforcement: Enforcement, readers: Readers, linger_s: float) -> None:
        self._enforcement = enforcement
        self._linger_s = linger_s
        self._readers = readers

    def run(
        self, sandbox: Sandbox, command: Command, run_id: str, confinement: Confinement
    ) -> messages.RunRequest:
        """Without the sandbox's own plan, which is needed only when it is not set up."""
        spec = sandbox.spec
        group = self._enforcement.group(sandbox)
        # With namespaces, the process that waits inside has a group already.
        is_held = confinement.hold is not None
        own = None if is_held else _run_group(group, run_id)
        plan: messages.CommandPlan = {
            "join": [*group.procs, f"{own}/cgroup.procs"] if own is not None else [],
            "rlimits": [*self._enforcement.rlimits(spec, has_namespace=is_held)],
            "keeper": confinement.hold is None and own is None,
            "given": len(command.descriptors),
            "pty": list(command.pty_size) if command.output is Output.PTY else None,
            "landlock": confinement.landlock,
            "shared_memory": confinement.shared_memory,
            "uid": confinement.uid,
            "gid": confinement.gid,
            "cwd": confinement.cwd,
            "confined": confinement.confined,
            "seccomp": "" if confinement.hold is not None else confinement.seccomp.hex(),
            "probe": confinement.probe,
            "argv": list(command.argv),
            "env": confinement.env,
            "call": None if command.call is None else _call(command.call),
            "warm": bool(command.warm),
            "takes_terminal": command.takes_terminal,
        }
        return {
            "sandbox_id": spec.sandbox_id,
            "account": spec.account,
            "run_id": run_id,
            "folder": str(SandboxFolders(spec.folder).run(run_id)),
            "record": {
                "names": list(RECORDED[command.output]),
                "keep": command.keep_bytes,
                "reader": command.reader,
                "lease": self._readers.lease_s,
            },
            "input": command.stdin and command.output is Output.FILES,
            "group": own,
            "oom": _oom_source(group) if spec.limits.memory_bytes is not None else None,
            # What proves the walls is no command of the space.
            "timeout": command.timeout_s
            if confinement.probe is not None
            else _least(command.timeout_s, spec.limits.wall_seconds),
            "linger": self._linger_s,
            "zygote": command.warm,
            "plan": plan,
        }

    def sandbox(
        self, sandbox: Sandbox, confinement: Confinement
    ) -> tuple[messages.SandboxPlan, dict[str, int]]:
        """How the launcher sets the sandbox up, and the mounts by name."""
        assert confinement.hold is not None
        assert confinement.uid is not None and confinement.gid is not None
        setup = confinement.hold()
        group = self._enforcement.group(sandbox)
        base: messages.SandboxBase = {
            "join": list(group.procs),
            "tracking": group.tracking,
            "uid": confinement.uid,
            "gid": confinement.gid,
            "scope_sockets": confinement.scope_sockets,
            "seccomp": confinement.seccomp.hex(),
            "capabilities": confinement.capabilities,
        }
        if confinement.users is not None:
            base["users"] = confinement.users
        owner = setup.owner or sandbox.spec.owner
        plan: messages.SandboxPlan = {
            "argv": setup.argv,
            "kept": setup.kept,
            "uid": owner.uid,
            "gid": owner.gid,
            "pod": setup.pod,
            "namespace": setup.namespace,
            "late": setup.late,
            "points": setup.points,
            "seccomp": base["seccomp"],
            "join": base["join"],
            "base": base,
            "stage": [*setup.staged],
        }
        if setup.ranged is not None:
            plan["paths"] = setup.ranged.paths
            plan["users"] = setup.ranged.users
            plan["links"] = setup.ranged.links
        if setup.container is not None:
            process = setup.container
            plan["container"] = {"pid": process.pid, "started": process.started}
        return plan, setup.staged

    def warm(self, sandbox: Sandbox, plan: messages.SandboxPlan) -> messages.WarmRequest:
        return {
            "sandbox_id": sandbox.spec.sandbox_id,
            "holder": plan,
            "linger": self._linger_s,
        }

    def members(self, sandbox: Sandbox) -> messages.SandboxRequest:
        """By which the launcher finds all processes of a sandbox."""
        groups = list(self._enforcement.group(sandbox).folders)
        return {"sandbox_id": sandbox.spec.sandbox_id, "groups": groups}

    def stop(
        self, sandbox: Sandbox, grace_s: float, reason: str = "stopped"
    ) -> messages.StopRequest:
        runs = str(SandboxFolders(sandbox.spec.folder).runs)
        return {**self.members(sandbox), "grace": grace_s, "runs": runs, "reason": reason}


def zygote_request(zygote: Zygote) -> messages.ZygoteRequest:
    """Raises `CommandInvalid`."""
    check_zygote(zygote)
    root = os.geteuid() == 0
    return {
        "name": zygote.name,
        "python": zygote.python,
        "preload": list(zygote.preload),
        "load": list(zygote.load),
        "env": {"LANG": "C.UTF-8", **zygote.env},
        "uid": zygote.owner.uid if root else None,
        "gid": zygote.owner.gid if root else None,
        "idle": zygote.idle_s,
    }


def _call(call: Call) -> messages.CallPlan:
    return {"file": call.file, "function": call.function, "argument": call.argument}


def _run_group(group: CgroupHandle, run_id: str) -> str | None:
    """A group for one command, below the sandbox's, by which all of it can be killed. The
    launcher removes it when the command has ended and nothing of it is left."""
    if group.tracking is None:
        return None
    return f"{group.tracking}/{run_id}"


def _oom_source(group: CgroupHandle) -> list[str] | None:
    """Where the kernel counts what it killed for want of memory."""
    folder = group.folder("memory")
    if folder is None:
        return None
    name = "memory.events" if (folder / "memory.events").exists() else "memory.oom_control"
    return [str(folder / name), "oom_kill"]


def _least(*values: float | None) -> float | None:
    given = [value for value in values if value is not None]
    return min(given) if given else None


# Errors


def as_error(problem: messages.LauncherProblem, command: Command | None = None) -> CarrelError:
    step, number, text = problem["step"], problem.get("errno", 0), problem.get("text", "")
    if step == "exec" and command is not None:
        return _cannot_execute(number, text, command)
    if step == "interpreter" and command is not None:
        return CommandNotFound(
            f"{_named(command)!r} is a script for {text!r}, which is not in the sandbox.",
            hint="Show the sandbox the folder that it is in (--show), or change the first line.",
        )
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
    if step == "unmounted":
        return TreeDamaged(
            "The tree's mount went with the launcher that held it.",
            hint="Try again: it is mounted at its next use.",
        )
    if step == "container":
        return container_gone(text)
    if step == "share":
        return SandboxUnavailable(
            f"The sandbox has as many commands as it may: {text}.",
            hint="End some of them, and what they left running.",
        )
    return SandboxUnavailable(
        f"The sandbox failed at the step {step!r}: {text}.",
        hint="`carrel doctor` says what this machine can do.",
        step=step,
    )


def container_gone(why: str) -> ContainerGone:
    return ContainerGone(
        f"The container of the space is gone: {why}.",
        hint="Try again: it is made anew. Leave it to Carrel to remove it.",
    )


def _cannot_execute(number: int, text: str, command: Command) -> CarrelError:
    name = _named(command)
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
        f"{name!r} cannot be executed: {os.strerror(number) if number else text}.",
        hint="Make it executable, and give a script a first line such as #!/bin/sh.",
    )


def _named(command: Command) -> str:
    """Somebody may have passed a whole script as the name of a program."""
    name = command.argv[0]
    return name if len(name) <= MOST_NAME else f"{name[:MOST_NAME]}…"


MOST_NAME = 200
"""Characters of a name that are shown."""


# What no sandbox could run


def check_command(command: Command) -> None:
    """Raises `CommandInvalid` for what no sandbox could run."""
    words = (*command.argv, *command.env, *command.env.values(), command.cwd)
    if not command.argv or not command.argv[0]:
        raise CommandInvalid("The command is empty.", hint="Give at least a program.")
    if any("\0" in word for word in words):
        raise CommandInvalid("A NUL character cannot be passed to a command.", hint="Remove it.")
    if any("=" in name or not name for name in command.env):
        raise CommandInvalid(
            "A variable's name is empty or has '=' in it.", hint="Use a name without '='."
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
    if len(command.streams) != (3 if command.output is Output.GIVEN else 0):
        raise CommandInvalid("A command is given three streams, or none.", hint="Give all three.")
    for descriptor in (*command.descriptors, *command.streams):
        try:
            os.fstat(descriptor)
        except (OSError, OverflowError):
            raise CommandInvalid(
                f"Descriptor {descriptor} is not open.", hint="Close it after the start."
            ) from None
