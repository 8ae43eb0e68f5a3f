"""The launcher's event loop: descriptors, timers and dead children; nothing ever waits."""

from __future__ import annotations

import _thread
import contextlib
import heapq
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

MOST_UNCLAIMED = 10_000
"""Exits that are kept for who may claim them. They are claimed within one turn or two; the rest
are of helpers that nobody waits for, and of what detached itself."""

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
            if os.WIFSTOPPED(status):
                # It has asked to be traced by us, and waits for what we never do. It lives: to take
                # that for its end would leave it to nobody.
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                continue
            action = self._on_exit.pop(pid, None)
            if action is not None:
                # The others are waited for all the same: what nobody has waited for keeps its
                # sandbox.
                _survive(partial(action, status, usage))
            elif self._expecting:
                self._unclaimed[pid] = (status, usage)
                if len(self._unclaimed) > MOST_UNCLAIMED:
                    del self._unclaimed[next(iter(self._unclaimed))]

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


# What may wait in the kernel

PATIENCE_S = 0.02
"""So long the loop waits for a worker, which mostly takes microseconds …"""
PATIENCE_SHARE = 20
"""… and then not at all, for so many times as long as it has waited for the same account."""
MOST_IDLE_WORKERS = 4
NO_THREAD_S = 0.05
"""Until it is tried again to have one, when the machine, or our user, has none left."""

Answer = Callable[[], T]
"""Gives what the work gave, or raises what it raised."""


class Workers:
    """Threads for what is done to a pipe that a sandbox's processes have too. Whoever splices from
    an empty socket into a pipe, or is not given a processor in the middle of a write, keeps the
    pipe's lock; reading, measuring and closing it wait for that, even without O_NONBLOCK, and
    whoever waits cannot be killed. So only a thread ever waits, and those of others go on."""

    def __init__(self, loop: Loop) -> None:
        self.lock = _thread.allocate_lock()
        """Guards whether a worker has finished before the loop has stopped waiting for it."""
        self.late: list[Callable[[], None]] = []
        """What the loop is to call for those that finished later."""
        self._idle: list[_Worker] = []
        self._impatient: dict[str, float] = {}
        """Until when the loop waits for none of an account's."""
        self._stuck: Counter[str] = Counter()
        """Of each account, those that took longer than they had time."""
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop = loop
        loop.watch(self._wake, self._collect)

    def do(self, account: str, work: Callable[[], T], done: Callable[[Answer[T]], None]) -> bool:
        """Has a worker do it; `done` is called in the loop's thread. True when that was at once."""
        began = time.monotonic()
        patience = 0.0 if began < self._impatient.get(account, 0.0) else PATIENCE_S
        took = self._begin(work, done, patience)
        lost = patience if took is None else took
        if patience and lost > PATIENCE_S / PATIENCE_SHARE:
            self._impatient = {one: at for one, at in self._impatient.items() if at > began}
            self._impatient[account] = began + lost * PATIENCE_SHARE
        return took is not None

    def _begin(
        self, work: Callable[[], T], done: Callable[[Answer[T]], None], patience: float
    ) -> float | None:
        """How long the work itself took; None when it is not done yet."""
        try:
            worker = self._idle.pop() if self._idle else _Worker(self)
        except RuntimeError:
            # Who fills the machine with processes may hold a pipe's lock too: never do it here.
            def again() -> None:
                self._begin(work, done, 0.0)

            self._loop.after(NO_THREAD_S, again)
            return None
        worker.begin(work)
        if not worker.finished.acquire(timeout=patience):
            with self.lock:
                if not worker.finished.acquire(blocking=False):
                    worker.on_late = lambda: self._over(worker, done)
                    return None
        took = worker.took
        self._over(worker, done)
        return took

    def within(
        self, account: str, seconds: float, work: Callable[[], T], undo: Callable[[T], object]
    ) -> T | None:
        """What the work gives in that time; else None, and what comes later is undone. As long as
        that lasts, none of the same account is waited for."""
        found: list[T] = []
        late = False

        def done(answer: Answer[T]) -> None:
            if late:
                self._stuck.subtract([account])
                undo(answer())
            else:
                found.append(answer())

        late = self._begin(work, done, 0.0 if self._stuck[account] else seconds) is None
        if late:
            self._stuck.update([account])
        return found[0] if found else None

    def close(self, account: str, work: Callable[[], object]) -> None:
        """Has a worker do it, and does not ask how that went."""
        self.do(account, work, lambda _answer: None)

    def _over(self, worker: _Worker, done: Callable[[Answer[T]], None]) -> None:
        answer: Answer[T] = worker.answer
        if len(self._idle) < MOST_IDLE_WORKERS:
            self._idle.append(worker)
        else:
            worker.end()
        done(answer)

    def wake(self) -> None:
        # A full buffer wakes us as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        with self.lock:
            late, self.late = self.late, []
        for action in late:
            _survive(action)


class _Worker:
    """A thread that does one thing at a time. It is not waited for when the launcher ends."""

    def __init__(self, workers: Workers) -> None:
        """Raises RuntimeError when there can be no more threads."""
        self._workers = workers
        self._work: Callable[[], object] | None = None
        self._go = _thread.allocate_lock()
        self._go.acquire()
        self.finished = _thread.allocate_lock()
        self.finished.acquire()
        self.answer: Callable[[], Any] = lambda: None
        self.took = 0.0
        self.on_late: Callable[[], None] | None = None
        _thread.start_new_thread(self._run, ())

    def begin(self, work: Callable[[], object]) -> None:
        self._work, self.on_late = work, None
        self._go.release()

    def end(self) -> None:
        self._work = None
        self._go.release()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if self._work is None:
                return
            began = time.monotonic()
            self.answer = _answer(self._work)
            self.took = time.monotonic() - began
            with self._workers.lock:
                late = self.on_late
                if late is None:
                    self.finished.release()
                else:
                    self._workers.late.append(late)
            if late is not None:
                self._workers.wake()


def _answer(work: Callable[[], T]) -> Answer[T]:
    try:
        given = work()
    except Exception as error:
        problem = error

        def fail() -> T:
            raise problem

        return fail
    return lambda: given


# Pipes of lines

MOST_BYTES = 64 * 1024
"""Of all lines together. Our children say a few short ones; who says more is not ours, or
broken, and is heard no longer."""


class LinePipe:
    """`on_line` gets every whole line, `on_end` is called once when the writers are gone."""

    def __init__(
        self, loop: Loop, on_line: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_line = on_line
        self._on_end = on_end
        self._rest = b""
        self._left = MOST_BYTES
        self._open = True
        self._read, self.write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.write, True)
        loop.watch(self._read, self.look)

    def parent_side(self) -> None:
        """After the fork: only the child writes."""
        os.close(self.write)

    def close(self) -> None:
        """Nobody listens any more: no line and no end is told, and who writes gets SIGPIPE."""
        if self._open:
            self._open = False
            self._loop.unwatch(self._read)
            os.close(self._read)

    def look(self) -> None:
        """Takes what is there now."""
        if not self._open:
            return
        try:
            chunk = os.read(self._read, self._left)
        except BlockingIOError:
            return
        self._left -= len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        try:
            for line in lines:
                self._on_line(line)
                if not self._open:
                    return
        finally:
            # Whatever became of a line: who waits for the end is told.
            if not chunk or not self._left:
                self._last()

    def _last(self) -> None:
        if not self._open:
            return
        self.close()
        try:
            if self._rest:
                self._on_line(self._rest)
        finally:
            self._on_end()
