"""States of a space's files, which are kept, put back and given to other spaces.

A state names every entry that differs from what the tree began with, whatever git thinks of it, and
every entry of the agent's own folder. The bytes of each version of a file are kept once, beside the
states that have it. A file that has not been touched since the state before is recognised by its
inode and its ctime, which only the kernel writes. So a state costs what changed since then.

The tree may be written to meanwhile. What is kept is what there was at one moment: a look that
found something written after it began does not count, and is begun again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from carrel.domain.checkpoints import START, StateSummary
from carrel.domain.errors import (
    InsufficientDisk,
    TooLarge,
    TreeDamaged,
    TreeUnavailable,
)
from carrel.domain.trees import Base, ChangeKind, EntryType, Owner, Tree, TreeDriver, TreeLayer
from carrel.linux.descriptors import Descriptor
from carrel.linux.files import begin_write_out
from carrel.linux.reflink import clone_file, copy_file
from carrel.linux.reserve import free_room
from carrel.trees.bases.disk import LayeredLayout
from carrel.trees.bundle_format import read_attributes
from carrel.trees.bundles import set_attributes
from carrel.trees.drivers.common import (
    Comparable,
    Restful,
    note_prefix,
    open_roots,
    settle,
    tree_errors,
)
from carrel.trees.files import once_freed
from carrel.trees.folders import Root, open_own, split, walk
from carrel.trees.kept import (
    VERSION,
    FilesState,
    KeptEntries,
    KeptSide,
    StateEntry,
    by_path,
    damaged,
    mark_of,
    read_state,
    write_state,
)
from carrel.trees.layers import Layers
from carrel.trees.writer import TreeWriter

LOOKS = 5
"""At a tree that is being written to, until it is given up."""
NAMED = 20
"""Of the files that changed since the state before."""
LEFT_FREE = 256 << 20
"""On the disk: states are a comfort, and fill no disk."""
_FILE_BITS, _FOLDER_BITS = 0o777, 0o3777
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK, stat.S_ISFIFO, stat.S_ISSOCK)
_HEAD = "head"
"""The state with the marks that the files have now."""
FOLDER = "checkpoints"


Seen = tuple[str, os.stat_result | None]
"""A path, and what is there; None: nothing is, and the base has something."""


class SpaceStates:
    """Implements `carrel.domain.checkpoints.States`, in a folder that only we enter."""

    def __init__(self, driver: TreeDriver, tree: Tree, base: Base) -> None:
        self._folder = tree.folder / FOLDER
        self._objects = self._folder / "files"
        self._driver = driver
        self._tree = tree
        self._base = base

    # Keeping

    def take(
        self, name: str, *, agent: bool, without: Collection[str] = (), max_bytes: int
    ) -> StateSummary:
        with tree_errors("keep the state"):
            self._objects.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = self._read(_HEAD)
            for _ in range(LOOKS):
                keeping = _Keeping(self._objects, self._base.store_owner, max_bytes)
                try:
                    settled = settle(self._folder)
                    found = self._kept(keeping, before, agent, frozenset(without))
                    if found is not None and self._is_still(found, settled, frozenset(without)):
                        self._write(name, found)
                        self._write(_HEAD, found)
                        break
                except BaseException:
                    keeping.forget()
                    raise
                keeping.forget()
            else:
                raise TreeUnavailable(
                    "Something in the space keeps on writing, so there is no one state of it.",
                    hint="Stop what runs in it, and try again: carrel ps",
                )
        # People look for the work first: git's own files come last.
        changed = sorted(_differing(before.tree, found.tree), key=_is_of_git)
        return StateSummary(
            files=sum(not stat.S_ISDIR(one.mode) for one in found.tree),
            changed=len(changed),
            named=tuple(changed[:NAMED]),
            bytes_new=keeping.bytes_new,
        )

    def _kept(
        self, keeping: _Keeping, before: FilesState, agent: bool, without: frozenset[str]
    ) -> FilesState | None:
        """None when something went while it was read."""
        try:
            with self._tree_root() as root:
                tree = keeping.all(root, self._now(root), before.tree)
            if not agent:
                return FilesState(VERSION, self._tree.base_id, tree)
            with self._agent_root() as root:
                own = keeping.all(root, _all(root, without), before.agent or ())
        except FileNotFoundError:
            return None
        return FilesState(VERSION, self._tree.base_id, tree, own)

    def _is_still(self, found: FilesState, settled_ns: int, without: frozenset[str]) -> bool:
        """Whether what was kept is what there is, and was so since then."""
        driver = self._driver
        if not (isinstance(driver, Restful) and driver.is_untouched(self._tree, settled_ns)):
            with self._tree_root() as root:
                if not _are_marked(found.tree, self._now(root), settled_ns):
                    return False
        if found.agent is None:
            return True
        with self._agent_root() as root:
            return _are_marked(found.agent, _all(root, without), settled_ns)

    def _now(self, root: Root, *, whole: bool = False) -> Iterator[Seen]:
        """What differs from the base, as it is; of a folder that went only the folder, unless
        `whole`."""
        assert isinstance(self._driver, Comparable)
        gone: set[str] = set()
        for change in self._driver.compare(self._tree, links=True, renames=None):
            if change.old_type is EntryType.FOLDER and change.new_type is not EntryType.FOLDER:
                gone.add(change.path)
            if change.kind is not ChangeKind.DELETED:
                yield change.path, root.status(change.path)
            elif whole or split(change.path)[0] not in gone:
                yield change.path, None

    def _tree_root(self) -> Root:
        return Root(self._driver.open_root(self._tree))

    def _agent_root(self) -> Root:
        return Root(_open_agent(self._tree))

    # Putting back

    def put_back(self, name: str) -> bool:
        state = self._read(name)
        with tree_errors("put the state back"), open_roots(self._base.layers) as roots:
            self._check((*state.tree, *(state.agent or ())))
            base = Layers(roots, note_prefix())
            with self._tree_root() as root:
                now = dict(self._now(root, whole=True))
            tree = self._restored(self._driver.open_root(self._tree), now, state.tree, base)
            agent = None
            if state.agent is not None and _has_agent(self._tree):
                with self._agent_root() as root:
                    now = dict(_all(root))
                agent = self._restored(_open_agent(self._tree), now, state.agent, None)
            self._write(_HEAD, FilesState(VERSION, self._tree.base_id, tree, agent))
        return agent is not None

    def _restored(
        self,
        descriptor: int,
        now: Mapping[str, os.stat_result | None],
        entries: tuple[StateEntry, ...],
        base: Layers | None,
    ) -> tuple[StateEntry, ...]:
        """The entries with the marks that they have now."""
        with Descriptor(descriptor) as root:
            status = os.fstat(root)
            writer = TreeWriter(root, Owner(status.st_uid, status.st_gid))
            try:
                _Restoring(writer, self._objects, now, KeptEntries(entries, base)).run()
                writer.finish()
            finally:
                writer.close()
            # Anew: a folder that was just finished may keep its owner out.
            with Root(os.dup(root)) as made:
                return tuple(_marked(one, made.status(os.fsdecode(one.path))) for one in entries)

    def _check(self, entries: Iterable[StateEntry]) -> None:
        """That all of it is there: a machine that lost its power may have lost some of it."""
        for one in entries:
            if not one.is_file:
                continue
            try:
                there = self._kept_file(one).stat().st_size == one.size
            except FileNotFoundError:
                there = False
            if not there:
                raise damaged(f"{os.fsdecode(one.path)!r} is not as it was kept")

    def _kept_file(self, one: StateEntry) -> Path:
        return self._objects / os.fsdecode(one.content)

    # Giving to another tree

    def layer(self, name: str) -> TreeLayer | None:
        """States with the same files have the same layer."""
        state = self._read(name)
        self._check(state.tree)
        if not state.tree:
            return None
        said = msgspec.msgpack.encode((state.base_id, state.tree))
        return TreeLayer(sha256(said).hexdigest()[:32], partial(self._fill_layer, state.tree))

    def _fill_layer(self, entries: tuple[StateEntry, ...], layer: Path) -> None:
        """It shares the kept files. Folders on the way to them are as the base has them."""
        hidden = LayeredLayout(self._base.store_owner)
        with (
            tree_errors("fork the tree"),
            open_roots(self._base.layers) as roots,
            Descriptor(os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root,
            contextlib.closing(TreeWriter(root, self._base.store_owner)) as writer,
        ):
            if os.geteuid() == 0:
                os.chown(layer, self._base.store_owner.uid, self._base.store_owner.gid)
            base = Layers(roots, note_prefix())
            for one in entries:
                path = os.fsdecode(one.path)
                above, last = split(path)
                self._reach(writer, above, base)
                if stat.S_ISDIR(one.mode):
                    writer.make_folder(path, one.mode & _FOLDER_BITS, one.mtime_ns)
                elif not one.mode:
                    hidden.hide(writer.folder(above), os.fsencode(last))
                elif one.is_file:
                    os.link(self._kept_file(one), last, dst_dir_fd=writer.folder(above))
                else:
                    _make_other(writer, path, one)
            writer.finish()

    def give(self, name: str, other: Tree, *, files: bool) -> None:
        state = self._read(name)
        self._check((*(state.tree if files else ()), *(state.agent or ())))
        with tree_errors("fork the tree"), open_roots(self._base.layers) as roots:
            if files:
                base = Layers(roots, note_prefix())
                self._restored(self._driver.open_root(other), {}, state.tree, base)
            if state.agent is not None and _has_agent(other):
                self._restored(_open_agent(other), {}, state.agent, None)

    def _reach(self, writer: TreeWriter, folder: str, base: Layers) -> None:
        if not folder or writer.status(folder) is not None:
            return
        self._reach(writer, split(folder)[0], base)
        found = base.find(folder)
        assert found is not None, "what the base does not have is an entry of its own"
        writer.make_folder(folder, stat.S_IMODE(found.status.st_mode), found.status.st_mtime_ns)

    # Comparing

    @contextlib.contextmanager
    def side(self, name: str, base: Layers) -> Iterator[KeptSide]:
        """Nobody may thin the states meanwhile."""
        state = self._read(name)
        self._check(state.tree)
        with Root.at(self._objects) as objects:
            yield KeptSide(state, objects, base)

    # What is kept

    def keep_only(self, names: Collection[str]) -> None:
        if not self._objects.is_dir():
            return
        used: set[bytes] = set()
        for path in self._folder.iterdir():
            if path.name in (self._objects.name, "stamp"):
                continue
            if path.name != _HEAD and path.name not in names:
                path.unlink()
                continue
            # One that cannot be read cannot be gone back to either.
            with contextlib.suppress(TreeDamaged):
                used.update(one.content for one in self._read(path.name).files())
        with os.scandir(self._objects) as found:
            for entry in found:
                if os.fsencode(entry.name) not in used:
                    os.unlink(entry.path)

    def bytes_kept(self) -> int:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._objects) as found:
            return sum(entry.stat().st_blocks * 512 for entry in found)
        return 0

    def _read(self, name: str) -> FilesState:
        """What was never kept is what the tree began with."""
        if name == START:
            return FilesState(VERSION, self._tree.base_id, agent=())
        try:
            return read_state(self._folder / name, self._tree.base_id)
        except FileNotFoundError:
            if name != _HEAD:
                raise damaged("it is not there") from None
        except TreeDamaged:
            if name != _HEAD:
                raise
        return FilesState(VERSION, self._tree.base_id)

    def _write(self, name: str, state: FilesState) -> None:
        write_state(self._folder / name, state)


class _Keeping:
    """Copies of files, of one state that is being kept."""

    def __init__(self, objects: Path, owner: Owner, max_bytes: int) -> None:
        self._objects = objects
        self._owner = owner
        self._left = max_bytes
        self._made: list[Path] = []
        self._linked: dict[tuple[int, int], bytes] = {}
        """Of files with several names, by their inode."""
        self.bytes_new = 0

    def all(
        self, root: Root, seen: Iterable[Seen], before: Iterable[StateEntry]
    ) -> tuple[StateEntry, ...]:
        known = by_path(before)
        found = (self._one(root, path, status, known.get(path)) for path, status in seen)
        return tuple(one for one in found if one is not None)

    def _one(
        self, root: Root, path: str, status: os.stat_result | None, known: StateEntry | None
    ) -> StateEntry | None:
        if status is None:
            return StateEntry(os.fsencode(path))
        if not _is_kept(status):
            return None
        if known is not None and known.mark == mark_of(status):
            if known.is_file and status.st_nlink > 1:
                self._linked[status.st_dev, status.st_ino] = known.content
            return known
        content = b""
        if stat.S_ISLNK(status.st_mode):
            content = root.link(path)
        elif stat.S_ISREG(status.st_mode):
            content, status = self._file(root, path)
        return StateEntry(
            os.fsencode(path),
            status.st_mode,
            status.st_mtime_ns,
            status.st_size if stat.S_ISREG(status.st_mode) else 0,
            content,
            mark_of(status),
        )

    def _file(self, root: Root, path: str) -> tuple[bytes, os.stat_result]:
        source, status = root.open_regular(path)
        with Descriptor(source):
            inode = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and inode in self._linked:
                return self._linked[inode], status
            if _is_closed(status):
                # What is written to it while it is read shows.
                settle(self._objects.parent)
            self._count(status.st_blocks * 512)
            # Begins to write it out. Until then a program that has it mapped can write to it again
            # without a new ctime.
            begin_write_out(source, status.st_size)
            target = self._objects / secrets.token_hex(10)
            with Descriptor(os.open(target, _NEW, 0o600)) as copy:
                self._made.append(target)
                if not clone_file(source, copy):
                    copy_file(source, copy, status.st_size)
                set_attributes(copy, read_attributes(source))
                os.utime(copy, ns=(status.st_mtime_ns, status.st_mtime_ns))
                os.fchmod(copy, status.st_mode & _FILE_BITS)
                if os.geteuid() == 0:
                    os.fchown(copy, self._owner.uid, self._owner.gid)
        content = os.fsencode(target.name)
        if status.st_nlink > 1:
            self._linked[inode] = content
        return content, status

    def _count(self, size: int) -> None:
        self.bytes_new += size
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                "The space has changed more than may be kept of it.",
                hint="Remove what need not be kept, or let it be: carrel config",
            )
        if size > 1 << 20 and free_room(self._objects).bytes < size + LEFT_FREE:
            raise InsufficientDisk(
                "There is no room on the disk to keep the state.", hint="Make room: carrel gc"
            )

    def forget(self) -> None:
        for path in self._made:
            path.unlink(missing_ok=True)


class _Restoring:
    """One folder, made what a state says. What the state does not name is as the base has it."""

    def __init__(
        self,
        writer: TreeWriter,
        objects: Path,
        now: Mapping[str, os.stat_result | None],
        wanted: KeptEntries,
    ) -> None:
        self._writer = writer
        self._objects = objects
        self._now = now
        self._wanted = wanted
        self._linked: dict[bytes, str] = {}

    def run(self) -> None:
        paths = sorted({*self._now, *self._wanted.named})
        todo = [path for path in paths if not self._is_as_wanted(path)]
        for path in reversed(todo):
            there = self._writer.status(path)
            if there is not None and self._is_in_the_way(there, self._mode(path)):
                self._writer.remove(path)
        for path in todo:
            once_freed(partial(self._make, path))

    def _is_as_wanted(self, path: str) -> bool:
        wanted, status = self._wanted.get(path), self._now.get(path)
        if wanted is None or status is None or wanted.mark != mark_of(status):
            return False
        if wanted.is_file:
            self._linked.setdefault(wanted.content, path)
        return True

    def _mode(self, path: str) -> int:
        """What is to be there; 0: nothing."""
        if (wanted := self._wanted.get(path)) is not None:
            return wanted.mode
        found = self._wanted.in_base(path)
        return found.status.st_mode if found is not None else 0

    def _is_in_the_way(self, there: os.stat_result, mode: int) -> bool:
        return not mode or stat.S_ISDIR(there.st_mode) != stat.S_ISDIR(mode)

    def _make(self, path: str) -> None:
        wanted = self._wanted.get(path)
        if wanted is None:
            self._make_as_base(path)
        elif stat.S_ISDIR(wanted.mode):
            self._writer.make_folder(path, wanted.mode & _FOLDER_BITS, wanted.mtime_ns)
        elif wanted.is_file:
            self._make_file(path, wanted)
        elif wanted.mode:
            _make_other(self._writer, path, wanted)

    def _make_file(self, path: str, wanted: StateEntry) -> None:
        if (first := self._linked.setdefault(wanted.content, path)) != path:
            self._writer.link(path, first)
            return
        kept = self._objects / os.fsdecode(wanted.content)
        with (
            Descriptor(os.open(kept, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as place,
            Descriptor(open_own(place)) as source,
        ):
            self._writer.write(path, lambda target: _copy(source, target, wanted.mode))

    def _make_as_base(self, path: str) -> None:
        found = self._wanted.in_base(path)
        if found is None:
            return
        mode, mtime_ns = found.status.st_mode, found.status.st_mtime_ns
        content = found.content
        if found.is_folder:
            self._writer.make_folder(path, stat.S_IMODE(mode), mtime_ns)
        elif found.is_file:
            with Descriptor(content.root.open_file(content.path)) as source:
                self._writer.write(path, lambda target: _copy(source, target, mode, mtime_ns))
        elif stat.S_ISLNK(mode):
            self._writer.symlink(path, content.root.link(content.path), mtime_ns)


def _has_agent(tree: Tree) -> bool:
    return (tree.folder / "agent" / "state").is_dir()


def _open_agent(tree: Tree) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(tree.folder / "agent" / "state", flags)


def _copy(source: int, target: int, mode: int, mtime_ns: int | None = None) -> None:
    status = os.fstat(source)
    if not clone_file(source, target):
        copy_file(source, target, status.st_size)
    set_attributes(target, read_attributes(source))
    when = status.st_mtime_ns if mtime_ns is None else mtime_ns
    os.utime(target, ns=(when, when))
    os.fchmod(target, mode & _FILE_BITS)


def _make_other(writer: TreeWriter, path: str, one: StateEntry) -> None:
    if stat.S_ISLNK(one.mode):
        writer.symlink(path, one.content, one.mtime_ns)
    else:
        writer.node(path, one.mode, one.mtime_ns)


def _all(root: Root, without: Collection[str] = ()) -> Iterator[Seen]:
    return ((path, status) for path, status in walk(root) if path not in without)


def _marked(one: StateEntry, status: os.stat_result | None) -> StateEntry:
    """Without a mark if somebody has written there since it was put back: so it is read again."""
    mark = (0, 0)
    if status is not None and (status.st_mode, status.st_mtime_ns) == (one.mode, one.mtime_ns):
        mark = mark_of(status)
    return msgspec.structs.replace(one, mark=mark)


def _is_kept(status: os.stat_result) -> bool:
    return any(kind(status.st_mode) for kind in _KEPT)


def _are_marked(entries: Iterable[StateEntry], seen: Iterable[Seen], settled_ns: int) -> bool:
    left = by_path(entries)
    for path, status in seen:
        if status is not None and not _is_kept(status):
            continue
        one = left.pop(path, None)
        if one is None or not _is_marked(one, status, settled_ns):
            return False
    return not left


def _is_marked(one: StateEntry, status: os.stat_result | None, settled_ns: int) -> bool:
    if status is None:
        return not one.mode
    if stat.S_ISDIR(status.st_mode):
        # To look into one that its mode keeps us out of gives it a new ctime.
        return (one.mode, one.mtime_ns) == (status.st_mode, status.st_mtime_ns)
    still = status.st_ctime_ns < settled_ns or _is_closed(status)
    return still and one.mark == mark_of(status)


def _is_closed(status: os.stat_result) -> bool:
    """Its mode keeps us out, so it has the ctime of when we opened it all the same."""
    return os.geteuid() != 0 and not status.st_mode & stat.S_IRUSR


def _differing(before: Iterable[StateEntry], after: Iterable[StateEntry]) -> Iterator[str]:
    """The paths of files that are not the same in both, sorted."""
    one, two = by_path(before), by_path(after)
    for path in sorted(one.keys() | two.keys()):
        old, new = one.get(path), two.get(path)
        kinds = [entry.mode for entry in (old, new) if entry is not None]
        if all(map(stat.S_ISDIR, kinds)):
            continue
        if old is None or new is None or _what(old) != _what(new):
            yield path


def _is_of_git(path: str) -> bool:
    return ".git" in path.split("/")


def _what(one: StateEntry) -> tuple[int, bytes]:
    return one.mode, one.content
