"""Whether bases survived a crash of the machine.

A base is published without waiting for the disk. After a power cut, files of its last
minutes can be shorter than they were, so a base is checked once after the next boot.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from carrel.domain.errors import TreeDamaged
from carrel.linux.statx import StatBatch, unpack_row
from carrel.trees.bases.manifest import read_manifest
from carrel.trees.bases.places import PATH_LIMIT, join
from carrel.trees.bases.publishing import boot_id
from carrel.trees.bases.records import FILE, LAYER, Record, encode_record, read_record
from carrel.trees.git.index import is_whole


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
    root = os.open(folder / LAYER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        answers = StatBatch().run(root, paths, 0)
    finally:
        os.close(root)
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
