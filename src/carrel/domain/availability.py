"""What a back end says of itself on this machine, after trying it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Availability:
    """`reason` says what was tried and seen; `remedy` is a command, or empty."""

    available: bool
    reason: str
    remedy: str = ""
