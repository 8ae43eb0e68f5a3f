"""The start of one sandbox: bubblewrap's, or in a container of an engine; and its namespaces."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from carrel.launcher.loop import LinePipe, Loop, Timer
from carrel.launcher.messages import (
    LauncherProblem,
    Orders,
    SandboxPlan,
    UserMap,
    failure,
    told,
)
from carrel.launcher.pool import Standby
from carrel.linux import ids, namespaces, processes

if TYPE_CHECKING:
    from carrel.launcher.sandboxes import LiveSandbox, LiveSandboxes

READY_S = 10.0
"""Bubblewrap takes milliseconds; a machine this slow is out of memory or disk."""
HOLDER_MARK = "CARREL_HOLDER"
"""The variable that tells bubblewrap's processes from others."""
_ENDING: LauncherProblem = failure("ending", "it ended before it was complete")


def open_sandbox(init: int) -> dict[str, int]:
    """The namespaces of a sandbox that differ from ours, and its root."""
    opened = namespaces.open_namespaces(init, ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"))
    for kind in ("net", "cgroup"):
        if os.fstat(opened[kind]).st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino:
            os.close(opened.pop(kind))
    try:
        opened["root"] = os.open(f"/proc/{init}/root", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        for descriptor in opened.values():
            os.close(descriptor)
        raise
    return opened


class SandboxStart:
    """The start of one sandbox, from the fork to the echoed byte."""

    def __init__(
        self,
        sandboxes: LiveSandboxes,
        loop: Loop,
        sandbox: LiveSandbox,
        plan: SandboxPlan,
        linger: float,
        staged: dict[str, int],
    ) -> None:
        self._sandboxes = sandboxes
        self._loop = loop
        self._sandbox = sandbox
        self._plan = plan
        self._linger = linger
        self._staged = staged
        self._problem: LauncherProblem | None = None
        self._complaints: list[str] = []
        self._info = b""
        self._deadline: Timer | None = None
        self._pipes: list[LinePipe] = []
        self._complete = False
        self._gone = False

    def begin(self) -> None:
        status = LinePipe(self._loop, self._on_status, lambda: None)
        errors = LinePipe(self._loop, self._on_complaint, lambda: None)
        info = LinePipe(self._loop, self._on_info, lambda: None)
        echo = LinePipe(self._loop, self._on_echo, lambda: None)
        still, push = os.pipe2(os.O_CLOEXEC)
        os.write(push, b"\n")
        program = _memory_file(bytes.fromhex(self._plan["seccomp"]))
        descriptors = {
            "status": status.write,
            "stdin": still,
            "stdout": echo.write,
            "stderr": errors.write,
            "seccomp": program,
            "info": info.write,
            "alive": push,
            **{f"stage:{name}": descriptor for name, descriptor in self._staged.items()},
        }
        descriptors |= self._plan.pop("entered", {})
        self._plan["mark"] = {HOLDER_MARK: self._sandboxes.mark}
        orders: Orders = {"become": "holder", "plan": self._plan, "descriptors": list(descriptors)}
        forked = self._sandboxes.pool.take(orders, list(descriptors.values()))
        forked.forget()
        self._sandbox.monitor = forked.pid
        self._pipes = [status, errors, info, echo]
        for pipe in self._pipes:
            pipe.parent_side()
        for descriptor in (still, push, program):
            os.close(descriptor)
        self._loop.on_exit(self._sandbox.monitor, lambda _status, _usage: self._on_exit())
        self._deadline = self._loop.after(READY_S, self._too_late)

    def _on_status(self, line: bytes) -> None:
        self._problem = cast(LauncherProblem, told(line))

    def _on_complaint(self, line: bytes) -> None:
        self._complaints = [*self._complaints, line.decode(errors="replace")][-5:]

    def _on_info(self, line: bytes) -> None:
        self._info += line

    def _on_echo(self, _line: bytes) -> None:
        """The sandbox is complete: `hold` runs. It has no more to say, and nobody is to say
        anything in its name."""
        for pipe in self._pipes:
            pipe.close()
        sandbox = self._sandbox
        try:
            sandbox.init = int(json.loads(self._info)["child-pid"])
            sandbox.init_started = processes.start_time(sandbox.init) or 0
            sandbox.namespaces = open_sandbox(sandbox.init)
            self._sandboxes.watch_end(sandbox)
        except (OSError, ValueError, KeyError) as error:
            self._fail(failure("namespace", f"{error!r}"))
            return
        self._opened()

    def _opened(self) -> None:
        """The namespaces are there."""
        self._rest()
        sandbox = self._sandbox
        if sandbox.ending:
            self._fail(_ENDING)
        elif not sandbox.late:
            if sandbox.standby is not None:
                sandbox.standby.enter(sandbox.namespaces, {})
            self._finish()
        elif sandbox.mounts is not None:
            self._place()
        else:
            sandbox.on_mounts = self._place
            self._deadline = self._loop.after(self._linger, lambda: self._fail(_ENDING))

    def _place(self) -> None:
        """The process that goes in first takes the mounts along."""
        self._rest()
        sandbox = self._sandbox
        try:
            standby = sandbox.standby = sandbox.standby or self._sandboxes.make_standby(sandbox)
        except OSError as error:
            self._fail(failure("fork", str(error), error.errno or 0))
            return
        self._deadline = self._loop.after(READY_S, self._too_late)
        standby.enter(sandbox.namespaces, sandbox.mounts or {})
        sandbox.drop_mounts()
        standby.when_ready(lambda: self._placed(standby))

    def _placed(self, standby: Standby) -> None:
        self._rest()
        if self._sandbox.ending or not standby.pid:
            self._fail(standby.problem or _ENDING)
            return
        self._sandbox.late = ()
        self._finish()

    def _finish(self) -> None:
        self._complete = True
        sandbox = self._sandbox
        self._sandboxes.write_down(sandbox)
        waiting, sandbox.waiting = sandbox.waiting, []
        for ready in waiting:
            ready(sandbox, None)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._fail(failure("start", f"not ready after {READY_S:.0f} s"))

    def _fail(self, problem: LauncherProblem) -> None:
        """The answer is given when the processes are gone."""
        self._problem = problem
        if self._gone:
            # Their numbers may be others' by now.
            return
        processes.send_signal(self._sandbox.monitor, signal.SIGKILL)
        self._sandboxes.end(self._sandbox)

    def _on_exit(self) -> None:
        self._gone = True
        self._rest()
        if self._complete:
            # Somebody in the sandbox killed `hold`: the rest goes with it.
            self._sandboxes.end(self._sandbox)
            return
        text = " ".join(self._complaints) or "bubblewrap ended before the sandbox was complete"
        problem = self._problem or failure("bubblewrap", text)
        waiting, self._sandbox.waiting = self._sandbox.waiting, []
        self._sandboxes.gone(self._sandbox)
        for ready in waiting:
            ready(None, problem)


class ContainerStart(SandboxStart):
    """Takes up a container that an engine has made. Nothing runs in it yet: the first process of
    ours that enters takes the mounts along."""

    def begin(self) -> None:
        container = self._plan.get("container")
        assert container is not None
        self._sandbox.init, self._sandbox.init_started = container["pid"], container["started"]
        self._network = self._plan.get("entered", {}).get("net")
        # A copy: what was sent along is closed before we look at it.
        self._sandbox.mounts = {
            target: os.dup(self._staged[name])
            for target, name in zip(self._sandbox.late, self._plan["stage"], strict=True)
        }
        self._loop.after(0.0, self._take_up)

    def _take_up(self) -> None:
        sandbox = self._sandbox
        try:
            # First this: a number that was given to somebody else does not stay unnoticed.
            self._sandboxes.watch_end(sandbox)
            sandbox.on_gone.append(self._on_exit)
            if not processes.is_alive(sandbox.init, sandbox.init_started):
                raise ProcessLookupError("it has ended")
            sandbox.namespaces = open_container(sandbox, self._network)
        except OSError as error:
            self._problem = failure("container", str(error), error.errno or 0)
            self._on_exit()
            return
        self._opened()


def open_container(sandbox: LiveSandbox, network: int | None) -> dict[str, int]:
    """As `open_sandbox`, but with users that are the sandbox's own: an engine's are often the
    host's. `network` is the one of its pod, which stays the caller's."""
    opened = open_sandbox(sandbox.init)
    try:
        os.close(opened.pop("user"))
        if "cgroup" in opened:
            # It is of the engine's group, and what enters is in ours.
            os.close(opened.pop("cgroup"))
        opened["user"] = _make_users(sandbox.base["users"])
        if network is not None:
            if "net" in opened:
                os.close(opened.pop("net"))
            opened["net"] = os.dup(network)
    except OSError:
        for descriptor in opened.values():
            os.close(descriptor)
        raise
    return opened


def _make_users(users: UserMap) -> int:
    own, host, first = users["own"], users["host"], users["first"]
    return ids.make_id_map(own, host) if first is None else ids.open_ids(own, host, first)


def _inside(init: int) -> Iterator[int]:
    """All in the pid namespace of that process but itself: commands are no children of it."""
    found = processes.living_in(os.stat(f"/proc/{init}/ns/pid"))
    return (pid for pid in found if pid != init)


def open_again(sandbox: LiveSandbox) -> dict[str, int]:
    """Those of one that an earlier launcher has set up."""
    if not sandbox.contained:
        return open_sandbox(sandbox.init)
    if not sandbox.pod:
        return open_container(sandbox, None)
    # What runs in it is in the network of its pod; where nothing runs, it can be set up anew.
    for pid in _inside(sandbox.init):
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return open_container(sandbox, network)
        finally:
            os.close(network)
    raise ProcessLookupError("nothing runs in it")


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("carrel-filter", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
