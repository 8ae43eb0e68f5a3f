"""Clean-up: what was found that the record does not know, and what was done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from carrel.domain.trees import Skipped, Tree, TreeDriver


@dataclass(frozen=True)
class Stray:
    """Something on the machine that belongs to no space of the record: a folder, a mount, a
    process, a control group, a user."""

    kind: str
    space_id: str
    path: str
    holds_work: bool = False
    """It is, or leads to, what somebody has worked on."""


class Sweeper(Protocol):
    """Finds and removes strays of this data folder. Blocking."""

    def find(self, known: frozenset[str], removed: frozenset[str]) -> list[Stray]:
        """`known` are the spaces that are there, `removed` some that are known to be gone:
        what could be somebody else's is a stray only when it names one of those."""
        ...

    def remove(self, stray: Stray) -> None:
        """Idempotent. Raises `CarrelError`s."""
        ...


@dataclass(frozen=True)
class Action:
    """One line of a report: what was (or would be) done to what, and why. `done` is False
    when it was not, and `why` then says what keeps it."""

    verb: str
    target: str
    why: str
    done: bool = True
    bytes_freed: int = 0


@dataclass(frozen=True)
class Report:
    dry_run: bool
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True)
class DiskPart:
    """Something below the data folder and what it takes on the disk. `bytes` is None for what
    cannot be measured, or not in time; `note` says so."""

    kind: str
    name: str
    bytes: int | None
    note: str = ""
    of: Mapping[str, int] = field(default_factory=dict)
    """A space's, by its folders."""


@dataclass(frozen=True)
class DiskReport:
    """What uses the disk with the data folder. `free_bytes` is without the reserve, which is one
    of the parts."""

    path: str
    total_bytes: int
    free_bytes: int
    parts: tuple[DiskPart, ...] = ()


# What is kept of removed spaces: a tree's changes in one file, as a contract.


@dataclass(frozen=True)
class Bundle:
    """A file with the changes of a tree: how big it is, how many they are, and what of
    them it does not hold."""

    bytes: int
    changes: int
    skipped: tuple[Skipped, ...] = ()


class Bundler(Protocol):
    """Blocking. Nothing runs in the tree meanwhile."""

    def pack(
        self, driver: TreeDriver, tree: Tree, base_id: str, target: Path, max_bytes: int
    ) -> Bundle:
        """Writes what the tree changed to `target`, which appears when it is complete and
        on the disk. Raises `TooLarge` when it would be bigger, `InsufficientDisk`, other
        `TreeError`s; and then leaves nothing."""
        ...

    def restore(self, driver: TreeDriver, tree: Tree, bundle: Path) -> None:
        """Changes a fresh tree of the same base as that one was changed. Raises
        `TreeDamaged` for a file that is not what was written, before it touches the tree;
        after other errors the tree is to be dropped."""
        ...
