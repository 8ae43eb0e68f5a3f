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
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from carrel.domain.checkpoints import START, PartsKept, StateSummary
from carrel.domain.errors import TreeDamaged, TreeUnavailable
from carrel.domain.systems import Part
from carrel.domain.trees import Base, Owner, Tree, TreeDriver, TreeLayer
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import may_give
from carrel.trees.bases.disk import LayeredLayout
from carrel.trees.contents import STAT_BLOCK
from carrel.trees.drivers.common import (
    Comparable,
    Layered,
    Restful,
    note_prefix,
    open_roots,
    settle,
    tree_errors,
)
from carrel.trees.drivers.written import ReadableFiles, WrittenFiles, as_written
from carrel.trees.folders import Root, join, split, walk
from carrel.trees.kept import (
    VERSION,
    FilesState,
    KeptEntries,
    KeptSide,
    StateEntry,
    by_path,
    damaged,
    mark_of,
    packed,
    read_state,
    write_state,
)
from carrel.trees.layers import Layers
from carrel.trees.parts import Ids, OneOwner, PartOf, Seen, SpacePart, no_parts
from carrel.trees.paths import sync_folder
from carrel.trees.state_files import FileKeeping, Restoring, is_kept, make_other, open_kept
from carrel.trees.writer import TreeWriter

LOOKS = 5
"""At a tree that is being written to, until it is given up."""
NAMED = 20
"""Of the files that changed since the state before."""
_HEAD = "head"
"""The state with the marks that the files have now."""
FOLDER = "checkpoints"
FILES, _STATE = "files", "state"


