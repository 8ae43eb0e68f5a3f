"""What this interface calls, and what it is told about the daemon."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.collaborators import Bases
from carrel.domain.storing import Store
from carrel.hub.hub import Hub
from carrel.service.context import SpaceContext
from carrel.service.doctor import Doctor
from carrel.service.feed import Feed
from carrel.service.files import SpaceFiles
from carrel.service.gc import Collector
from carrel.service.hangups import Hangups
from carrel.service.inbox import Inbox
from carrel.service.instances import Instances
from carrel.service.keyring import Keyring
from carrel.service.requests import Requests
from carrel.service.runs import Runs
from carrel.service.spaces import Spaces
from carrel.service.tokens import Tokens
from carrel.service.turns import Turns


@dataclass(frozen=True)
class Services:
    store: Store
    spaces: Spaces
    runs: Runs
    hangups: Hangups
    turns: Turns
    keyring: Keyring
    context: SpaceContext
    files: SpaceFiles
    tokens: Tokens
    feed: Feed
    hub: Hub
    inbox: Inbox
    instances: Instances
    requests: Requests
    collector: Collector
    doctor: Doctor
    bases: Bases


def _nothing() -> None:
    """For an API that is not served by a daemon."""


@dataclass(frozen=True)
class Options:
    """`hosts` are names by which TCP clients may call the daemon beside those of the
    loopback, `origins` web pages that may. `idle_s` and `keep_s` are what spaces get that say
    nothing themselves."""

    data: Path
    version: str
    shutdown: Callable[[], None] = _nothing
    """Called when somebody asks the daemon to end; returns at once."""
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    idle_s: float = 0.0
    keep_s: float = 0.0
    started_at: float = field(default_factory=time.time)
