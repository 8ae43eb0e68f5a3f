"""Reads which files a folder has and what they look like, fast, and again even faster.

The first look lists every folder. A later one asks about all paths that are known: a
folder whose own times are unchanged has the same names in it as before, so only folders
that changed are listed again. Contents are never read here.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pathspec import GitIgnoreSpec

from carrel.domain.errors import ProjectInvalid, ProjectTooLarge, ProjectUnreadable
from carrel.domain.trees import Skipped
from carrel.linux.descriptors import Descriptor
from carrel.linux.statx import ROW, Answers, StatBatch
from carrel.trees.bases.views import FolderListing, Origin, differing, shown
from carrel.trees.git.objects import is_object_folder, is_object_name
from carrel.trees.mount_table import pseudo_file_system
from carrel.trees.paths import LONGEST, PATH_LIMIT, join, open_folder, split

_NAMED_GROUP = re.compile(r"\(\?P<[^>]+>")


class Exclusion:
    """Asked for every entry of a project, folders before what is in them: so what is in
    an excluded folder is never asked for, nor can it be included again, as in git."""

    def __init__(self, patterns: Sequence[str], *, joined: bool = True) -> None:
        """Raises `ProjectInvalid` for a pattern that git would not take. Not `joined` they are
        looked at one by one: strangers' patterns, of which no single look is to take long."""
        self._joined = joined
        try:
            self._compile(patterns)
        except (ValueError, re.error, RecursionError, OverflowError) as error:
            # Also what a library makes of `[z-a]`: strangers write such patterns.
            raise ProjectInvalid(
                f"A pattern of what to exclude is not valid: {error}.",
                hint="Patterns are written as in .gitignore.",
            ) from error

    def _compile(self, patterns: Sequence[str]) -> None:
        parsed = GitIgnoreSpec.from_lines(patterns).patterns
        self._rules = [
            (bool(pattern.include), _linear(_plain(pattern.regex.pattern)))
            for pattern in parsed
            if pattern.include is not None and pattern.regex is not None
        ]
        self._any: re.Pattern[str] | None = None
        if self._joined and self._rules and all(include for include, _ in self._rules):
            # One look at each path instead of one per pattern.
            joined = "|".join(f"(?:{text})" for _, text in self._rules)
            self._any = re.compile(joined, re.DOTALL)
        self._last_first = [
            (include, re.compile(text, re.DOTALL)) for include, text in reversed(self._rules)
        ]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def matches(self, path: bytes, *, folder: bool) -> bool:
        return bool(self.decides(os.fsdecode(path), folder=folder))

    def decides(self, path: str, *, folder: bool) -> bool | None:
        """What the last rule that fits says; None when none does."""
        text = path + ("/" if folder else "")
        if self._any is not None:
            return True if self._any.match(text) is not None else None
        return next((yes for yes, rule in self._last_first if rule.match(text)), None)


def _plain(pattern: str) -> str:
    """The same expression so that it can stand beside others, and for names in which
    there is a newline."""
    return _NAMED_GROUP.sub("(?:", pattern).replace("|$)", r"|\Z)")


_STAR, _LEADING, _DEEP, _END = "[^/]*", "(?:.+/)?", "(?:/.+)?/", "(?:(?:/)|"
"""How `*`, a first `**/` and `/**/` are written in an expression, and how its end begins."""
_TOKEN = re.compile(
    rf"{re.escape(_STAR)}|{re.escape(_LEADING)}|{re.escape(_DEEP)}|{re.escape(_END)}"
    r"|\\.|\[(?:\^|\\\^)?\]?(?:\\.|[^]\\])*\]|.",
    re.DOTALL,
)


def _linear(pattern: str) -> str:
    """The same expression, in which everything but the last is taken where it is first found: what
    comes behind a star then fits whatever is left, or nothing does. To try every other place takes
    time that doubles with each star, and Python does nothing else meanwhile."""
    runs: list[list[str]] = [[]]
    for token in _TOKEN.findall(pattern):
        if token == _DEEP:
            runs.append([])
        else:
            runs[-1].append(token)
    *early, last = ["".join(_eager(run)) for run in runs]
    found = [f"(?>(?:/.+?)??/{one}(?=/))" for one in early]
    if early:
        start, lead, first = early[0].partition(_LEADING)
        found[0] = f"{start}(?>(?:.+?/)??{first}(?=/))" if lead else early[0]
    return "".join([*found, _DEEP if early else "", last])


