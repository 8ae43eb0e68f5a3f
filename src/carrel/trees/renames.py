"""Finding files that only changed their name: the same bytes, gone here and come there."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from carrel.domain.trees import Change, ChangeKind, EntryType
from carrel.trees.contents import digest
from carrel.trees.layers import Entry

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change, and the entry that came or went."""

    change: Change
    entry: Entry


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
        change.kind is ChangeKind.DELETED and change.old_type is EntryType.FILE and change.size > 0
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
    """Pairs among files of one size. What is the very same file on disk, as under a folder
    of an overlay that was moved, needs no reading."""
    rest: list[Candidate] = []
    for group in _grouped(alike, lambda one: one.entry.key).values():
        yield from _zip(group, rest)
    read, rest = rest, []
    if len({one.change.kind for one in read}) == 2:
        for content, group in _grouped(read, _content).items():
            if content is not None:
                yield from _zip(group, rest)


def _grouped(
    candidates: list[Candidate], name: Callable[[Candidate], _Name]
) -> dict[_Name, list[Candidate]]:
    groups: dict[_Name, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        groups[name(candidate)].append(candidate)
    return groups


def _zip(group: list[Candidate], rest: list[Candidate]) -> Iterator[tuple[Change, Change]]:
    """Pairs files of the same bytes, those that kept their last name first; the others go
    to `rest`."""
    gone = [one for one in group if one.change.kind is ChangeKind.DELETED]
    come = [one for one in group if one.change.kind is ChangeKind.ADDED]
    by_name = _grouped(gone[::-1], _last_name)
    strangers = []
    paired = set()
    for one in come:
        if partners := by_name.get(_last_name(one)):
            partner = partners.pop().change
            paired.add(partner.path)
            yield one.change, partner
        else:
            strangers.append(one)
    left = [one for one in gone if one.change.path not in paired]
    for one, other in zip(strangers, left, strict=False):
        yield one.change, other.change
    count = min(len(strangers), len(left))
    rest += strangers[count:] + left[count:]


def _last_name(candidate: Candidate) -> str:
    return os.path.basename(candidate.change.path)


def _content(candidate: Candidate) -> bytes | None:
    """What names the bytes; None when they have gone meanwhile."""
    content = candidate.entry.content
    try:
        descriptor = content.root.open_file(content.path)
    except FileNotFoundError:
        return None
    try:
        return digest(descriptor, candidate.change.size)
    finally:
        os.close(descriptor)
