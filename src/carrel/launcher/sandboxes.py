"""The sandboxes that are set up: bubblewrap holds the namespaces of each while commands run.

A sandbox in which nothing runs has no process: its bubblewrap ends when it has been idle for a
while, and the next command starts another on the same folders. The command that bubblewrap
runs is a copy of `cat` under the name `hold`: it echoes the byte that waits on its standard
input, which says that the sandbox is complete, and then blocks for good. What runs in the
sandbox can take its descriptors, so none leads to us any more by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from functools import partial

from carrel.launcher.loop import Loop, Timer
from carrel.launcher.messages import (
    LauncherProblem,
    RunRequest,
    SandboxBase,
    SandboxPlan,
    WarmRequest,
    failure,
)
from carrel.launcher.networks import PodNetworks
from carrel.launcher.pool import ChildPool, Standby
from carrel.launcher.setups import HOLDER_MARK, ContainerStart, SandboxStart, open_again
from carrel.launcher.wire import read_record, write_record
from carrel.linux import mounts, processes

LINGER_S = 10.0
"""Between two looks at a sandbox that only its own servers still use."""
LOOK_S, MOST_LOOK_S = 0.05, 5.0
"""Between two looks at one that was killed, each later than the one before: the kernel tells of its
end only when somebody has waited for all of its processes. Those of an earlier launcher are left to
the machine's first process, which in a container often waits for nobody."""
IDLE_BYTES = 2_400_000
"""What one that lingers takes: four small processes."""
IDLE_SHARE = 50
"""All of them together may take this part of the machine's memory."""

OnReady = Callable[["LiveSandbox | None", LauncherProblem | None], None]


class LiveSandbox:
    """The live side of one sandbox."""

    def __init__(self, sandbox_id: str, base: SandboxBase, pod: str = "") -> None:
        self.sandbox_id = sandbox_id
        self.pod = pod
        """Those of one pod have one network; empty: it has its own, or the host's."""
        self.monitor = 0
        """Bubblewrap's own process outside; when it goes, the sandbox goes."""
        self.init = 0
        self.init_started = 0
        self.namespaces: dict[str, int] = {}
        self.base = base
        """What every process of the sandbox joins and becomes."""
        self.standby: Standby | None = None
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
        self.looked_after = False
        """Until it is gone."""
        self.stopping = False
        """No process is to be made ready any more."""
        self.contained = "users" in base
        """Its first process is an engine's container, and does nothing else."""

    @property
    def live(self) -> bool:
        """A command may run in it."""
        return bool(self.namespaces) and not self.ending and not self.late

    @property
    def pod_network(self) -> str:
        """As `/proc` names it; empty without a pod, and before it is set up."""
        if not self.pod or "net" not in self.namespaces:
            return ""
        return f"net:[{os.fstat(self.namespaces['net']).st_ino}]"

    def close(self) -> None:
        self.drop_standby()
        self.drop_mounts()
        for descriptor in self.namespaces.values():
            os.close(descriptor)
        self.namespaces.clear()

    def drop_mounts(self) -> None:
        for descriptor in (self.mounts or {}).values():
            os.close(descriptor)
        self.mounts = None

    def drop_standby(self) -> None:
        if self.standby is not None:
            self.standby.discard()
            self.standby = None

    def is_over(self) -> bool:
        """Nothing lives in it any more, whether or not anybody ever waits for what is dead."""
        if not processes.is_dying(self.init) or "pid" not in self.namespaces:
            return False
        return not any(processes.living_in(os.fstat(self.namespaces["pid"])))

    def holding(self) -> set[int]:
        """The processes that are there for the sandbox itself."""
        if self.contained:
            return {self.init}
        return {self.monitor, self.init, *processes.children(self.init)[:1]}

    def others(self) -> list[int]:
        """Processes of the sandbox that no command of ours is above: what detached itself. Those
        below what holds it, too: code in there can take that over."""
        below = processes.children(self.init)
        if self.contained:
            return processes.descendants(self.init)
        return [*below[1:], *(pid for one in below for pid in processes.descendants(one))]