class SpaceStates:
    """Implements `carrel.domain.checkpoints.States`, in a folder that only we enter."""

    def __init__(
        self,
        driver: TreeDriver,
        tree: Tree,
        base: Base,
        parts: Sequence[Part] = (),
        part_of: PartOf = no_parts,
    ) -> None:
        """`parts`: what the space has beside its tree."""
        self._folder = tree.folder / FOLDER
        self._objects = self._folder / FILES
        self._driver = driver
        self._tree = tree
        self._base = base
        self._part_of = part_of
        self._parts = self._named(parts, tree)
        self._ids = OneOwner(tree.owner, base.store_owner)

    def _named(self, parts: Sequence[Part], tree: Tree) -> Mapping[str, SpacePart]:
        found = (self._part_of(part, tree.folder) for part in parts)
        return {part.name: part for part in found}

    # FileKeeping

    def take(
        self,
        name: str,
        *,
        agent: bool,
        without: Collection[str] = (),
        max_bytes: int,
        still: Callable[[], AbstractContextManager[object]] = nullcontext,
        parts: bool = True,
    ) -> StateSummary:
        if not parts:
            alone = SpaceStates(self._driver, self._tree, self._base)
            return alone.take(name, agent=agent, without=without, max_bytes=max_bytes, still=still)
        with tree_errors("keep the state"):
            self._objects.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = self._read(_HEAD)
            keeping = FileKeeping(self._objects, max_bytes)
            try:
                found = self._at_one_moment(keeping, before, agent, frozenset(without), still)
                content = packed(found)
                self._write(name, content)
                self._write(_HEAD, content)
            except BaseException:
                keeping.forget()
                raise
            keeping.forget(but={one.content for one in found.files()})
        # People look for the work first: git's own files come last.
        changed = sorted(_differing(before, found), key=_is_of_git)
        return StateSummary(
            files=sum(not stat.S_ISDIR(one.mode) for one in (*found.tree, *_all_parts(found))),
            changed=len(changed),
            named=tuple(changed[:NAMED]),
            bytes_new=keeping.bytes_new,
        )

    def _at_one_moment(
        self,
        keeping: FileKeeping,
        before: FilesState,
        agent: bool,
        without: frozenset[str],
        still: Callable[[], AbstractContextManager[object]],
    ) -> FilesState:
        """What was copied at a look that did not count is used at the next, if nobody has touched
        it since."""
        known = before
        with ExitStack() as stack:
            for look in range(LOOKS):
                if look == 1:
                    stack.enter_context(still())
                settled = settle(self._folder)
                found = self._kept(keeping, known, agent, without)
                if found is not None and self._is_still(found, settled, without):
                    return found
                known = before if found is None else _untouched(found, settled, keeping.sure)
                keeping.forget(but={one.content for one in known.files()})
        raise TreeUnavailable(
            "Something in the space keeps on writing, so there is no one state of it.",
            hint="Stop what runs in it, and try again: carrel ps",
        )

    def _kept(
        self, keeping: FileKeeping, before: FilesState, agent: bool, without: frozenset[str]
    ) -> FilesState | None:
        """None when something went while it was read."""
        try:
            with self._tree_files() as files:
                tree = keeping.all(files, self._now(files), before.tree, self._ids)
            parts = {name: self._kept_part(keeping, before, name) for name in self._parts}
            if not agent:
                return FilesState(VERSION, self._tree.base_id, tree, None, parts)
            with self._agent_root() as root:
                own = keeping.all(root, _all(root, without), before.agent or (), self._ids)
        except FileNotFoundError:
            return None
        return FilesState(VERSION, self._tree.base_id, tree, own, parts)

    def _kept_part(
        self, keeping: FileKeeping, before: FilesState, name: str
    ) -> tuple[StateEntry, ...]:
        part = self._parts[name]
        with Root(part.open_root()) as root:
            return keeping.all(root, part.now(root), before.parts.get(name, ()), part.ids)

    def _is_still(self, found: FilesState, settled_ns: int, without: frozenset[str]) -> bool:
        """Whether what was kept is what there is, and was so since then."""
        driver = self._driver
        if not (isinstance(driver, Restful) and driver.is_untouched(self._tree, settled_ns)):
            with self._tree_files() as files:
                if not _are_marked(found.tree, self._now(files), settled_ns, self._ids):
                    return False
        for name, part in self._parts.items():
            with Root(part.open_root()) as root:
                if not _are_marked(found.parts[name], part.now(root), settled_ns, part.ids):
                    return False
        if found.agent is None:
            return True
        with self._agent_root() as root:
            return _are_marked(found.agent, _all(root, without), settled_ns, self._ids)

    def _now(self, files: ReadableFiles, *, whole: bool = False) -> Iterable[Seen]:
        """What differs from the base, as it is; of a folder that went only the folder, unless
        `whole`."""
        if isinstance(self._driver, Layered) and not whole:
            return self._driver.written(self._tree)
        assert isinstance(self._driver, Comparable)
        changes = self._driver.compare(self._tree, links=True, renames=None)
        return as_written(changes, files.status, whole=whole)

    def _tree_files(self) -> Root | WrittenFiles:
        if isinstance(self._driver, Layered):
            return self._driver.open_written(self._tree)
        return Root(self._driver.open_root(self._tree))

    def _opened_tree(self, _root: int) -> Root | WrittenFiles:
        return self._tree_files()

    def _agent_root(self) -> Root:
        return Root(_open_agent(self._tree))

    def parts_fit(self, max_bytes: int) -> bool:
        left = max_bytes
        with tree_errors("measure the system"):
            for part in self._parts.values():
                with Root(part.open_root()) as root:
                    for _, status in part.now(root):
                        left -= status.st_blocks * STAT_BLOCK if status is not None else 0
                        if left < 0:
                            return False
        return True

    # Putting back

    def put_back(self, name: str, *, parts: bool = True) -> bool:
        if not parts:
            return SpaceStates(self._driver, self._tree, self._base).put_back(name)
        state = self._read(name)
        with tree_errors("put the state back"), open_roots(self._base.layers) as roots:
            self._check(state.all())
            base = Layers(roots, note_prefix())
            with self._tree_files() as files:
                now = dict(self._now(files, whole=True))
            entries = KeptEntries(state.tree, base)
            tree = self._restored(
                self._driver.open_root(self._tree), now, entries, marked=self._opened_tree
            )
            restored = {
                name: self._restored_part(part, state.parts[name], marked=_opened)
                for name, part in self._parts.items()
                if name in state.parts
            }
            agent = None
            if state.agent is not None and _has_agent(self._tree):
                with self._agent_root() as root:
                    now = dict(_all(root))
                entries = KeptEntries(state.agent, None)
                agent = self._restored(_open_agent(self._tree), now, entries, marked=_opened)
            made = FilesState(VERSION, self._tree.base_id, tree, agent, restored)
            self._write(_HEAD, packed(made))
        return agent is not None

    def _restored_part(
        self,
        part: SpacePart,
        wanted: Iterable[StateEntry],
        objects: Path | None = None,
        marked: Callable[[int], Root | WrittenFiles] | None = None,
    ) -> tuple[StateEntry, ...]:
        wanted = tuple(wanted)
        with part.base() as base, part.began() as began:
            with Root(part.open_root()) as root:
                now = dict(part.now(root, whole=True))
            if began is not None and not wanted:
                # As at the start: a state that was kept names the folder itself.
                base = began
                now = dict.fromkeys(_paths(began)) | now
            entries = KeptEntries(wanted, base)
            return self._restored(part.open_root(), now, entries, part, objects, marked)

    def _restored(
        self,
        descriptor: int,
        now: Mapping[str, os.stat_result | None],
        wanted: KeptEntries,
        part: SpacePart | None = None,
        objects: Path | None = None,
        marked: Callable[[int], Root | WrittenFiles] | None = None,
    ) -> tuple[StateEntry, ...]:
        """The entries with their marks in what `marked` opens, if that is given."""
        with Descriptor(descriptor) as root:
            status = os.fstat(root)
            owner = Owner(status.st_uid, status.st_gid)
            ids: Ids = OneOwner(owner, owner) if part is None else part.ids
            stays = part.stays if part is not None else ()
            writer = TreeWriter(root, owner)
            try:
                Restoring(writer, objects or self._objects, now, wanted, ids, stays).run()
                writer.finish()
            finally:
                writer.close()
            entries = wanted.named.values()
            if marked is None or not entries:
                return ()
            # What is written from now on has a later ctime than any mark.
            settled = settle(self._folder)
            # Anew: a folder that was just finished may keep its owner out.
            with marked(root) as made:
                statuses = (made.status(os.fsdecode(one.path)) for one in entries)
                return tuple(
                    _marked(*pair, settled) for pair in zip(entries, statuses, strict=True)
                )

    def _check(self, entries: Iterable[StateEntry], objects: Path | None = None) -> None:
        """That all of it is there: a machine that lost its power may have lost some of it."""
        for one in entries:
            if not one.is_file:
                continue
            path = (objects or self._objects) / os.fsdecode(one.content)
            try:
                there = path.stat().st_size == one.size
            except FileNotFoundError:
                there = False
            if not there:
                raise damaged(f"{os.fsdecode(one.path)!r} is not as it was kept")

    # Giving to another tree

    def layer(self, name: str) -> TreeLayer | None:
        """States with the same files have the same layer."""
        state = self._read(name)
        self._check(state.tree)
        ids = OneOwner(self._base.store_owner, self._base.store_owner)

        def fill(layer: Path) -> None:
            with open_roots(self._base.layers) as roots:
                self._fill_layer(state.tree, layer, Layers(roots, note_prefix()), ids)

        return _layer((state.base_id, state.tree), state.tree, fill)

    def part_layers(self, name: str) -> Mapping[str, TreeLayer]:
        state, layers = self._read(name), {}
        for place, part in self._parts.items():
            entries = state.parts.get(place, ())
            self._check(entries)
            fill = partial(self._fill_part, part, entries)
            layer = _layer((place, part.base_id, entries), entries, fill)
            if part.layered and layer is not None:
                layers[place] = layer
        return layers

    def _fill_part(self, part: SpacePart, entries: tuple[StateEntry, ...], layer: Path) -> None:
        with part.base() as base:
            assert base is not None
            self._fill_layer(entries, layer, base, part.ids)

    def _fill_layer(
        self, entries: tuple[StateEntry, ...], layer: Path, base: Layers, ids: Ids
    ) -> None:
        """It shares the kept files. Folders on the way to them are as the base has them."""
        top = ids.stored((0, 0))
        hidden = LayeredLayout(top)
        with (
            tree_errors("fork the tree"),
            Descriptor(os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root,
            contextlib.closing(TreeWriter(root, top)) as writer,
        ):
            if may_give():
                os.chown(layer, top.uid, top.gid)
            for one in entries:
                path = os.fsdecode(one.path)
                above, last = split(path)
                self._reach(writer, above, base, ids)
                owner = ids.stored(one.owner)
                writer.give_to(owner)
                if stat.S_ISDIR(one.mode):
                    writer.reach(path)
                    writer.note_folder(path, one.mode & ids.folder_bits, one.mtime_ns, owner)
                elif not one.mode:
                    hidden.hide(writer.folder(above), os.fsencode(last))
                elif one.is_file:
                    kept = self._objects / os.fsdecode(one.content)
                    os.link(kept, last, dst_dir_fd=writer.folder(above))
                else:
                    make_other(writer, path, one)
            writer.finish()

    def give(self, name: str, other: Tree, parts: Sequence[Part] = (), *, files: bool) -> None:
        state = self._read(name)
        copied = {
            place: part
            for place, part in self._named(parts, other).items()
            if place in state.parts and not part.layered
        }
        entries = (state.tree if files else (), state.agent or ())
        self._check(one for some in entries for one in some)
        self._check(one for place in copied for one in state.parts[place])
        with tree_errors("fork the tree"), open_roots(self._base.layers) as roots:
            if files:
                wanted = KeptEntries(state.tree, Layers(roots, note_prefix()))
                self._restored(self._driver.open_root(other), {}, wanted)
            for place, part in copied.items():
                self._restored_part(part, state.parts[place])
            if state.agent is not None and _has_agent(other):
                self._restored(_open_agent(other), {}, KeptEntries(state.agent, None))

    def _reach(self, writer: TreeWriter, folder: str, base: Layers, ids: Ids) -> None:
        if not folder or writer.status(folder) is not None:
            return
        self._reach(writer, split(folder)[0], base, ids)
        found = base.find(folder)
        assert found is not None, "what the base does not have is an entry of its own"
        owner = ids.stored(ids.inside(found.status))
        writer.give_to(owner)
        writer.make_folder(folder, stat.S_IMODE(found.status.st_mode), found.status.st_mtime_ns)

    # What is beside the tree, in the trash

    def has_parts_to_keep(self) -> bool:
        with tree_errors("look at the system"):
            return any(_has_files(part) for part in self._parts.values())

    def pack_parts(self, target: Path, max_bytes: int) -> PartsKept:
        """Shares the kept files of what was not touched since."""
        with tree_errors("keep the system"):
            objects = target / FILES
            objects.mkdir(mode=0o700, parents=True)
            before = self._read(_HEAD)
            keeping = FileKeeping(objects, max_bytes)
            parts = {}
            for name, part in self._parts.items():
                with keeping.taking_over(part.own):
                    parts[name] = self._kept_part(keeping, before, name)
            state = FilesState(VERSION, self._tree.base_id, parts=parts)
            used = keeping.bytes_new
            for one in {one.content: one for one in state.files()}.values():
                path = objects / os.fsdecode(one.content)
                if not path.exists():
                    kept = self._objects / os.fsdecode(one.content)
                    size = kept.stat().st_blocks * STAT_BLOCK
                    keeping.count(size)
                    used += size
                    os.link(kept, path)
            write_state(target / _STATE, packed(state))
            # All at the end: the first has the disk write down what it knows of the others.
            for path in (*objects.iterdir(), target / _STATE):
                with Descriptor(open_kept(path)) as file:
                    os.fsync(file)
            sync_folder(objects)
            sync_folder(target)
        return PartsKept(used, sum(not stat.S_ISDIR(one.mode) for one in _all_parts(state)))

    def unpack_parts(self, source: Path) -> None:
        if not (source / _STATE).exists():
            return
        state = read_state(source / _STATE, self._tree.base_id)
        objects = source / FILES
        self._check(state.all(), objects)
        with tree_errors("bring the system back"):
            for name, part in self._parts.items():
                if name in state.parts:
                    self._restored_part(part, state.parts[name], objects)

    # Comparing

    @contextlib.contextmanager
    def side(self, name: str, base: Layers) -> Iterator[KeptSide]:
        """Nobody may thin the states meanwhile."""
        state = self._read(name)
        self._check(state.tree)
        with Root.at(self._objects) as objects, self._tree_files() as files:
            yield KeptSide(state, objects, base, files.status)

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
            return sum(entry.stat().st_blocks * STAT_BLOCK for entry in found)
        return 0

    def _read(self, name: str) -> FilesState:
        """What was never kept is what the tree began with."""
        if name == START:
            parts: dict[str, tuple[StateEntry, ...]] = {name: () for name in self._parts}
            return FilesState(VERSION, self._tree.base_id, agent=(), parts=parts)
        try:
            return read_state(self._folder / name, self._tree.base_id)
        except FileNotFoundError:
            if name != _HEAD:
                raise damaged("it is not there") from None
        except TreeDamaged:
            if name != _HEAD:
                raise
        return FilesState(VERSION, self._tree.base_id)

    def _write(self, name: str, content: bytes) -> None:
        write_state(self._folder / name, content)


def _has_agent(tree: Tree) -> bool:
    return (tree.folder / "agent" / "state").is_dir()


def _open_agent(tree: Tree) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(tree.folder / "agent" / "state", flags)


def _all(root: Root, without: Collection[str] = ()) -> Iterator[Seen]:
    return ((path, status) for path, status in walk(root) if path not in without)


def _layer(
    said: object, entries: tuple[StateEntry, ...], fill: Callable[[Path], None]
) -> TreeLayer | None:
    if not entries:
        return None
    return TreeLayer(sha256(msgspec.msgpack.encode(said)).hexdigest()[:32], fill)


def _paths(layers: Layers) -> Iterator[str]:
    folders = [("", layers.top())]
    while folders:
        above, folder = folders.pop()
        for name, entry in layers.children(folder).items():
            yield join(above, name)
            if entry.is_folder:
                folders.append((join(above, name), entry))


def _all_parts(state: FilesState) -> Iterator[StateEntry]:
    return (one for entries in state.parts.values() for one in entries)


def _has_files(part: SpacePart) -> bool:
    with Root(part.open_root()) as root:
        return any(
            status is None or not stat.S_ISDIR(status.st_mode) for _, status in part.now(root)
        )


def _untouched(state: FilesState, settled_ns: int, sure: Collection[bytes]) -> FilesState:
    """What nobody can have touched since then without a newer mark."""

    def old(entries: Iterable[StateEntry]) -> tuple[StateEntry, ...]:
        return tuple(one for one in entries if one.mark[1] < settled_ns or one.content in sure)

    parts = {name: old(entries) for name, entries in state.parts.items()}
    agent = None if state.agent is None else old(state.agent)
    return FilesState(state.version, state.base_id, old(state.tree), agent, parts)


def _opened(root: int) -> Root:
    return Root(os.dup(root))


def _marked(one: StateEntry, status: os.stat_result | None, settled_ns: int) -> StateEntry:
    """Without a mark if somebody has written there since it was put back: so it is read again."""
    mark = (0, 0)
    if status is not None and (status.st_mode, status.st_mtime_ns) == (one.mode, one.mtime_ns):
        mark = mark_of(status) if status.st_ctime_ns < settled_ns else mark
    return msgspec.structs.replace(one, mark=mark)


def _are_marked(
    entries: Iterable[StateEntry], seen: Iterable[Seen], settled_ns: int, ids: Ids
) -> bool:
    left = by_path(entries)
    for path, status in seen:
        if status is not None and not is_kept(status):
            continue
        one = left.pop(path, None)
        if one is None or not _is_marked(one, status, settled_ns, ids):
            return False
    return not left


def _is_marked(one: StateEntry, status: os.stat_result | None, settled_ns: int, ids: Ids) -> bool:
    if status is None:
        return not one.mode
    if stat.S_ISDIR(status.st_mode):
        # To look into one that its mode keeps us out of gives it a new ctime.
        same = (one.mode, one.mtime_ns) == (status.st_mode, status.st_mtime_ns)
        return same and one.owner == ids.inside(status)
    return status.st_ctime_ns < settled_ns and one.mark == mark_of(status)


def _differing(before: FilesState, after: FilesState) -> Iterator[str]:
    """The paths of files that are not the same in both, sorted; those of the tree first."""
    yield from _differing_in(before.tree, after.tree)
    for name, entries in after.parts.items():
        for path in _differing_in(before.parts.get(name, ()), entries):
            yield f"{name}:/{path}"


def _is_of_git(path: str) -> bool:
    return ".git" in path.split("/")


def _differing_in(before: Iterable[StateEntry], after: Iterable[StateEntry]) -> Iterator[str]:
    one, two = by_path(before), by_path(after)
    for path in sorted(one.keys() | two.keys()):
        old, new = one.get(path), two.get(path)
        kinds = [entry.mode for entry in (old, new) if entry is not None]
        if all(map(stat.S_ISDIR, kinds)):
            continue
        if old is None or new is None or _what(old) != _what(new):
            yield path


def _what(one: StateEntry) -> tuple[int, bytes, tuple[int, int]]:
    return one.mode, one.content, one.owner
