"""How much requests may take, and how long they stay, where nobody says otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RequestRules:
    at_once: int = 4
    waiting: int = 1000
    """Beyond these, a request is refused."""
    frontend: str = "scripted"
    tier: str = "default"
    timeout_s: float = 1800.0
    given_up_s: float = 600.0
    """So long without its client a request goes on, and its result waits."""
    remembered: int = 1000
    """Requests that have ended, and of which nothing but the record is left."""
    webhook_hosts: tuple[str, ...] = ()
    """Where callers who are no administrators may have results sent."""
    webhook_tries: int = 8
    most_files: int = 10_000
    """In one answer."""
    content_bytes: int = 4 << 20
    """Of files, in one answer."""
