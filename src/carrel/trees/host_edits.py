"""What somebody makes on the host in the tree of a space becomes the space's own, at once.

As root, each space has a user of its own. What a person makes in its tree on the host is root's,
and its agent could not write it. No mount can change that: an overlay takes no map of ids, and
elsewhere a map that shows the space's files as root's would have git and other programs of the
host trust them. So it is given to the space as soon as the kernel tells of it:

- An overlay is a mount of its own on the host, and the kernel tells of each file that was written
  through this mount (fanotify). What the space itself writes goes through another mount, and costs
  nothing; so does what is copied into it (`unwatched`). Where a space has no other, the mount is
  not watched.
- Otherwise, and of new folders, the folder around them tells (inotify): the uppermost folders of
  each tree are watched. Where the kernel tells of files, those in `.git` are not: git puts a file
  into each folder that it makes. A watch ends with its first event, and the look that follows
  begins it again: however much a space makes, each of its folders takes one place in the queue of
  all.
- Programs that copy as they find things (`cp -a`, `rsync -a`, `tar`) say whose it is when all of it
  is there, the tree's own folder too. Folders tell of that as well; and where something was given,
  a second look follows (`AGAIN_S`).

A space can cause looks. So busy trees have a small share of one processor together, and one that
was quiet is looked at first.

No link is followed: what is given is an open descriptor beneath the tree. A file with a second name
is not given, since it may be somebody else's, too. The kernel takes set-user-id bits away with the
old owner.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import CarrelError
from carrel.domain.trees import DIRECT, Owner, Tree
from carrel.linux import files
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import FIRST_RANGE, RANGE, RANGES, store_gid, store_uid
from carrel.linux.libc import AT_EMPTY_PATH, call
from carrel.linux.mounts import clone_mount, descriptor_path, is_mounted
from carrel.linux.openat2 import (
    RESOLVE_BENEATH,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
    openat2_works,
)
from carrel.trees.folders import Root, walk

OVERLAY, BTRFS, GIT = "overlay", "btrfs", b".git"
FOLDERS_BY_MOUNT, FOLDERS = 64, 1024
"""Of one tree that are watched, from the top down: each takes some 2 KiB of the kernel's memory.
Where the mount tells of files, only for new folders in them."""
SHARE_OF_WATCHES, SHARE_OF_FREE = 4, 16
"""All together take at most this part of the watches that the machine allows one user, and each
tree this part of what others have left."""
MOST_WRITTEN = 256
"""Descriptors of one tree that wait. Beyond, the folder is looked through."""
MOST_ENTRIES = 20_000
"""That are looked at in one go: some hundred milliseconds. The folders that are left wait."""
LONGEST = 1000
"""Bytes of a folder's path: what nests deeper is not looked into, so that the names which wait take
no more than some megabytes."""
MOST_FOLDERS = 1000
"""That wait to be looked at. Beyond what is told, the tree is looked through."""
FIRST_S = 0.5
"""Before a tree is looked through at first, so that its making is not slowed down."""
REST_S, REST_SHARE = 0.02, 15
"""After a look, and how many times as long as it took, for each tree that is busy."""
AGAIN_S = 1.0
"""Between two times at which folders are taken up in which something was given: each is looked at
again after one to two of these. An overlay does not tell of new owners further down."""
LOOKS, LOOK_WAIT_S = 2, 5.0
"""At once. Who waited so long looks all the same: code in a space can hold one in the kernel."""

_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_EVENTS = files.WATCH_CREATE | files.WATCH_MOVED_TO | files.WATCH_ATTRIBUTES
_WATCH = _EVENTS | files.WATCH_ONLY_FOLDERS | files.WATCH_ONCE
_KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
_MOST_WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")


class HostEdits:
    """All trees of a daemon. For any thread; does nothing for who is not root, since everything is
    one user's then. Where the kernel has no such notices, files stay whose they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees: dict[str, _EditedTree] = {}
        self._watches: dict[int, tuple[_EditedTree, bytes]] = {}
        """Which folder is meant, by its path when it was last seen."""
        self._queue = self._written = self._end = -1
        self._most = 0
        self._looks = threading.Semaphore(LOOKS)

    def watch(self, tree: Tree, *, own_mount: bool) -> None:
        """From now on; idempotent. What was made before becomes its own, too. `own_mount`: what
        runs in the space writes through another mount than people on the host do."""
        if os.geteuid() != 0 or tree.driver == DIRECT or not openat2_works():
            return
        with self._lock, contextlib.suppress(OSError):
            self._open()
            by_mount = own_mount and self._watch_mount(tree)
            known = self._trees.get(tree.tree_id)
            if known is None or known.place != str(tree.path):
                known = self._trees[tree.tree_id] = _EditedTree(self, tree)
            # Its mount may be another one now, and what was watched gone.
            known.by_mount = by_mount
            known.look_through()

    def _watch_mount(self, tree: Tree) -> bool:
        """Whether the kernel tells of what is written through it: not in every container."""
        if tree.driver != OVERLAY or self._written < 0 or not is_mounted(tree.path):
            return False
        with contextlib.suppress(OSError):
            files.watch_writes(self._written, str(tree.path))
            return True
        return False

    def forget(self, tree_id: str) -> None:
        """Idempotent."""
        with self._lock:
            gone = self._trees.pop(tree_id, None)
        if gone is not None:
            self.unwatch(gone)
            gone.close()

    def unwatch(self, tree: _EditedTree) -> None:
        """All of its folders."""
        with self._lock:
            tree.watched.clear()
            numbers, tree.numbers = tree.numbers, set()
            for number in numbers:
                its, _path = self._watches.get(number, (None, b""))
                if its is not tree:
                    continue
                del self._watches[number]
                with contextlib.suppress(OSError):
                    files.remove_watch(self._queue, number)

    def close(self) -> None:
        for tree_id in list(self._trees):
            self.forget(tree_id)
        with self._lock:
            if self._end >= 0:
                os.eventfd_write(self._end, 1)
                self._end = -1

    def _open(self) -> None:
        if self._end >= 0:
            return
        with contextlib.ExitStack() as undo:
            self._queue = files.open_watch_queue()
            undo.callback(os.close, self._queue)
            with contextlib.suppress(OSError):
                self._written = files.open_write_queue()
                undo.callback(os.close, self._written)
            self._most = int(_MOST_WATCHES.read_text()) // SHARE_OF_WATCHES
            self._end = os.eventfd(0, os.EFD_CLOEXEC)
            undo.pop_all()
        queues = (self._queue, self._end, self._written)
        threading.Thread(target=self._listen, args=queues, name="carrel-edits", daemon=True).start()

    def _listen(self, queue: int, end: int, written: int) -> None:
        poll = select.poll()
        opened = [one for one in (queue, end, written) if one >= 0]
        for descriptor in opened:
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _event in poll.poll()}
            if end in ready:
                break
            with contextlib.suppress(OSError):
                if written in ready:
                    self._take_written(written)
                if queue in ready:
                    self._take_events(queue)
            # What comes in crowds comes together.
            if queue in ready:
                time.sleep(REST_S)
        for descriptor in opened:
            os.close(descriptor)

    def _take_written(self, queue: int) -> None:
        for descriptor, pid in files.read_written(queue):
            if descriptor < 0:
                self._look_through()
                continue
            path, tree = "", None
            if pid != os.getpid():
                # What we write ourselves belongs to whom it should.
                with contextlib.suppress(OSError):
                    path = os.readlink(descriptor_path(descriptor))
                    tree = self._tree_at(path)
            if tree is None:
                os.close(descriptor)
            else:
                tree.was_written(descriptor, os.path.dirname(path[len(tree.place) + 1 :]))

    def _tree_at(self, path: str) -> _EditedTree | None:
        with self._lock:
            trees = self._trees.values()
            return next((one for one in trees if path.startswith(f"{one.place}/")), None)

    def _take_events(self, queue: int) -> None:
        for number, mask in files.read_watch_events(queue):
            if mask & files.WATCH_OVERFLOW:
                self._begin_again(queue)
                break
            with self._lock:
                # Not there: of a watch that has told already, and is gone now.
                tree, path = self._watches.pop(number, (None, b""))
                if tree is not None:
                    tree.numbers.discard(number)
            if tree is not None:
                tree.has_new(path)

    def _begin_again(self, queue: int) -> None:
        """Nobody knows any more which watches have told."""
        with self._lock, contextlib.suppress(OSError), Descriptor(files.open_watch_queue()) as new:
            os.dup2(new, queue, inheritable=False)
            self._watches.clear()
            for tree in self._trees.values():
                tree.numbers.clear()
        self._look_through()

    def _look_through(self) -> None:
        with self._lock:
            trees = list(self._trees.values())
        for tree in trees:
            tree.look_through()

    def watch_folder(self, tree: _EditedTree, folder: int, path: bytes) -> bool:
        """Whether there is room for more."""
        with self._lock:
            own = len(tree.watched)
            share = (self._most - len(self._watches) + own) // SHARE_OF_FREE
            if own >= share or self._trees.get(tree.tree_id) is not tree:
                return False
            try:
                number = files.add_watch(self._queue, descriptor_path(folder), _WATCH)
            except OSError:
                # Others of this user have taken all watches of the machine.
                return False
            _tree, before = self._watches.get(number, (tree, path))
            # It was moved.
            tree.watched.discard(before)
            tree.watched.add(path)
            tree.numbers.add(number)
            self._watches[number] = (tree, path)
            return True

    def in_turn(self, look: Callable[[], None]) -> float:
        """How long its tree should rest afterwards."""
        waited = self._looks.acquire(timeout=LOOK_WAIT_S)
        begun = time.monotonic()
        try:
            # What nests folders without end is looked at as far as that goes.
            with contextlib.suppress(OSError, CarrelError):
                look()
        finally:
            if waited:
                self._looks.release()
        took = time.monotonic() - begun
        with self._lock:
            busy = sum(one.is_working for one in self._trees.values())
        return max(REST_S, took * REST_SHARE * busy)


