"""How long is waited; and calls to a daemon that may be killed at any moment."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from carrel.domain.errors import DaemonUnavailable

SLOWER_VARIABLE = "CARREL_SLOWER"
SLOWER = float(os.environ.get(SLOWER_VARIABLE, "1"))
"""So many times longer than usual may anything take: where a kernel or a machine is emulated."""
BACK_S = 60.0 * SLOWER
"""Until a daemon that was killed is up again, on a loaded machine."""
_STEP_S = 0.02

T = TypeVar("T")


class Calls(Protocol):
    """How clients bear a daemon that goes away."""

    async def surely(self, call: Callable[[], Awaitable[T]]) -> T:
        """Its result. For calls that do no harm when they are made twice."""
        ...

    async def once(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Its result; None when nobody knows whether it was done."""
        ...


class Impatient:
    """For a daemon that is there: any loss is a fault."""

    async def surely(self, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def once(self, call: Callable[[], Awaitable[T]]) -> T | None:
        return await call()


class Patient:
    """For one that is killed and started again."""

    async def surely(self, call: Callable[[], Awaitable[T]]) -> T:
        until = time.monotonic() + BACK_S
        while True:
            try:
                return await call()
            except DaemonUnavailable:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_STEP_S)

    async def once(self, call: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await call()
        except DaemonUnavailable:
            return None