def _eager(run: Sequence[str]) -> Iterable[str]:
    """Of what is in one folder or file's name."""
    after: list[str] | None = None
    for token in run:
        if token == _STAR:
            yield f"(?>{_STAR}?{''.join(after)})" if after else ""
            after = []
        elif after is None or token in ("/", "(", _LEADING, _END):
            yield (_STAR + "".join(after) if after is not None else "") + token
            after = None
        else:
            after.append(token)
    if after is not None:
        yield _STAR + "".join(after)


# Scanning

_BATCH = 2048
_MODES = slice(6, None, ROW // 2)
_REGULAR, _FOLDER, _SYMLINK = 8, 4, 10
_KINDS = {1: "a named pipe", 2: "a character device", 6: "a block device", 12: "a socket"}
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_DEEPEST = 1000
"""Levels of folders. Every look at a path goes through all the folders above it, so that what
is nested without end takes the square of that; real projects have some dozens."""
_SHOWN = 60
"""Bytes of a path that is too long to be shown."""
_NAMED = 5
"""So many paths are named in an error; the rest is counted."""


@dataclass(frozen=True)
class ScanFilter:
    """What a scan leaves out. `named` are paths of the base that something else provides
    or that are not wanted; `data` is Carrel's own folder."""

    exclusion: Exclusion
    named: frozenset[bytes] = frozenset()
    data: os.stat_result | None = None
    max_files: int | None = None

    def drops(self, path: bytes, *, folder: bool) -> bool:
        return path in self.named or (
            bool(self.exclusion) and self.exclusion.matches(path, folder=folder)
        )

    @property
    def is_open(self) -> bool:
        return not self.named and not self.exclusion


@dataclass(frozen=True)
class ScanResult:
    """A listing, and what in it is not as in the one before: numbers of entries that are
    new or different, and paths (relative to the origin) that are no longer there."""

    listing: FolderListing
    touched: list[int]
    gone: list[bytes] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.touched or self.gone)


