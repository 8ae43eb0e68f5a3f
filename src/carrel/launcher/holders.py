"""One bubblewrap per active sandbox, which holds its namespaces while commands run in it.

A sandbox in which nothing runs has no process: its holder ends when it has been idle for a
while, and the next command starts another on the same folders. The command that bubblewrap
runs is a copy of `cat` under the name `hold`: it echoes the byte that waits on its standard
input, which says that the sandbox is complete, and then blocks for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from carrel.launcher.lines import LinePipe
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.records import read_record, write_record
from carrel.launcher.recruits import Recruits
from carrel.launcher.spares import Problem, Spare
from carrel.linux import namespaces, processes

READY_S = 10.0
"""Bubblewrap takes milliseconds; a machine this slow is out of memory or disk."""
LINGER_S = 10.0
"""Between two looks at a sandbox that only its own servers still use."""
IDLE_BYTES = 2_400_000
"""What one that lingers takes: four small processes."""
IDLE_SHARE = 50
"""All of them together may take this part of the machine's memory."""

_ENDING: Problem = {"step": "ending", "errno": 0, "text": "it ended before it was complete"}

OnReady = Callable[["Holder | None", Problem | None], None]


class Holder:
    """The live side of one sandbox."""

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.monitor = 0
        """Bubblewrap's own process outside; when it goes, the sandbox goes."""
        self.init = 0
        self.init_started = 0
        self.namespaces: dict[str, int] = {}
        self.base: dict[str, Any] = {}
        """What every process of the sandbox joins and becomes."""
        self.spare: Spare | None = None
        self.late: tuple[str, ...] = ()
        """Targets in it whose mounts come after the set-up has begun."""
        self.mounts: dict[str, int] | None = None
        """Those, once they are there and until they are in place."""
        self.on_mounts: Callable[[], None] | None = None
        self.waiting: list[OnReady] = []
        self.runs: set[str] = set()
        self.idle: Timer | None = None
        self.on_gone: list[Callable[[], None]] = []
        self.ending = False
        self.stopping = False
        """No process is to be made ready any more."""

    @property
    def live(self) -> bool:
        """A command may run in it."""
        return bool(self.namespaces) and not self.ending and not self.late

    def close(self) -> None:
        self.drop_spare()
        self.drop_mounts()
        for descriptor in self.namespaces.values():
            os.close(descriptor)
        self.namespaces.clear()

    def drop_mounts(self) -> None:
        for descriptor in (self.mounts or {}).values():
            os.close(descriptor)
        self.mounts = None

    def drop_spare(self) -> None:
        if self.spare is not None:
            self.spare.discard()
            self.spare = None

    def holding(self) -> set[int]:
        """The processes that are there for the sandbox itself."""
        return {self.monitor, self.init, *processes.children(self.init)[:1]}

    def others(self) -> list[int]:
        """Processes of the sandbox that no command of ours is above: what detached itself."""
        below = processes.children(self.init)
        held = below[:1]
        found = [pid for pid in below if pid not in held]
        for pid in list(found):
            found.extend(processes.descendants(pid))
        return found


