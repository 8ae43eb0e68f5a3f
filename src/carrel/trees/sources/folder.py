"""A local folder as a project: what the person has, with git repositories that stand alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import (
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.trees import Owner, Skipped
from carrel.linux.openat2 import open_real
from carrel.linux.statx import StatBatch
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.scan import ScanFilter, Scanner, ScanResult, look_at_files
from carrel.trees.bases.views import FolderListing, KnownProject, Origin, ProjectView
from carrel.trees.git.repository import OutsideAccess
from carrel.trees.git.standalone import GitPlan, plan_git
from carrel.trees.mount_table import folder_times_tell
from carrel.trees.paths import is_below, join, split

_GIT = b".git"


def find_folder(location: str, data: Path) -> Path:
    """The real path of a project's folder. Raises the errors of bad input."""
    path = Path(location)
    try:
        real = path.resolve(strict=True)
        found = real.stat()
        is_folder = real.is_dir()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ProjectNotFound(
            f"There is no project at {location!r}.", hint="Check the path."
        ) from error
    except (OSError, RuntimeError) as error:
        raise _unreachable(location, error) from error
    if not is_folder:
        raise ProjectNotAFolder(
            f"{location!r} is a file, and a project is a folder.",
            hint="Give the folder that it is in, or an archive: tar or zip.",
        )
    if data.exists() and (os.path.samestat(found, data.stat()) or data.resolve() in real.parents):
        raise ProjectInvalid(
            f"{location!r} is Carrel's own data folder, or in it.",
            hint="Give the folder of a project.",
        )
    return real


def _unreachable(location: str, error: Exception) -> ProjectUnreadable | ProjectInvalid:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return ProjectUnreadable(
            f"The project at {location!r} may not be read.",
            hint="Give yourself the permission to read it.",
        )
    reason = getattr(error, "strerror", None) or str(error)
    return ProjectInvalid(
        f"The project at {location!r} cannot be opened: {reason}.", hint="Check the path."
    )


def repository_above(project: Project) -> Iterator[Skipped]:
    """Told when a folder is a part of a git repository, whose `.git` its spaces do not have. Looked
    at anew each time: it says nothing of what is in the folder."""
    if project.kind is not ProjectKind.FOLDER:
        return
    folder = Path(project.location)
    above = [path / ".git" for path in folder.parents]
    if not os.path.lexists(folder / ".git") and any(map(os.path.lexists, above)):
        yield Skipped(
            ".git",
            "is not there: this folder is a part of a git repository. For commits in the space,"
            " make it from the repository's own folder",
        )


class FolderSource:
    """One folder, by its real path, for one build. `rules` says what is left out of it,
    `outside` what git may bring from elsewhere."""

    def __init__(
        self, folder: Path, rules: ScanFilter, outside: Callable[[bytes], OutsideAccess]
    ) -> None:
        self._folder = folder
        self._outside = outside
        self._top = os.fsencode(folder)
        self._rules = rules
        self._batch = StatBatch()

    def look(self, known: KnownProject | None, on_count: Callable[[int], None]) -> ProjectView:
        """See `views.ProjectSource`."""
        try:
            return self._look(known, on_count)
        except FileNotFoundError as error:
            raise ProjectNotFound(
                f"The project at {str(self._folder)!r} is gone.", hint="Check the path."
            ) from error
        except OSError as error:
            raise _unreachable(str(self._folder), error) from error

    def _look(self, known: KnownProject | None, on_count: Callable[[int], None]) -> ProjectView:
        main = self._scan(Origin(self._top), known, known.named if known else frozenset(), on_count)
        checkouts = self._checkouts(main, known)
        plan = self._plan(checkouts) if checkouts else None
        named = _named(plan)
        if known is not None and known.named - named:
            # Something that was special is an ordinary part of the project again.
            main = _compared(
                _find(known, Origin(self._top)),
                self._scanner(Origin(self._top), named).full(on_count),
            )
        elif named != (known.named if known else frozenset()):
            main = _without(main, named)
        scans = [main, *self._elsewhere(plan, named, known, on_count)]
        return self._view(scans, plan, named, known, checkouts)

    def _plan(self, checkouts: tuple[bytes, ...]) -> GitPlan | None:
        outside = self._outside(self._top)
        plan = plan_git(self._folder, checkouts, outside)
        outside.remember()
        return plan

    def _scanner(self, origin: Origin, named: Iterable[bytes]) -> Scanner:
        rules = ScanFilter(
            self._rules.exclusion,
            frozenset(named) - {origin.target},
            self._rules.data,
            self._rules.max_files,
        )
        return Scanner(origin, rules, self._batch)

    def _scan(
        self,
        origin: Origin,
        known: KnownProject | None,
        named: Iterable[bytes],
        on_count: Callable[[int], None],
    ) -> ScanResult:
        before = _find(known, origin)
        scanner = self._scanner(origin, named)
        if before is None:
            return scanner.full(on_count)
        if folder_times_tell(origin.path):
            return scanner.again(before)
        return _compared(before, scanner.full(on_count))

    def _checkouts(self, main: ScanResult, known: KnownProject | None) -> tuple[bytes, ...]:
        """The folders that hold a `.git`, sorted."""
        paths = main.listing.paths
        new = paths if known is None else [paths[index] for index in main.touched]
        found = {split(path)[0] for path in new if path == _GIT or path.endswith(b"/.git")}
        found.update(known.checkouts if known else ())
        return tuple(
            path for path in sorted(found) if os.path.lexists(os.path.join(self._top, path, _GIT))
        )

    def _elsewhere(
        self,
        plan: GitPlan | None,
        named: frozenset[bytes],
        known: KnownProject | None,
        on_count: Callable[[int], None],
    ) -> list[ScanResult]:
        """What the plan takes from outside the folder."""
        scans = []
        files = []
        for target, source in plan.replace if plan else ():
            if _is_folder(source):
                origin = Origin(os.fsencode(source), target)
                # What special rules name within it may have changed since: look at it all.
                fresh = known is None or known.named != named
                before = None if fresh else known
                scanned = self._scan(origin, before, named, on_count)
                scans.append(_compared(_find(known, origin), scanned) if fresh else scanned)
            else:
                files.append(Origin(os.fsencode(source), target, is_file=True))
        for listing in look_at_files(files, self._batch) if files else ():
            before_file = _find(known, listing.origin)
            same = before_file is not None and before_file.rows == listing.rows
            scans.append(ScanResult(listing, [] if same else [0]))
        return [*scans, *self._stores(plan, named, known, on_count)]

    def _stores(
        self,
        plan: GitPlan | None,
        named: frozenset[bytes],
        known: KnownProject | None,
        on_count: Callable[[int], None],
    ) -> list[ScanResult]:
        """Objects that the plan takes from elsewhere, each from the first that has it."""
        have: set[bytes] = set()
        scans = []
        for target, source in plan.objects if plan else ():
            origin = Origin(os.fsencode(source), target, objects=True)
            found = self._scanner(origin, named | have).full(on_count)
            have.update(join(target, path) for path in found.listing.paths if b"/" in path)
            scans.append(_compared(_find(known, origin), found))
        return scans

    def _view(
        self,
        scans: list[ScanResult],
        plan: GitPlan | None,
        named: frozenset[bytes],
        known: KnownProject | None,
        checkouts: tuple[bytes, ...],
    ) -> ProjectView:
        listings = tuple(scanned.listing for scanned in scans)
        generated = dict(plan.generate) if plan else {}
        made = _missing_parents(plan, listings) if plan else frozenset()
        provided = made | generated.keys()
        gone = [scanned.listing.in_base(path) for scanned in scans for path in scanned.gone]
        if known is not None:
            gone += sorted(known.provided - provided)
            gone += _lost(known, listings)
            if len(listings) > 1 or known.provided:
                # What one place lost, another may have.
                have = {listing.in_base(path) for listing in listings for path in listing.paths}
                gone = [path for path in gone if path not in have]
        top = listings[0].row(0)
        return ProjectView(
            KnownProject(listings, named, frozenset(provided), checkouts),
            {number: scanned.touched for number, scanned in enumerate(scans)},
            tuple(gone),
            Owner(top.uid, top.gid),
            generated,
            made,
            tuple(IndexFile(index.index, index.worktree) for index in plan.indexes) if plan else (),
            plan is not None and plan.at_top,
            plan.notes if plan else (),
        )


