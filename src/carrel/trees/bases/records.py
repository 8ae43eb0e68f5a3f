"""base.json: what is known of a base without reading its manifest, and whether the base survived
a crash of the machine.

A base is published without waiting for the disk. After a power cut, files of its last
minutes can be shorter than they were, so a base is checked once after the next boot.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carrel.domain.errors import TreeDamaged
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.trees import Base, Owner, Skipped
from carrel.linux.descriptors import Descriptor
from carrel.linux.statx import StatBatch, unpack_row
from carrel.trees.bases.manifest import read_manifest
from carrel.trees.git.index import is_whole
from carrel.trees.paths import PATH_LIMIT, join

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


# Checking after a boot


def check_record(record: Record) -> Record:
    """Raises `TreeDamaged` when a layer of the base is missing or incomplete."""
    for layer in record.base.layers:
        if not layer.is_dir():
            raise _damaged(record.base.folder, f"its layer {layer.parent.name} is missing")
    boot = boot_id()
    if record.boot and record.boot != boot:
        for folder in (layer.parent for layer in record.base.layers):
            _check_layer(folder, boot)
        record = replace(record, boot="")
    return record


def _check_layer(folder: Path, boot: str) -> None:
    record = read_record(folder)
    if not record.boot or record.boot == boot:
        return
    manifest = read_manifest(folder)
    own = len(manifest.layers) - 1
    sizes = {
        join(path, name): item.size
        for path, found in manifest.walk()
        for name, item in found.items().items()
        if item.layer == own and len(path) + len(name) < PATH_LIMIT
    }
    paths = list(sizes)
    with Descriptor(os.open(folder / LAYER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        answers = StatBatch().run(root, paths, 0)
    patched = {index.path for index in record.indexes}
    for index, path in enumerate(paths):
        if unpack_row(answers.rows, index).size == sizes[path]:
            continue
        # An index is not as long as the project's, but has a checksum.
        if path not in patched or not is_whole(folder / LAYER / os.fsdecode(path)):
            raise _damaged(folder, f"{os.fsdecode(path)!r} is not whole")
    fresh = folder / (FILE + ".new")
    fresh.write_bytes(encode_record(replace(record, boot="")))
    fresh.replace(folder / FILE)


def _damaged(folder: Path, why: str) -> TreeDamaged:
    return TreeDamaged(
        f"The base {folder.name} is damaged: {why}.", hint="Build the project's base again."
    )


def boot_id() -> str:
    """Names the time since the machine was started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
