"""What the parts of the service share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from carrel.service.locks import Locks
from carrel.service.tasks import Tasks


@dataclass(frozen=True)
class Policy:
    """What the settings say about what callers may do."""

    project_roots: tuple[Path, ...] = ()
    """Folders of this machine from which callers without full rights may take projects."""


@dataclass(frozen=True)
class Shared:
    locks: Locks = field(default_factory=Locks)
    tasks: Tasks = field(default_factory=Tasks)