def unwatched(tree: Tree, root: int) -> int:
    """The root of a tree, for writing a lot into it ourselves: through a mount that nobody watches.
    Each file would cost a notice that only says that it was us. Takes over the descriptor."""
    if os.geteuid() != 0 or tree.driver != OVERLAY:
        return root
    try:
        clone = clone_mount(root, recursive=True)
    except OSError:
        # Not in every container.
        return root
    os.close(root)
    return clone


class _EditedTree:
    """One of them. Its thread is there while there is something to do: code in the space can hold
    a file locked in the kernel, and no other tree is to wait for that."""

    def __init__(self, edits: HostEdits, tree: Tree) -> None:
        self._edits = edits
        self.tree_id = tree.tree_id
        self.place = str(tree.path)
        # A snapshot keeps the store's user on the disk.
        is_stores = tree.driver == BTRFS
        self.owner = Owner(store_uid(), store_gid()) if is_stores else tree.owner
        self.by_mount = False
        """The kernel tells of files that are written, wherever they are."""
        self._upper = tree.folder / "tree" / "upper" if tree.driver == OVERLAY else None
        self._changed = threading.Condition()
        self._written: deque[tuple[int, bytes]] = deque()
        self._folders: dict[bytes, None] = {}
        self._unseen = False
        self._recent: dict[bytes, None] = {}
        self._again: dict[bytes, None] = {}
        """Folders in which something was given, and those of the time before."""
        self._again_at = 0.0
        self.watched: set[bytes] = set()
        """Folders whose watch has not told yet."""
        self.numbers: set[int] = set()
        """Of its watches, as the kernel numbers them. Only `HostEdits` changes it."""
        self.is_working = False
        self._is_gone = False

    # Told by others

    def look_through(self) -> None:
        with self._changed:
            self._unseen = True
            self._work()

    def was_written(self, descriptor: int, folder: str) -> None:
        with self._changed:
            if self._is_gone or len(self._written) >= MOST_WRITTEN:
                os.close(descriptor)
                self._note(os.fsencode(folder))
            else:
                self._written.append((descriptor, os.fsencode(folder)))
            self._work()

    def has_new(self, folder: bytes) -> None:
        with self._changed:
            self.watched.discard(folder)
            self._note(folder)
            self._work()

    def _note(self, folder: bytes) -> None:
        self._folders[folder] = None
        if len(self._folders) > MOST_FOLDERS:
            self._folders.clear()
            self._unseen = True

    def close(self) -> None:
        with self._changed:
            self._is_gone = True
            while self._written:
                os.close(self._written.popleft()[0])
            self._changed.notify()

    def _work(self) -> None:
        if not self.is_working and not self._is_gone:
            worker = threading.Thread(target=self._see_to_it, name="carrel-edits-1", daemon=True)
            # Where the machine has no thread left, the next notice tries again.
            with contextlib.suppress(RuntimeError):
                worker.start()
                self.is_working = True
        self._changed.notify()

    # In a thread of its own

    def _see_to_it(self) -> None:
        rests_until = time.monotonic() + (FIRST_S if self._unseen else 0.0)
        while True:
            with self._changed:
                # Files are not kept waiting by looks that the space has caused.
                while not (self._written or self._is_gone):
                    if (left := self._left(rests_until)) <= 0:
                        break
                    self._changed.wait(left)
                written, self._written = self._written, deque()
                looks = bool(self._folders or self._unseen) and time.monotonic() >= rests_until
                if self._is_gone or not (looks or written):
                    self.is_working = False
                    break
            self._give_written(written)
            if looks:
                rests_until = self._edits.in_turn(self._look) + time.monotonic()

    def _left(self, rests_until: float) -> float:
        """Until there is something to do; or nothing is left to be done, and the time is over."""
        now = time.monotonic()
        if (self._again or self._recent) and now >= self._again_at:
            for folder in self._again:
                self._note(folder)
            self._again, self._recent, self._again_at = self._recent, {}, now + AGAIN_S
        waits = (self._again or self._recent) and not (self._folders or self._unseen)
        return (max(rests_until, self._again_at) if waits else rests_until) - now

    def see_again(self, folder: bytes) -> None:
        with self._changed:
            if not (self._again or self._recent):
                self._again_at = time.monotonic() + AGAIN_S
            self._recent[folder] = None
            if len(self._recent) > MOST_FOLDERS:
                self._recent.clear()
                self._unseen = True

    def _give_written(self, written: Iterable[tuple[int, bytes]]) -> None:
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            for descriptor, _folder in written:
                opened.callback(os.close, descriptor)
            top = opened.enter_context(self._top())
            for descriptor, folder in written:
                with contextlib.suppress(OSError):
                    _give(descriptor, self.owner)
                # Whoever wrote it may say only now whose it is.
                self.see_again(folder)
                # The folders around it are new as well, if they are not the space's.
                parts = folder.split(b"/") if folder else []
                for path in itertools.accumulate(parts, lambda one, two: one + b"/" + two):
                    with contextlib.suppress(OSError), _beneath(top, path) as found:
                        if _give(found, self.owner):
                            self.see_again(os.path.dirname(path))

    def _look(self) -> None:
        with self._changed:
            waiting, self._folders = deque(self._folders), {}
            first, self._unseen = self._unseen, False
        with self._top() as top:
            look = _Look(self, top)
            if first:
                self._edits.unwatch(self)
                look.only_folders = self._upper is not None
                waiting.extendleft(look.at(b""))
                look.only_folders = False
            found: list[bytes] = []
            while waiting and look.left > 0:
                found += look.at(waiting.popleft())
            left = itertools.islice((*waiting, *found), MOST_FOLDERS)
            with self._changed:
                self._folders = {**dict.fromkeys(left), **self._folders}
            if first and self._upper is not None:
                look.at_upper(self._upper)

    @contextlib.contextmanager
    def _top(self) -> Iterator[int]:
        """The tree's own folder, which is given back as well. Raises OSError."""
        if self.owner.uid == 0:
            raise PermissionError("the tree is root's")
        with Descriptor(os.open(self.place, _FOLDER | os.O_CLOEXEC)) as top:
            if _give(top, self.owner):
                self.see_again(b"")
            yield top

    def watch_folder(self, folder: int, path: bytes) -> bool:
        """Whether there is room for more."""
        most = FOLDERS_BY_MOUNT if self.by_mount else FOLDERS
        if path in self.watched:
            return True
        return len(self.watched) < most and self._edits.watch_folder(self, folder, path)