class LiveSandboxes:
    def __init__(self, loop: Loop, pool: ChildPool, folder: str) -> None:
        self._loop = loop
        self.pool = pool
        self._folder = folder
        self._most_idle = _most_idle()
        """So many may linger; beyond, the one that has been idle longest ends at once."""
        self._sandboxes: dict[str, LiveSandbox] = {}
        self._networks = PodNetworks(loop.fork)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        self.mark = f"{status.st_dev}-{status.st_ino}"
        """Of each bubblewrap that is started for this folder."""
        self._adopt()

    def __len__(self) -> int:
        return len(self._sandboxes)

    def get(self, sandbox_id: str) -> LiveSandbox | None:
        return self._sandboxes.get(sandbox_id)

    def others(self, sandbox_id: str) -> list[int]:
        """As `LiveSandbox.others`; none where it is not set up."""
        sandbox = self._sandboxes.get(sandbox_id)
        return sandbox.others() if sandbox is not None and sandbox.init else []

    def acquire(
        self, request: RunRequest | WarmRequest, staged: dict[str, int], ready: OnReady
    ) -> None:
        """`ready` is called with the live sandbox, now or later, or with what went wrong."""
        sandbox_id = request["sandbox_id"]
        plan = request.get("holder")
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and sandbox.ending:
            sandbox.on_gone.append(lambda: ready(None, {"step": "ending", "errno": 0}))
            return
        if sandbox is not None and sandbox.live:
            ready(sandbox, None)
            return
        if sandbox is not None:
            sandbox.waiting.append(ready)
        elif plan is None:
            ready(None, failure("cold", "it is not set up"))
        else:
            sandbox = LiveSandbox(sandbox_id, plan["base"], plan.get("pod", ""))
            sandbox.late = tuple(plan.get("late", ()))
            self._sandboxes[sandbox_id] = sandbox
            sandbox.waiting.append(ready)
            try:
                # Where paths go along, they are made where those are seen.
                for point in plan.get("points", ()) if "paths" not in plan else ():
                    mounts.make_mount_point(**point, uid=plan["uid"], gid=plan["gid"])
                self._enter_network(sandbox, plan)
                start = ContainerStart if "container" in plan else SandboxStart
                start(self, self._loop, sandbox, plan, request["linger"], staged).begin()
            except OSError as error:
                # The machine has no process or descriptor left; nobody is to wait for this.
                self._drop(sandbox)
                ready(None, failure("fork", str(error), error.errno or 0))
                return
            # It joins its groups while bubblewrap works, and enters when that is done. Without
            # one the first command makes its own.
            with contextlib.suppress(OSError):
                sandbox.standby = self.make_standby(sandbox)

    def _enter_network(self, sandbox: LiveSandbox, plan: SandboxPlan) -> None:
        if not sandbox.pod:
            return
        others = [one for one in self._sandboxes.values() if one.pod == sandbox.pod]
        known = next((one.namespaces["net"] for one in others if "net" in one.namespaces), None)
        entered = plan.setdefault("entered", {})
        entered["net"] = self._networks.get(sandbox.pod, known, entered.get("user"))

    def _drop(self, sandbox: LiveSandbox) -> None:
        del self._sandboxes[sandbox.sandbox_id]
        if sandbox.pod and all(one.pod != sandbox.pod for one in self._sandboxes.values()):
            self._networks.release(sandbox.pod)

    def is_coming(self, sandbox_id: str) -> bool:
        """It is there, or will be: who waits for it gets an answer."""
        sandbox = self._sandboxes.get(sandbox_id)
        return sandbox is not None and not sandbox.ending

    def forgo_standby(self, sandbox_id: str) -> None:
        """What runs first in a sandbox that is coming brings its own process: another would only
        compete with it for the processors, unless it has mounts to take along."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and not sandbox.namespaces and not sandbox.late:
            sandbox.drop_standby()

    def place(self, sandbox_id: str, mounts: list[int]) -> bool:
        """Gives a sandbox the mounts that it was begun without; False when none waits for so
        many. They become the sandbox's then."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.ending or sandbox.mounts is not None:
            return False
        if not sandbox.late or len(sandbox.late) != len(mounts):
            return False
        sandbox.mounts = dict(zip(sandbox.late, mounts, strict=True))
        if sandbox.on_mounts is not None:
            sandbox.on_mounts()
        return True

    def make_standby(self, sandbox: LiveSandbox) -> Standby:
        standby = Standby(self._loop, self.pool.take, sandbox.base)
        if sandbox.live:
            standby.enter(sandbox.namespaces, {})
        return standby

    def enter(self, sandbox: LiveSandbox, run_id: str) -> None:
        if sandbox.idle is not None:
            sandbox.idle.cancel()
            sandbox.idle = None
        sandbox.runs.add(run_id)

    def leave(self, sandbox: LiveSandbox, run_id: str, linger: float) -> None:
        sandbox.runs.discard(run_id)
        if sandbox.runs or sandbox.ending:
            return
        # The order of insertion is the order of idleness.
        idle = [one for one in self._sandboxes.values() if one.idle is not None]
        if len(idle) >= self._most_idle:
            self._check_idle(min(idle, key=lambda one: one.idle.when if one.idle else 0.0))
        sandbox.idle = self._loop.after(linger, lambda: self._check_idle(sandbox))

    def _check_idle(self, sandbox: LiveSandbox) -> None:
        """Ends it, unless a server that a command left behind still runs."""
        if sandbox.idle is not None:
            sandbox.idle.cancel()
            sandbox.idle = None
        if sandbox.runs or sandbox.ending:
            return
        if sandbox.others():
            sandbox.idle = self._loop.after(LINGER_S, lambda: self._check_idle(sandbox))
        else:
            self.end(sandbox)

    def end(self, sandbox: LiveSandbox) -> None:
        """Kills the sandbox's first process, and with it the kernel kills all others."""
        sandbox.ending = True
        if processes.is_alive(sandbox.init, sandbox.init_started):
            processes.send_signal(sandbox.init, signal.SIGKILL)
            if not sandbox.looked_after:
                sandbox.looked_after = True
                self._loop.after(LOOK_S, partial(self._look_after, sandbox, LOOK_S))

    def _look_after(self, sandbox: LiveSandbox, seconds: float) -> None:
        if self._sandboxes.get(sandbox.sandbox_id) is not sandbox:
            return
        if sandbox.is_over():
            self.gone(sandbox)
            return
        later = min(2 * seconds, MOST_LOOK_S)
        self._loop.after(later, partial(self._look_after, sandbox, later))

    def gone(self, sandbox: LiveSandbox) -> None:
        if sandbox.idle is not None:
            sandbox.idle.cancel()
        sandbox.ending = True
        sandbox.close()
        # Told twice when it fails late: by its first process, and by bubblewrap's.
        if self._sandboxes.get(sandbox.sandbox_id) is sandbox:
            self._drop(sandbox)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._record_path(sandbox.sandbox_id))
        actions, sandbox.on_gone = sandbox.on_gone, []
        for action in actions:
            action()

    def write_down(self, sandbox: LiveSandbox) -> None:
        record = {"init": sandbox.init, "started": sandbox.init_started, "base": sandbox.base}
        record |= {"monitor": sandbox.monitor, "pod": sandbox.pod}
        write_record(self._record_path(sandbox.sandbox_id), record)

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
            sandbox_id = name.removesuffix(".json")
            sandbox = LiveSandbox(sandbox_id, record["base"], record.get("pod", ""))
            sandbox.init, sandbox.init_started = record["init"], record["started"]
            sandbox.monitor = record["monitor"]
            try:
                sandbox.namespaces = open_again(sandbox)
                self.watch_end(sandbox)
            except OSError:
                # It is about to end, or nobody could end it later.
                processes.send_signal(sandbox.init, signal.SIGKILL)
                sandbox.close()
                os.unlink(path)
                continue
            self._sandboxes[sandbox.sandbox_id] = sandbox
            sandbox.idle = self._loop.after(LINGER_S, partial(self._check_idle, sandbox))
        self._end_unfinished()

    def _end_unfinished(self) -> None:
        """What an earlier launcher was setting up when it was killed: bubblewrap's process inside
        would wait for the one outside, which went with the launcher."""
        known = {pid for one in self._sandboxes.values() for pid in one.holding()}
        others = set(processes.all_pids()) - known
        processes.kill_all(processes.having_variable(others, HOLDER_MARK, self.mark))

    def watch_end(self, sandbox: LiveSandbox) -> None:
        """The first process of a pid namespace is gone after all others of it."""
        self._loop.on_process_end(sandbox.init, lambda: self.gone(sandbox))


def _most_idle() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(16, memory // IDLE_SHARE // IDLE_BYTES)