def _is_folder(path: Path) -> bool:
    try:
        os.close(open_real(path))
    except OSError:
        return False
    return True


def _named(plan: GitPlan | None) -> frozenset[bytes]:
    if plan is None:
        return frozenset()
    return frozenset((*plan.generate, *(target for target, _ in plan.replace), *plan.omit))


def _find(known: KnownProject | None, origin: Origin) -> FolderListing | None:
    if known is None:
        return None
    return next((found for found in known.listings if found.origin == origin), None)


def _without(scanned: ScanResult, named: frozenset[bytes]) -> ScanResult:
    """Takes out what special rules have come to name."""
    listing = scanned.listing
    folders = tuple(path + b"/" for path in named)
    dropped = {
        index
        for index, path in enumerate(listing.paths)
        if path and (path in named or path.startswith(folders))
    }
    if not dropped:
        return scanned
    kept = listing.without(dropped)
    touched = set(scanned.touched)
    moved = [at for at in range(len(listing)) if at not in dropped]
    return ScanResult(
        kept,
        [new for new, old in enumerate(moved) if old in touched],
        [*scanned.gone, *(listing.paths[index] for index in sorted(dropped))],
    )


def _compared(before: FolderListing | None, scanned: ScanResult) -> ScanResult:
    """What of a full look is new against an earlier one."""
    if before is None:
        return scanned
    index = before.index()
    listing = scanned.listing
    touched = [
        at
        for at, path in enumerate(listing.paths)
        if (old := index.get(path)) is None or before.raw(old) != listing.raw(at)
    ]
    have = set(listing.paths)
    return ScanResult(listing, touched, [path for path in before.paths if path not in have])


def _lost(known: KnownProject, listings: tuple[FolderListing, ...]) -> list[bytes]:
    """What came from places that are no part of the project any more."""
    have = {listing.origin for listing in listings}
    return [
        listing.in_base(path)
        for listing in known.listings
        if listing.origin not in have
        for path in listing.paths
    ]


def _missing_parents(plan: GitPlan, listings: tuple[FolderListing, ...]) -> frozenset[bytes]:
    """Folders above what is provided that are in no listing."""
    wanted: set[bytes] = set()
    for path in (*plan.generate, *(target for target, _ in (*plan.replace, *plan.objects))):
        above = split(path)[0]
        while above and above not in wanted:
            wanted.add(above)
            above = split(above)[0]
    if wanted:
        for listing in listings:
            if any(is_below(path, listing.origin.target) for path in wanted):
                wanted -= {join(listing.origin.target, path) for path in listing.paths}
    return frozenset(wanted)