class Holders:
    def __init__(self, loop: Loop, recruits: Recruits, folder: str) -> None:
        self._loop = loop
        self.recruits = recruits
        self._folder = folder
        self._most_idle = _most_idle()
        """So many may linger; beyond, the one that has been idle longest ends at once."""
        self._holders: dict[str, Holder] = {}
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._adopt()

    def __len__(self) -> int:
        return len(self._holders)

    def get(self, sandbox_id: str) -> Holder | None:
        return self._holders.get(sandbox_id)

    def others(self, sandbox_id: str) -> list[int]:
        """As `Holder.others`; none where there is no holder."""
        holder = self._holders.get(sandbox_id)
        return holder.others() if holder is not None and holder.init else []

    def acquire(self, request: dict[str, Any], staged: dict[str, int], ready: OnReady) -> None:
        """`ready` is called with a live holder, now or later, or with what went wrong."""
        sandbox_id = request["sandbox_id"]
        holder = self._holders.get(sandbox_id)
        if holder is not None and holder.ending:
            holder.on_gone.append(lambda: ready(None, {"step": "ending", "errno": 0}))
            return
        if holder is not None and holder.live:
            ready(holder, None)
            return
        if holder is None:
            holder = Holder(sandbox_id)
            holder.base = request["holder"]["base"]
            holder.late = tuple(request["holder"].get("late", ()))
            self._holders[sandbox_id] = holder
            holder.waiting.append(ready)
            try:
                _Start(self, self._loop, holder, request, staged).begin()
            except OSError as error:
                # The machine has no process or descriptor left; nobody is to wait for this.
                del self._holders[sandbox_id]
                ready(None, {"step": "fork", "errno": error.errno or 0, "text": str(error)})
                return
            # It joins its groups while bubblewrap works, and enters when that is done. Without
            # one the first command makes its own.
            with contextlib.suppress(OSError):
                holder.spare = self.make_spare(holder)
        else:
            holder.waiting.append(ready)

    def is_coming(self, sandbox_id: str) -> bool:
        """It is there, or will be: who waits for it gets an answer."""
        holder = self._holders.get(sandbox_id)
        return holder is not None and not holder.ending

    def forgo_spare(self, sandbox_id: str) -> None:
        """What runs first in a sandbox that is coming brings its own process: another would only
        compete with it for the processors, unless it has mounts to take along."""
        holder = self._holders.get(sandbox_id)
        if holder is not None and not holder.namespaces and not holder.late:
            holder.drop_spare()

    def place(self, sandbox_id: str, mounts: list[int]) -> bool:
        """Gives a sandbox the mounts that it was begun without; False when none waits for so
        many. They become the holder's then."""
        holder = self._holders.get(sandbox_id)
        if holder is None or holder.ending or holder.mounts is not None:
            return False
        if not holder.late or len(holder.late) != len(mounts):
            return False
        holder.mounts = dict(zip(holder.late, mounts, strict=True))
        if holder.on_mounts is not None:
            holder.on_mounts()
        return True

    def make_spare(self, holder: Holder) -> Spare:
        spare = Spare(self._loop, self.recruits, holder.base)
        if holder.live:
            spare.enter(holder.namespaces, {})
        return spare

    def enter(self, holder: Holder, run_id: str) -> None:
        if holder.idle is not None:
            holder.idle.cancel()
            holder.idle = None
        holder.runs.add(run_id)

    def leave(self, holder: Holder, run_id: str, linger: float) -> None:
        holder.runs.discard(run_id)
        if holder.runs or holder.ending:
            return
        # The order of insertion is the order of idleness.
        idle = [one for one in self._holders.values() if one.idle is not None]
        if len(idle) >= self._most_idle:
            self._check_idle(min(idle, key=lambda one: one.idle.when if one.idle else 0.0))
        holder.idle = self._loop.after(linger, lambda: self._check_idle(holder))

    def _check_idle(self, holder: Holder) -> None:
        """Ends it, unless a server that a command left behind still runs."""
        if holder.idle is not None:
            holder.idle.cancel()
            holder.idle = None
        if holder.runs or holder.ending:
            return
        if holder.others():
            holder.idle = self._loop.after(LINGER_S, lambda: self._check_idle(holder))
        else:
            self.end(holder)

    def end(self, holder: Holder) -> None:
        """Kills the sandbox's first process, and with it the kernel kills all others."""
        holder.ending = True
        if processes.is_alive(holder.init, holder.init_started):
            processes.send_signal(holder.init, signal.SIGKILL)

    def gone(self, holder: Holder) -> None:
        if holder.idle is not None:
            holder.idle.cancel()
        holder.ending = True
        holder.close()
        # Told twice when it fails late: by its first process, and by bubblewrap's.
        if self._holders.get(holder.sandbox_id) is holder:
            del self._holders[holder.sandbox_id]
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._record_path(holder.sandbox_id))
        actions, holder.on_gone = holder.on_gone, []
        for action in actions:
            action()

    def write_down(self, holder: Holder) -> None:
        record = {"init": holder.init, "started": holder.init_started, "base": holder.base}
        record["monitor"] = holder.monitor
        write_record(self._record_path(holder.sandbox_id), record)

    def _record_path(self, sandbox_id: str) -> str:
        return os.path.join(self._folder, f"{sandbox_id}.json")

    def _adopt(self) -> None:
        """Takes up the sandboxes that an earlier launcher left running."""
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            record = read_record(path)
            if record is None or not processes.is_alive(record["init"], record["started"]):
                os.unlink(path)
                continue
            holder = Holder(name.removesuffix(".json"))
            holder.init, holder.init_started = record["init"], record["started"]
            holder.base, holder.monitor = record["base"], record["monitor"]
            try:
                holder.namespaces = open_sandbox(holder.init)
                self.watch_end(holder)
            except OSError:
                continue
            self._holders[holder.sandbox_id] = holder
            holder.idle = self._loop.after(LINGER_S, partial(self._check_idle, holder))

    def watch_end(self, holder: Holder) -> None:
        """The first process of a pid namespace is gone after all others of it."""
        self._loop.on_process_end(holder.init, lambda: self.gone(holder))


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