class _Look:
    """Through folders of one tree, for what is not its owner's."""

    def __init__(self, tree: _EditedTree, top: int) -> None:
        self._tree = tree
        self._top = top
        self._owner = tree.owner
        self.left = MOST_ENTRIES
        self.only_folders = False
        """An overlay has to look up each other entry in all of its layers, and `at_upper` sees to
        those that are new."""

    def at(self, path: bytes) -> Iterable[bytes]:
        """A folder, and those below it that nobody watches yet or that were made by others. Gives
        those for which there was no time."""
        pending = deque([path])
        while pending and self.left > 0:
            path, before = pending.popleft(), self.left
            with contextlib.suppress(OSError), _beneath(self._top, path) as folder:
                pending.extend(self._visit(folder, path))
            if self.left <= 0 and before < MOST_ENTRIES:
                pending.append(path)
        return pending

    def _visit(self, folder: int, path: bytes) -> Iterator[bytes]:
        """Gives what is in a folder to the owner; names the folders in it that are to be seen."""
        has_room = self._tree.watch_folder(folder, path)
        in_git = self._tree.by_mount and os.path.basename(path) == GIT
        with os.scandir(folder) as entries:
            for entry in entries:
                self.left -= 1
                if self.left <= 0:
                    return
                if self.only_folders and not entry.is_dir(follow_symlinks=False):
                    continue
                name = os.fsencode(entry.name)
                inner = path + b"/" + name if path else name
                status = entry.stat(follow_symlinks=False)
                given = _is_others(status, self._owner) and self._give(folder, name)
                if given:
                    self._tree.see_again(path)
                watches = has_room and not (in_git or inner in self._tree.watched)
                unseen = given or watches
                if unseen and stat.S_ISDIR(status.st_mode) and len(inner) <= LONGEST:
                    yield inner

    def at_upper(self, upper: Path) -> None:
        """What was made while nobody looked: all of it is in the upper folder of an overlay."""
        with Root.at(upper) as root:
            for path, status in itertools.islice(walk(root), MOST_ENTRIES):
                if _is_others(status, self._owner):
                    above, name = os.path.split(os.fsencode(path))
                    with contextlib.suppress(OSError), _beneath(self._top, above) as folder:
                        if self._give(folder, name):
                            self._tree.see_again(above)

    def _give(self, folder: int, name: bytes) -> bool:
        """Counts names while it has this one: another's file that was linked to here, opened, and
        is linked to no more has but one, too."""
        try:
            with _beneath(folder, name, os.O_PATH | os.O_NOFOLLOW) as found:
                named = os.stat(name, dir_fd=folder, follow_symlinks=False)
                same = os.path.samestat(named, os.fstat(found))
                return same and _is_others(named, self._owner) and _give(found, self._owner)
        except OSError:
            return False


def _beneath(top: int, path: bytes, flags: int = _FOLDER) -> Descriptor:
    """Without a symlink or a mount on the way. Raises OSError."""
    return Descriptor(openat2(top, path or b".", flags, resolve=_BENEATH))


def _is_others(status: os.stat_result, owner: Owner) -> bool:
    mode = status.st_mode
    alone = stat.S_ISDIR(mode) or status.st_nlink == 1
    spaces_own = _is_own(status.st_uid, owner.uid) and _is_own(status.st_gid, owner.gid)
    return alone and not spaces_own and any(kind(mode) for kind in _KINDS)


def _is_own(number: int, owner: int) -> bool:
    """Nobody on the host has the ids of an image's users: what is theirs was made in the space."""
    return number == owner or FIRST_RANGE <= number < FIRST_RANGE + RANGE * RANGES


def _give(descriptor: int, owner: Owner) -> bool:
    """Whether it was somebody else's."""
    if not _is_others(os.fstat(descriptor), owner):
        return False
    call("fchownat", descriptor, b"", owner.uid, owner.gid, AT_EMPTY_PATH)
    return True
