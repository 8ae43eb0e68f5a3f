"""Finding files that only changed their name: the same bytes, gone here and come there."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from carrel.domain.trees import Change, ChangeKind, EntryType
from carrel.trees.contents import digest
from carrel.trees.layers import Entry


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change, and the entry that came or went."""

    change: Change
    entry: Entry | None


def pair_renames(candidates: Iterator[Candidate]) -> Iterator[Change]:
    """The changes in their order, with an added and a deleted file of the same bytes made
    one. They flow until the first file that may have a partner; from there on, the
    partner could be the last one."""
    for candidate in candidates:
        if _may_pair(candidate):
            break
        yield candidate.change
    else:
        return
    held = [candidate, *candidates]
    renamed = _pair([one for one in held if _may_pair(one)])
    gone = {change.old_path for change in renamed.values()}
    for one in held:
        change = one.change
        if change.kind is ChangeKind.DELETED and change.path in gone:
            continue
        yield renamed.get(change.path, change)


def _may_pair(candidate: Candidate) -> bool:
    """Empty files are alike by chance, and not told apart."""
    change = candidate.change
    if change.kind is ChangeKind.ADDED:
        return change.new_type is EntryType.FILE and change.size > 0
    return (
        change.kind is ChangeKind.DELETED
        and change.old_type is EntryType.FILE
        and change.size > 0
    )


def _pair(candidates: list[Candidate]) -> dict[str, Change]:
    """The renames by their new path."""
    by_size: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_size[candidate.change.size].append(candidate)
    renamed = {}
    for alike in by_size.values():
        if len({one.change.kind for one in alike}) < 2:
            continue
        for added, deleted in _match(alike):
            renamed[added.path] = dataclasses.replace(
                added,
                kind=ChangeKind.RENAMED,
                old_path=deleted.path,
                old_type=deleted.old_type,
                old_mode=deleted.old_mode,
            )
    return renamed


def _match(alike: list[Candidate]) -> Iterator[tuple[Change, Change]]:
    """Pairs among files of one size; those that kept their last name find one another first."""
    names: dict[tuple[int, int], bytes | None] = {}
    added: dict[bytes, list[Change]] = defaultdict(list)
    deleted: dict[bytes, list[Change]] = defaultdict(list)
    for one in alike:
        content = _content(one, names)
        if content is not None:
            side = added if one.change.kind is ChangeKind.ADDED else deleted
            side[content].append(one.change)
    for content, come in added.items():
        gone = deleted.get(content, [])
        for same_name in (True, False):
            for change in list(come):
                partner = next((one for one in gone if not same_name or _alike(one, change)), None)
                if partner is not None:
                    come.remove(change)
                    gone.remove(partner)
                    yield change, partner


def _alike(one: Change, other: Change) -> bool:
    return os.path.basename(one.path) == os.path.basename(other.path)


def _content(candidate: Candidate, names: dict[tuple[int, int], bytes | None]) -> bytes | None:
    """What names the bytes; a file that shows up twice is read once."""
    entry = candidate.entry
    if entry is None:
        return None
    if entry.key not in names:
        try:
            descriptor = entry.content.root.open_file(entry.content.path)
        except FileNotFoundError:
            names[entry.key] = None
            return None
        try:
            names[entry.key] = digest(descriptor, candidate.change.size)
        finally:
            os.close(descriptor)
    return names[entry.key]