def unreadable(paths: Iterable[bytes], reason: str) -> ProjectUnreadable:
    found = sorted(paths)
    names = ", ".join(repr(shown(path)) for path in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ProjectUnreadable(
        f"{len(found)} of the project's entries cannot be read ({reason}): {names}{more}.",
        hint="Exclude them, or give yourself the permission to read them.",
        paths=[os.fsdecode(path) for path in found[:_NAMED]],
        count=len(found),
    )


def guard_size(listings: Iterable[FolderListing], limit: int | None) -> None:
    """Raises `ProjectTooLarge` when all files together have more bytes than are allowed."""
    if limit is None:
        return
    total = sum(map(_bytes, listings))
    if total > limit:
        raise ProjectTooLarge(
            f"The project has {total} bytes, more than the {limit} that were allowed.",
            hint="Exclude what is not needed, or allow more.",
            size_bytes=total,
            limit=limit,
        )


def _bytes(listing: FolderListing) -> int:
    sizes = memoryview(listing.rows).cast("Q")[3 :: ROW // 8].tolist()
    modes = memoryview(listing.rows).cast("H")[_MODES].tolist()
    return sum(size for size, mode in zip(sizes, modes, strict=True) if not stat.S_ISDIR(mode))


class Scanner:
    """One origin, looked at once; not for two threads."""

    def __init__(self, origin: Origin, rules: ScanFilter, batch: StatBatch) -> None:
        self._origin = origin
        self._rules = rules
        self._batch = batch
        self._listing = FolderListing(origin)
        self._queue: list[bytes] = []
        self._denied: dict[bytes, str] = {}
        self._skips: dict[str, Skipped] = {}
        self._root_fd = -1
        self._device = 0

    def full(self, on_count: Callable[[int], None] = lambda _count: None) -> ScanResult:
        """Lists everything. Raises OSError when the origin itself cannot be opened,
        `ProjectUnreadable`, `ProjectTooLarge`."""
        self._open()
        try:
            top = self._batch.run(self._root_fd, [b"."], self._device)
            self._listing.extend([b""], top.rows)
            self._walk([b""], on_count)
        finally:
            os.close(self._root_fd)
        self._refuse_unreadable()
        self._listing.skipped = list(self._skips.values())
        return ScanResult(self._listing, list(range(len(self._listing))))

    def again(self, known: FolderListing) -> ScanResult:
        """Looks at what is known, and for what is new. Raises as `full`."""
        self._open()
        try:
            paths = [b".", *known.paths[1:]]
            answers = self._ask(paths)
            touched = differing(known.rows, answers.rows)
            if not touched:
                return ScanResult(known, [])
            return self._update(known, answers, touched)
        finally:
            os.close(self._root_fd)

    def _open(self) -> None:
        self._root_fd = self._origin.open()
        self._device = os.fstat(self._root_fd).st_dev

    # Looking at everything

    def _walk(self, folders: list[bytes], on_count: Callable[[int], None]) -> None:
        self._queue += folders
        pending: list[bytes] = []
        while self._queue or pending:
            if self._queue and len(pending) < _BATCH:
                pending += self._list(self._queue.pop())
                continue
            self._judge(pending, self._ask(pending))
            pending = []
            on_count(len(self._listing))

    def _list(self, folder: bytes) -> list[bytes]:
        """The paths in a folder."""
        try:
            fd = open_folder(self._root_fd, folder)
        except OSError as error:
            self._explain(folder, error)
            return []
        try:
            names = "\0".join(os.listdir(fd))
        except OSError as error:
            self._explain(folder, error)
            return []
        finally:
            os.close(fd)
        if not names:
            return []
        prefix = folder + b"/" if folder else b""
        return [prefix + name for name in os.fsencode(names).split(b"\0")]

    def _ask(self, paths: list[bytes]) -> Answers:
        answers = self._batch.run(self._root_fd, paths, self._device)
        for index in [at for at in answers.failed if len(paths[at]) >= PATH_LIMIT]:
            self._ask_deep(paths[index], index, answers)
        modes = memoryview(answers.rows).cast("H")
        for index, device in answers.foreign.items():
            # The field after the mode numbers the file system; see `Row.mount`.
            modes[index * ROW // 2 + 7] = 1 + device % 65535
        return answers

    def _ask_deep(self, path: bytes, index: int, answers: Answers) -> None:
        folder, name = split(path)
        try:
            fd = open_folder(self._root_fd, folder)
        except OSError as error:
            self._explain(path, error)
            return
        try:
            one = self._batch.run(fd, [name], self._device)
        finally:
            os.close(fd)
        if not one.failed:
            answers.failed.remove(index)
            answers.rows[index * ROW : (index + 1) * ROW] = one.rows
            if one.foreign:
                answers.foreign[index] = one.foreign[0]

    def _judge(self, paths: list[bytes], answers: Answers) -> list[int]:
        """Takes what belongs to the base; gives the numbers of the new entries."""
        modes = memoryview(answers.rows).cast("H")[_MODES].tolist()
        dropped = set(answers.failed)
        for index in answers.failed:
            self._explain_failure(paths[index])
        if self._rules.is_open and not self._origin.objects:
            # Most entries are regular files with nothing to say about them.
            asked = [index for index, mode in enumerate(modes) if mode >> 12 != _REGULAR]
        else:
            asked = list(range(len(paths)))
        dropped |= {
            index
            for index in asked
            if index not in dropped and self._leaves_out(paths[index], modes[index], index, answers)
        }
        kept = FolderListing(self._origin, paths, answers.rows).without(dropped)
        first = len(self._listing)
        self._listing.extend(kept.paths, kept.rows)
        self._guard()
        return list(range(first, len(self._listing)))

    def _leaves_out(self, path: bytes, mode: int, index: int, answers: Answers) -> bool:
        kind = mode >> 12
        if self._origin.objects:
            named = is_object_folder if kind == _FOLDER else is_object_name
            if kind not in (_FOLDER, _REGULAR) or not named(path):
                return True
        if self._rules.drops(self._in_base(path), folder=kind == _FOLDER):
            return True
        if kind == _FOLDER:
            return not self._enters(path, index, answers)
        if kind in (_REGULAR, _SYMLINK):
            return False
        self._skip(path, f"is {_KINDS.get(kind, 'a special file')}")
        return True

    def _enters(self, path: bytes, index: int, answers: Answers) -> bool:
        data = self._rules.data
        device = answers.foreign.get(index, self._device)
        if data is not None and device == data.st_dev:
            inode = int.from_bytes(answers.rows[index * ROW + 16 : index * ROW + 24], "little")
            if inode == data.st_ino:
                self._skip(path, "is Carrel's own data folder")
                return False
        if index in answers.foreign and (kind := pseudo_file_system(device)):
            self._skip(path, f"is a mounted {kind} file system")
            return False
        if path.count(b"/") >= _DEEPEST or len(path) > LONGEST:
            raise ProjectTooLarge(
                f"The project has folders more than {_DEEPEST} levels or {LONGEST} letters deep: "
                f"{shown(self._in_base(path[:_SHOWN]))!r}...",
                hint="Exclude them.",
                limit=_DEEPEST,
            )
        self._queue.append(path)
        return True

    # Looking again

    def _update(self, known: FolderListing, answers: Answers, touched: list[int]) -> ScanResult:
        failed = set(answers.failed)
        for index in answers.failed:
            self._explain_failure(known.paths[index])
        modes = memoryview(answers.rows).cast("H")[_MODES]
        dropped = set(failed)
        lost: list[bytes] = []
        for index in touched:
            if index == 0:
                continue
            path = known.paths[index]
            if index not in failed and self._leaves_out(path, modes[index], index, answers):
                dropped.add(index)
            stays = index not in dropped and modes[index] >> 12 == _FOLDER
            if not stays and stat.S_ISDIR(known.row(index).mode):
                lost.append(path + b"/")
        if 0 in touched:
            self._queue.append(b"")
        modes.release()
        if lost:
            # Below what is no folder any more, paths may still lead somewhere: by symlink, or
            # since it was back a moment later.
            below = tuple(lost)
            dropped |= {at for at, path in enumerate(known.paths) if path.startswith(below)}
        kept = FolderListing(self._origin, known.paths, answers.rows, joined=known.joined)
        return self._add_new(known, kept.without(dropped), sorted(dropped), touched)

    def _add_new(
        self, known: FolderListing, kept: FolderListing, dropped: list[int], touched: list[int]
    ) -> ScanResult:
        self._listing = kept
        first = len(self._listing)
        have = set(kept.paths) if self._queue else None
        self._queue = [path for path in self._queue if have is None or path in have]
        listed = set(self._queue)
        for skip in known.skipped:
            parent = self._parent_of(skip)
            if have is None or (parent in have and parent not in listed):
                self._skips.setdefault(skip.path, skip)
        if have is not None:
            self._list_new(have)
        self._refuse_unreadable()
        self._listing.skipped = list(self._skips.values())
        gone = [known.paths[index] for index in dropped]
        left_out = set(dropped)
        moved = [at - bisect_left(dropped, at) for at in touched if at not in left_out]
        return ScanResult(self._listing, [*moved, *range(first, len(self._listing))], gone)

    def _list_new(self, have: set[bytes]) -> None:
        """Lists the folders in the queue for paths that are not known yet."""
        fresh: list[bytes] = []
        while self._queue:
            fresh += [path for path in self._list(self._queue.pop()) if path not in have]
        if fresh:
            self._judge(fresh, self._ask(fresh))
            self._walk([], lambda _count: None)

    def _parent_of(self, skip: Skipped) -> bytes:
        parent, _ = split(os.fsencode(skip.path))
        target = self._origin.target
        return parent[len(target) + 1 :] if target else parent

    # What is reported

    def _in_base(self, path: bytes) -> bytes:
        return join(self._origin.target, path)

    def _skip(self, path: bytes, why: str) -> None:
        shown_path = os.fsdecode(self._in_base(path))
        self._skips[shown_path] = Skipped(shown_path, why)

    def _explain_failure(self, path: bytes) -> None:
        folder, name = split(path)
        try:
            with Descriptor(open_folder(self._root_fd, folder)) as fd:
                os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            self._explain(path, error)

    def _explain(self, path: bytes, error: OSError) -> None:
        """What has gone meanwhile is no trouble: the folder it was in shows it."""
        if error.errno not in _GONE:
            self._denied[self._in_base(path)] = error.strerror or str(error)

    def _refuse_unreadable(self) -> None:
        if self._denied:
            raise unreadable(self._denied, next(iter(self._denied.values())))

    def _guard(self) -> None:
        limit = self._rules.max_files
        if limit is not None and len(self._listing) - 1 > limit:
            raise ProjectTooLarge(
                f"The project has more than the {limit} files that were allowed.",
                hint="Exclude what is not needed, or allow more.",
                limit=limit,
            )


def look_at_files(origins: list[Origin], batch: StatBatch) -> list[FolderListing]:
    """Listings of single files, those that are there; no symlink is followed."""
    found = []
    for origin in origins:
        try:
            folder = origin.open()
        except OSError:
            continue
        try:
            answers = batch.run(folder, [split(origin.path)[1]], 0)
        finally:
            os.close(folder)
        mode = int.from_bytes(answers.rows[12:14], "little")
        if not answers.failed and stat.S_ISREG(mode) | stat.S_ISLNK(mode):
            found.append(FolderListing(origin, [b""], answers.rows))
    return found