class _Start:
    """The start of one holder, from the fork to the echoed byte."""

    def __init__(
        self,
        holders: Holders,
        loop: Loop,
        holder: Holder,
        request: dict[str, Any],
        staged: dict[str, int],
    ) -> None:
        self._holders = holders
        self._loop = loop
        self._holder = holder
        self._plan: dict[str, Any] = request["holder"]
        self._linger: float = request["linger"]
        self._staged = staged
        self._problem: Problem | None = None
        self._complaints: list[str] = []
        self._info = b""
        self._deadline: Timer | None = None
        self._complete = False

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
        orders = {"become": "holder", "plan": self._plan, "descriptors": list(descriptors)}
        recruit = self._holders.recruits.take(orders, list(descriptors.values()))
        recruit.forget()
        self._holder.monitor = recruit.pid
        for pipe in (status, errors, info, echo):
            pipe.parent_side()
        for descriptor in (still, push, program):
            os.close(descriptor)
        self._loop.on_exit(self._holder.monitor, lambda _status, _usage: self._on_exit())
        self._deadline = self._loop.after(READY_S, self._too_late)

    def _on_status(self, line: bytes) -> None:
        self._problem = json.loads(line)

    def _on_complaint(self, line: bytes) -> None:
        self._complaints = [*self._complaints, line.decode(errors="replace")][-5:]

    def _on_info(self, line: bytes) -> None:
        self._info += line

    def _on_echo(self, _line: bytes) -> None:
        """The sandbox is complete: `hold` runs."""
        holder = self._holder
        try:
            holder.init = int(json.loads(self._info)["child-pid"])
            holder.namespaces = open_sandbox(holder.init)
            holder.init_started = processes.start_time(holder.init) or 0
            self._holders.watch_end(holder)
        except (OSError, ValueError, KeyError) as error:
            self._fail({"step": "namespace", "errno": 0, "text": f"{error!r}"})
            return
        self._rest()
        if holder.ending:
            self._fail(_ENDING)
        elif not holder.late:
            if holder.spare is not None:
                holder.spare.enter(holder.namespaces, {})
            self._finish()
        elif holder.mounts is not None:
            self._place()
        else:
            holder.on_mounts = self._place
            self._deadline = self._loop.after(self._linger, lambda: self._fail(_ENDING))

    def _place(self) -> None:
        """The process that goes in first takes the mounts along."""
        self._rest()
        holder = self._holder
        try:
            spare = holder.spare = holder.spare or self._holders.make_spare(holder)
        except OSError as error:
            self._fail({"step": "fork", "errno": error.errno or 0, "text": str(error)})
            return
        self._deadline = self._loop.after(READY_S, self._too_late)
        spare.enter(holder.namespaces, holder.mounts or {})
        holder.drop_mounts()
        spare.when_ready(lambda: self._placed(spare))

    def _placed(self, spare: Spare) -> None:
        self._rest()
        if self._holder.ending or not spare.pid:
            self._fail(spare.problem or _ENDING)
            return
        self._holder.late = ()
        self._finish()

    def _finish(self) -> None:
        self._complete = True
        holder = self._holder
        self._holders.write_down(holder)
        waiting, holder.waiting = holder.waiting, []
        for ready in waiting:
            ready(holder, None)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._fail({"step": "start", "errno": 0, "text": f"not ready after {READY_S:.0f} s"})

    def _fail(self, problem: Problem) -> None:
        """The answer is given when the processes are gone."""
        self._problem = problem
        self._holder.ending = True
        processes.send_signal(self._holder.monitor, signal.SIGKILL)
        if self._holder.init:
            processes.send_signal(self._holder.init, signal.SIGKILL)

    def _on_exit(self) -> None:
        self._rest()
        if self._complete:
            # Somebody in the sandbox killed `hold`: the rest goes with it.
            self._holders.end(self._holder)
            return
        text = " ".join(self._complaints) or "bubblewrap ended before the sandbox was complete"
        problem = self._problem or {"step": "bubblewrap", "errno": 0, "text": text}
        waiting, self._holder.waiting = self._holder.waiting, []
        self._holders.gone(self._holder)
        for ready in waiting:
            ready(None, problem)


def _most_idle() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(16, memory // IDLE_SHARE // IDLE_BYTES)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("carrel-filter", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
