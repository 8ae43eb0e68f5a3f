"""Tells of limits that a sandbox hits: an event with the figure, never a silent kill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from carrel.domain.errors import LimitsUnavailable
from carrel.domain.limits import LimitKind, Limits, LimitSupport
from carrel.domain.runtimes import Exit, ExitReason, LimitHit, Sandbox
from carrel.runtimes.limits.cgroups import Cgroups

Kill = Callable[[str, str], Awaitable[None]]
