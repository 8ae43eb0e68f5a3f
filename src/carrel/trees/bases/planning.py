"""Decides, from what is new in a project, what must be read and stored."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field

from carrel.linux.statx import Row
from carrel.trees.bases.drafting import Draft
from carrel.trees.bases.filling import Job
from carrel.trees.bases.heads import Known
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.views import Seen, View

_GIT_OBJECT = re.compile(
    rb"(?:^|/)objects/(?:[0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]+\.(?:pack|idx|rev))$"
)
"""Named by their content and never written again. But git touches those that it would have
written, packs of any size among them, and local clones give them further names."""
_FOLDER_MODE = stat.S_IFDIR | 0o755
"""Of folders that only special rules ask for."""


@dataclass
class Plan:
    """`groups` are further names of files, by the path of the job that stores them."""

    jobs: list[Job] = field(default_factory=list)
    groups: dict[bytes, list[bytes]] = field(default_factory=dict)
    generated: dict[bytes, bytes] = field(default_factory=dict)


def plan(view: View, draft: Draft, before: Known | None) -> Plan:
    """Puts folders into the draft and takes out what is gone; the rest becomes jobs.
    `before` is what the project looked like when what the draft has was stored."""
    for path in view.gone:
        draft.drop(path)
    seen_now = view.seen()
    found = [(seen.path, seen.row.mode, seen.row.mtime_ns) for seen in seen_now if _is_folder(seen)]
    made = [(path, _FOLDER_MODE, 0) for path in view.made if draft.folder(path) is None]
    for path, mode, mtime_ns in sorted([*found, *made]):
        draft.put_folder(path, mode, mtime_ns)
    result = Plan(generated=dict(view.generated))
    files = [seen for seen in seen_now if not _is_folder(seen)]
    same = _same_objects(files, draft, before) if before is not None else set()
    _plan_files([seen for seen in files if seen.path not in same], view, draft, result)
    return result


def _same_objects(files: list[Seen], draft: Draft, before: Known) -> set[bytes]:
    """Git objects that are stored already, and of which only the ctime changed, as when they
    get a further name: nobody writes into them, so they need not be read."""
    objects = [
        seen
        for seen in files
        if _GIT_OBJECT.search(seen.path)
        and (item := draft.item(seen.path)) is not None
        and (item.mode, item.size, item.leader) == (seen.row.mode, seen.row.size, b"")
    ]
    if not objects:
        return set()
    listings = {listing.origin: (listing, listing.index()) for listing in before.listings}
    found = set()
    for seen in objects:
        listing, places = listings.get(seen.origin, (None, {}))
        at = places.get(seen.inside)
        if listing is None or at is None:
            continue
        if _written_as(seen.row) == _written_as(listing.row(at)):
            found.add(seen.path)
    return found


def _written_as(row: Row) -> tuple[int, ...]:
    return (row.mount, row.inode, row.mode, row.size, row.mtime_ns)


def _plan_files(files: list[Seen], view: View, draft: Draft, result: Plan) -> None:
    linked = {_identity(seen) for seen in files if seen.row.links > 1 and _is_file(seen)}
    names: dict[tuple[bytes, int, int], list[Seen]] = {}
    if linked:
        # Also names that were looked at just before the file changed.
        for seen in view.same_files(linked):
            names.setdefault(_identity(seen), []).append(seen)
    for seen in files:
        group = names.get(_identity(seen), [])
        if len(group) < 2:
            result.jobs.append(_job(seen, _keepable(seen, draft, b"")))
    for group in names.values():
        if len(group) > 1:
            _plan_group(group, draft, result)
    result.jobs.sort(key=lambda job: job.path)


def _plan_group(group: list[Seen], draft: Draft, result: Plan) -> None:
    """One file with several names in the project: stored or kept as a whole."""
    group.sort(key=lambda seen: seen.path)
    leader = group[0].path
    kept = [_keepable(seen, draft, leader) for seen in group]
    result.jobs.append(_job(group[0], kept[0] if all(kept) else None))
    result.groups[leader] = [seen.path for seen in group[1:]]


def _keepable(seen: Seen, draft: Draft, leader: bytes) -> Item | None:
    """What is stored already, if only its bytes are left to be compared."""
    item = draft.item(seen.path)
    row = seen.row
    if item is None or item.leader != leader:
        return None
    if (item.mode, item.size) != (row.mode, row.size):
        return None
    same = item.mtime_ns == row.mtime_ns or _GIT_OBJECT.search(seen.path) is not None
    return item if same else None


def _job(seen: Seen, keep: Item | None) -> Job:
    return Job(seen.path, seen.origin, seen.inside, seen.row.mode, seen.row, seen.raw, keep)


def _identity(seen: Seen) -> tuple[bytes, int, int]:
    return (seen.origin.path, seen.row.mount, seen.row.inode)


def _is_folder(seen: Seen) -> bool:
    return stat.S_ISDIR(seen.row.mode)


def _is_file(seen: Seen) -> bool:
    return stat.S_ISREG(seen.row.mode)
