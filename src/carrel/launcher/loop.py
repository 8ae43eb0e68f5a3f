"""The launcher's event loop: descriptors, timers and dead children; nothing ever waits."""

from __future__ import annotations

import contextlib
import heapq
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable

OnExit = Callable[[int, resource.struct_rusage], None]
"""Called with the wait status and the use of a child that has been reaped."""


class Timer:
    """One call at one time; `cancel` is final."""

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    def __init__(self) -> None:
        self._open_files = _raise_open_files()
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._on_exit: dict[int, OnExit] = {}
        self._unclaimed: dict[int, tuple[int, resource.struct_rusage]] = {}
        self._expecting = 0
        self.running = True
        self.urgent = 0
        """How many commands and sandboxes are just being started. What is done for later
        starts waits meanwhile."""
        self._wake, wake_write = socket.socketpair()
        self._wake.setblocking(False)
        wake_write.setblocking(False)
        self._wake_write = wake_write
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self.watch(self._wake.fileno(), self._reap)

    def watch(self, descriptor: int, action: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, action)
        heapq.heappush(self._timers, timer)
        return timer

    def fork(self, become: Callable[[], None]) -> int:
        """A child that runs `become`, which does not return."""
        pid = os.fork()
        if pid:
            return pid
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._open_files)
            become()
        finally:
            os._exit(127)

    def expect_children(self, more: int) -> None:
        """While any are expected, exits of processes that nobody claimed yet are kept: a child
        that a helper made for us may end before the helper has told us its number."""
        self._expecting += more
        if self._expecting == 0:
            self._unclaimed.clear()

    def on_exit(self, pid: int, action: OnExit) -> None:
        ended = self._unclaimed.pop(pid, None)
        if ended is not None and not _is_child(pid):
            action(*ended)
        else:
            self._on_exit[pid] = action

    def on_process_end(self, pid: int, action: Callable[[], None]) -> None:
        """Of a process that is not our child. Raises OSError when there is none."""
        end = os.pidfd_open(pid)

        def ended() -> None:
            self.unwatch(end)
            os.close(end)
            action()

        self.watch(end, ended)

    def _reap(self) -> None:
        try:
            while self._wake.recv(4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            action = self._on_exit.pop(pid, None)
            if action is not None:
                action(status, usage)
            elif self._expecting:
                self._unclaimed[pid] = (status, usage)

    def run(self) -> None:
        wake = self._wake.fileno()
        while self.running:
            ready = self._selector.select(self._until_next_timer())
            # Who waits for a command's end is told before its streams are tidied up.
            ready.sort(key=lambda item: item[0].fd != wake)
            for key, _events in ready:
                # An earlier action of this round may have closed it.
                if self._selector.get_map().get(key.fd) is key:
                    _survive(key.data)
            self._run_timers()

    def _until_next_timer(self) -> float | None:
        while self._timers and self._timers[0].action is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].when - time.monotonic())

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            action = heapq.heappop(self._timers).action
            if action is not None:
                _survive(action)


def _is_child(pid: int) -> bool:
    """Else one with that number has been reaped, and it is not somebody's new one."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _raise_open_files() -> tuple[int, int]:
    """As many as we may have: each live command takes some. Answers what was set before,
    which is what our children get."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel's own bound may have been lowered since.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def _survive(action: Callable[[], None]) -> None:
    """An unforeseen error costs one request, and stands in the log; ending here would cost
    every other sandbox its exit codes."""
    try:
        action()
    except Exception:
        sys.stderr.write(_traceback())
        sys.stderr.flush()


def _traceback() -> str:
    kind, error, trace = sys.exc_info()
    lines = [f"{kind.__name__ if kind else 'error'}: {error}"]
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f"  {code.co_filename}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return "\n".join(lines) + "\n"
