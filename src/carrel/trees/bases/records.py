"""base.json: what is known of a base without reading its manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.domain.errors import TreeDamaged
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.trees import Base, Owner, Skipped

_FORMAT = 1
FILE = "base.json"
LAYER = "layer"


@dataclass(frozen=True)
class IndexFile:
    """A git index in a base, and the folder that its paths start from."""

    path: bytes
    worktree: bytes


@dataclass(frozen=True)
class Record:
    """A base, and what only the store needs to know of it."""

    base: Base
    layout: str
    indexes: tuple[IndexFile, ...] = ()
    boot: str = ""
    """The machine's boot in which it was written; after another one it is checked once,
    since files of the last minutes before a power cut may be cut short."""

    @property
    def stack(self) -> tuple[str, ...]:
        """The bases whose layers it stands on, its own first."""
        return tuple(layer.parent.name for layer in self.base.layers)


def encode_record(record: Record) -> bytes:
    # Odd names in paths are lone surrogates, which JSON writes as escapes.
    base = record.base
    values = {
        "version": _FORMAT,
        "base_id": base.base_id,
        "project": {
            "kind": base.project.kind.value,
            "location": base.project.location,
            "ref": base.project.ref,
        },
        "layers": list(record.stack),
        "entries": base.entries,
        "size_bytes": base.size_bytes,
        "created_at": base.created_at,
        "store_owner": [base.store_owner.uid, base.store_owner.gid],
        "project_owner": [base.project_owner.uid, base.project_owner.gid],
        "has_git": base.has_git,
        "skipped": [[skip.path, skip.why] for skip in base.skipped],
        "unstable": list(base.unstable),
        "layout": record.layout,
        "indexes": [[index.path.hex(), index.worktree.hex()] for index in record.indexes],
        "boot": record.boot,
    }
    return json.dumps(values, indent=1).encode("ascii")


def read_record(folder: Path) -> Record:
    """Raises FileNotFoundError for no base, `TreeDamaged` for one that cannot be read."""
    data = (folder / FILE).read_bytes()
    try:
        values = json.loads(data)
        if values["version"] != _FORMAT:
            raise ValueError(f"its format is {values['version']}")
        return _record(folder, values)
    except (ValueError, KeyError, TypeError) as error:
        raise TreeDamaged(
            f"The description of base {folder.name} cannot be read: {error}.",
            hint="Remove the base, and build it again.",
        ) from error


def _record(folder: Path, values: dict[str, Any]) -> Record:
    project = values["project"]
    base = Base(
        base_id=values["base_id"],
        project=Project(ProjectKind(project["kind"]), project["location"], project["ref"]),
        folder=folder,
        layers=tuple(folder.parent / name / LAYER for name in values["layers"]),
        entries=values["entries"],
        size_bytes=values["size_bytes"],
        created_at=values["created_at"],
        store_owner=Owner(*values["store_owner"]),
        project_owner=Owner(*values["project_owner"]),
        has_git=values["has_git"],
        skipped=tuple(Skipped(path, why) for path, why in values["skipped"]),
        unstable=tuple(values["unstable"]),
    )
    indexes = tuple(
        IndexFile(bytes.fromhex(path), bytes.fromhex(worktree))
        for path, worktree in values["indexes"]
    )
    return Record(base, values["layout"], indexes, values["boot"])
