"""Choosing a runtime: the best that truly holds here, or a refusal that says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.domain.availability import Availability
from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Runtime


@dataclass(frozen=True)
class Choice:
    """`seen` is what each runtime that was tried said, in order."""

    runtime: Runtime
    seen: tuple[tuple[str, Availability], ...]


async def choose_runtime(candidates: Sequence[Runtime]) -> Choice:
    """The first confining one that works. One that confines nothing is never chosen: it has
    to be asked for by name."""
    seen: list[tuple[str, Availability]] = []
    for runtime in candidates:
        if not runtime.capabilities.confines:
            continue
        found = await runtime.probe()
        seen.append((runtime.name, found))
        if found.available:
            return Choice(runtime, tuple(seen))
    reasons = " ".join(f"{name}: {found.reason}" for name, found in seen)
    remedies = [found.remedy for _, found in seen if found.remedy]
    raise SandboxUnavailable(
        f"Nothing on this machine can confine an agent. {reasons}",
        hint="; or ".join(remedies) or "See docs/sandboxes.md for what a runtime needs.",
        seen={name: found.reason for name, found in seen},
    )
