"""Processes of others, watched for their end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from carrel.linux import processes


class ProcessOwners:
    """Implements `carrel.domain.reception.Owners`."""

    def started(self, pid: int) -> int | None:
        return processes.start_time(pid) if pid > 0 else None

    def uid(self, pid: int) -> int | None:
        try:
            return os.stat(f"/proc/{pid}").st_uid
        except OSError:
            return None

    def on_end(self, pid: int, started: int, then: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return loop.call_soon(then).cancel
        if processes.start_time(pid) != started:
            # Its number was given to another one before we opened it.
            os.close(descriptor)
            return loop.call_soon(then).cancel
        open_now = True

        def take_back() -> None:
            nonlocal open_now
            if open_now:
                open_now = False
                loop.remove_reader(descriptor)
                os.close(descriptor)

        def ended() -> None:
            take_back()
            then()

        loop.add_reader(descriptor, ended)
        return take_back
