"""What instances are put together from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from carrel.domain.instances import Servers
from carrel.domain.reception import CompileCaches, HubClients, Owners, Reception
from carrel.domain.runs import Recordings
from carrel.service.instances.bridging import Bridging
from carrel.service.instances.equipping import Equipping
from carrel.service.instances.live import Book
from carrel.service.instances.needing import Needs
from carrel.service.instances.places import Places
from carrel.service.instances.warming import Warming
from carrel.service.journal import Journal
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces


@dataclass(frozen=True)
class InstanceRules:
    """What the settings say. 0: no bound."""

    most: int = 0
    per_caller: int = 0
    memory_bytes: int = 0
    starting: int = 0
    """At the same time; 0: as many as there are processors."""
    project_roots: tuple[Path, ...] = ()


@dataclass(frozen=True)
class InstanceParts:
    data: Path
    book: Book
    places: Places
    reception: Reception
    recordings: Recordings
    servers: Servers
    warming: Warming
    bridging: Bridging
    caches: CompileCaches
    owners: Owners
    hub: HubClients
    journal: Journal
    spaces: Spaces
    equipping: Equipping
    needs: Needs
    shared: Shared
    rules: InstanceRules
