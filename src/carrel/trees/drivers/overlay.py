"""Trees as overlays: a mount of the base's layers with a writable folder on top.

Making one is a mount, however big the project is; what the tree costs is what was
written in it, and that is also all that needs to be read to say what changed. Root mounts on the
host, with id-mapped layers. For ordinary users the launcher mounts overlays and holds them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, TreeDamaged, TreeUnavailable
from carrel.domain.launching import MountHelper, OverlayMount
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.trees import (
    Base,
    Change,
    Owner,
    Tree,
    TreeCapabilities,
    TreeMount,
    TreeRequest,
    TreeUsage,
)
from carrel.linux import mounts
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import make_id_map, store_gid, store_uid
from carrel.linux.mounts import Overlay
from carrel.trees.changes import Comparison, PathTest, every_path
from carrel.trees.drivers.common import (
    PRIVATE,
    DriverBases,
    all_blocks,
    begin,
    expect,
    freeze,
    make,
    measure,
    note_prefix,
    open_roots,
    private_folder,
    probe_folder,
    remove_folders,
    some_owner,
    tree_errors,
)
from carrel.trees.drivers.written import (
    Written,
    WrittenEntries,
    WrittenFiles,
    as_written,
    untouched,
)
from carrel.trees.folders import Root
from carrel.trees.layers import Layers
from carrel.trees.paths import FOLDER
from carrel.trees.shared_layers import SharedLayers

# Closing the last descriptor of an unmounted overlay without waiting for the disk.
#
# When an overlay ends, the kernel writes out all unwritten data of the disk that its upper
# folder is on, whoever wrote it: tenths of seconds, or minutes on a busy machine. Nothing of
# a dropped tree waits for that: it is off the mount table and its files are removed before.

MAX_WAITING = 64
"""So many may be unfinished; beyond, dropping waits, so that they cannot pile up."""


class BackgroundCloser:
    """Closes descriptors one after the other in a thread that ends when there is nothing
    left to do. A process that ends meanwhile waits for it; one that is killed leaves the
    closing to the kernel."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[int] = deque()
        self._running = False

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._lock.wait_for(lambda: len(self._waiting) < MAX_WAITING)
            self._waiting.append(descriptor)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="carrel-close").start()

    def wait(self, timeout_s: float) -> bool:
        """Until all is closed; says whether it is."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._running, timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    self._lock.notify_all()
                    return
                descriptor = self._waiting[0]
            os.close(descriptor)
            with self._lock:
                self._waiting.popleft()
                self._lock.notify_all()


# Overlays that root mounts on the host.
#
# The layers of a base belong on disk to the store's own user. An id-mapped mount shows them
# as the tree's owner's; the upper folder belongs to that owner for real.

_OPTIONS = (
    ("redirect_dir", "on"),
    ("metacopy", "on"),
    # Off whatever the machine's defaults are: both would tie an upper folder to one
    # mount of its lower layers, which are shown through another one after a reboot.
    ("index", "off"),
    ("nfs_export", "off"),
)
BELOW = "below"
"""Stands for the layer that a tree began with above its base, if it has one."""
LAYERS = "layers"
"""Of the data folder."""
_REFUSED_MAPS = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)


class HostOverlay:
    """Mounts, and finds again what it mounted."""

    def __init__(self, *, attaches: bool = False) -> None:
        """`attaches` does at once what is else done when the kernel turns out to be old."""
        self._attaches = attaches

    def mount(self, folder: Path, layers: tuple[Path, ...], store: Owner, owner: Owner) -> None:
        private = folder / PRIVATE
        with contextlib.ExitStack() as stack, tree_errors("mount the overlay"):
            upper, work = mounts.open_layers([private / "upper", private / "work"])
            stack.callback(mounts.close_all, (upper, work))
            lowers = stack.enter_context(self._lowers(layers, store, owner))
            overlay = Overlay(tuple(lowers), upper, work, _OPTIONS)
            if owner == store:
                mounts.mount_overlay(overlay, str(folder / "project"))
            else:
                self._mount_mapped(overlay, folder)

    def _mount_mapped(self, overlay: Overlay, folder: Path) -> None:
        """Before Linux 6.15, layers had to be attached somewhere, if only for a moment."""
        if not self._attaches:
            try:
                mounts.mount_overlay(overlay, str(folder / "project"))
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        with attached(overlay.lowers, folder / PRIVATE / "lower") as lowers:
            shown = Overlay(tuple(lowers), overlay.upper, overlay.work, overlay.options)
            try:
                mounts.mount_overlay(shown, str(folder / "project"))
            except OSError as error:
                # Linux 5.12 to 5.18 has id-mapped mounts, but not as layers.
                if error.errno == errno.EINVAL:
                    raise no_id_maps(error) from error
                raise
        self._attaches = True

    @contextlib.contextmanager
    def _lowers(self, layers: tuple[Path, ...], store: Owner, owner: Owner) -> Iterator[list[int]]:
        if owner == store:
            opened = mounts.open_layers(layers)
        else:
            opened = self._mapped(layers, store, owner)
        try:
            yield opened
        finally:
            mounts.close_all(opened)

    def _mapped(self, layers: tuple[Path, ...], store: Owner, owner: Owner) -> list[int]:
        opened: list[int] = []
        try:
            for layer in layers:
                opened.append(mounts.clone_mount(str(layer)))
            show_as(opened, store, owner)
        except BaseException:
            mounts.close_all(opened)
            raise
        return opened

    def is_mounted(self, tree: Tree) -> bool:
        return mounts.is_mounted(tree.path)

    def open_root(self, tree: Tree) -> int:
        """Raises `TreeDamaged` when it is not mounted: then there is an empty folder."""
        with tree_errors("open the tree"):
            descriptor = os.open(tree.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if os.fstat(descriptor).st_dev != os.stat(tree.folder).st_dev:
                return descriptor
        os.close(descriptor)
        raise TreeDamaged(
            f"The tree {tree.tree_id} is not mounted.", hint="It is mounted again by `ensure`."
        )

    @contextlib.contextmanager
    def shown(self, tree: Tree) -> Iterator[TreeMount]:
        root = self.open_root(tree)

        def detached() -> int:
            with tree_errors("show the tree to a sandbox"):
                return mounts.clone_mount(root)

        try:
            yield TreeMount(tree.path, detached=detached)
        finally:
            os.close(root)

    def unmount(self, tree: Tree) -> int | None:
        """Takes it off the mount table, and what an interrupted mount left attached.

        Gives a descriptor that keeps the file system alive, if it was mounted: when the
        last one is closed, the kernel writes the whole disk's unwritten data out.
        """
        held = None
        with tree_errors("unmount the tree"):
            if self.is_mounted(tree):
                held = os.open(tree.path, os.O_PATH | os.O_CLOEXEC)
            mounts.detach_all(str(tree.path))
            lower = private_folder(tree) / "lower"
            if lower.is_dir():
                for point in lower.iterdir():
                    mounts.detach_all(str(point))
        return held


@contextlib.contextmanager
def attached(layers: tuple[int, ...], folder: Path) -> Iterator[list[int]]:
    """Detached mounts on folders of their own for a while, as descriptors of those."""
    folder.mkdir()
    points = []
    try:
        for number, layer in enumerate(layers):
            point = folder / str(number)
            point.mkdir()
            points.append(point)
            mounts.attach(layer, str(point))
        opened = mounts.open_layers(points)
        try:
            yield opened
        finally:
            mounts.close_all(opened)
    finally:
        for point in points:
            mounts.detach_all(str(point))
            point.rmdir()
        folder.rmdir()


def show_as(clones: list[int], store: Owner, owner: Owner) -> None:
    """Makes detached mounts show what belongs to the store as the owner's. Raises
    `TreeUnavailable` where there are no id-mapped mounts."""
    try:
        namespace = make_id_map((store.uid, store.gid), (owner.uid, owner.gid))
    except OSError as error:
        raise no_id_maps(error) from error
    try:
        for clone in clones:
            mounts.map_ids(clone, namespace)
    except OSError as error:
        if error.errno in _REFUSED_MAPS:
            raise no_id_maps(error) from error
        raise
    finally:
        os.close(namespace)


def no_id_maps(error: OSError) -> TreeUnavailable:
    return TreeUnavailable(
        f"The kernel or the file system refuses id-mapped mounts ({error.strerror}).",
        hint="They need Linux 5.19, and a data folder on ext4, xfs or btrfs.",
        id_maps=False,
    )


# Overlays of ordinary users, each in a namespace of its own that outlives us


class HeldOverlay:
    def __init__(self, helper: MountHelper) -> None:
        self._helper = helper

    def mount(self, key: str, folder: Path, layers: tuple[Path, ...]) -> None:
        private = folder / PRIVATE
        self._helper.mount_overlay(
            key,
            OverlayMount(
                lowers=layers,
                upper=private / "upper",
                work=private / "work",
                target=folder / "project",
            ),
        )

    def is_mounted(self, tree: Tree) -> bool:
        return tree.tree_id in self._helper.held()

    def open_root(self, tree: Tree) -> int:
        if not self.is_mounted(tree):
            raise TreeDamaged(
                f"The tree {tree.tree_id} is not mounted.",
                hint="It is mounted again by `ensure`.",
            )
        return self._helper.open_in(tree.tree_id, tree.path)

    @contextlib.contextmanager
    def shown(self, tree: Tree) -> Iterator[TreeMount]:
        yield TreeMount(tree.path, namespace=tree.tree_id)

    def unmount(self, tree: Tree) -> None:
        self._helper.release(tree.tree_id)


# The driver

_HARD_LINKS = "A base file with several names is parted from the others when it is first written."
_NOT_ON_HOST = "Trees are mounted in namespaces of the launcher's; `Tree.path` is empty elsewhere."
_OWN_STORE = "Without id-mapped mounts every sandbox runs as the store's own user, {uid}."


class OverlayDriver:
    """As root, mounted on the host; as an ordinary user, in namespaces that the launcher
    holds."""

    name = "overlay"

    def __init__(
        self,
        data: Path,
        bases: DriverBases,
        helper: MountHelper,
        let_go: Callable[[int], None] | None = None,
    ) -> None:
        """`let_go` closes the last descriptor of an unmounted overlay, which takes as long
        as the disk needs to write everything out; by default in the background."""
        self._data = data
        self._bases = bases
        self._let_go = BackgroundCloser().close if let_go is None else let_go
        self._host = HostOverlay() if os.geteuid() == 0 else None
        self._held = HeldOverlay(helper)
        self._layers = SharedLayers(data / LAYERS)
        with contextlib.suppress(OSError):
            self._layers.tidy()
        self._maps_ids: bool | None = None

    @property
    def capabilities(self) -> TreeCapabilities:
        notes = [_HARD_LINKS]
        if self._host is None:
            notes.append(_NOT_ON_HOST)
        elif self._maps_ids is None:
            self.probe()
        if self._host is not None and self._maps_ids is False:
            notes.append(_OWN_STORE.format(uid=store_uid()))
        return TreeCapabilities(
            copy_on_write=True,
            instant=True,
            visible_on_host=self._host is not None,
            renames_base_folders=self._host is not None,
            layers=True,
            any_owner=self._host is None or self._maps_ids is not False,
            notes=tuple(notes),
        )

    def probe(self) -> Availability:
        owner = some_owner()
        try:
            try:
                self._try(owner)
                self._maps_ids = True
            except TreeUnavailable as refusal:
                store = Owner(store_uid(), store_gid())
                if self._host is None or owner == store or refusal.details.get("id_maps", True):
                    raise
                self._try(store)
                self._maps_ids = False
        except (CarrelError, OSError) as refusal:
            return Availability(
                False,
                f"An overlay in {str(self._data)!r} did not work: {refusal}",
                remedy="Put the data folder on ext4, xfs or btrfs.",
            )
        where = "on the host" if self._host is not None else "in a user namespace"
        return Availability(True, f"An overlay was mounted {where}, written to and removed.")

    def _try(self, owner: Owner) -> None:
        """A tree of two layers, from its making to its end."""
        with probe_folder(self._data) as folder:
            base = _probe_base(folder)
            tree = self.create(TreeRequest(folder.name, base, folder / "space", owner))
            try:
                with Descriptor(self.open_root(tree)) as root:
                    _expect_writable(root, owner)
            finally:
                self._drop(tree, os.close)

    def create(self, request: TreeRequest) -> Tree:
        private = begin(request)
        tree = make(request, self.name, time.time_ns())
        try:
            with tree_errors("prepare the tree's folders"):
                top = os.stat(request.base.layers[0])
                (private / "upper").mkdir(0o700)
                (private / "work").mkdir(0o700)
                tree.path.mkdir(0o755)
                if self._host is not None:
                    os.chown(private / "upper", request.owner.uid, request.owner.gid)
                os.chmod(private / "upper", stat.S_IMODE(top.st_mode))
                os.utime(private / "upper", ns=(top.st_atime_ns, top.st_mtime_ns))
                if request.layer is not None:
                    self._layers.lend(request.layer, private / BELOW)
            self._mount(tree, request.base)
        except BaseException:
            with contextlib.suppress(CarrelError):
                self._drop(tree, os.close)
            raise
        return tree

    def _mount(self, tree: Tree, base: Base) -> None:
        lowers = self._lowers(tree, base)
        if self._host is not None:
            self._host.mount(tree.folder, lowers, base.store_owner, tree.owner)
        else:
            self._held.mount(tree.tree_id, tree.folder, lowers)

    def _lowers(self, tree: Tree, base: Base) -> tuple[Path, ...]:
        """All that a tree shows without what was written in it, the uppermost first."""
        below = self._layers.of(private_folder(tree) / BELOW)
        return base.layers if below is None else (below, *base.layers)

    def ensure(self, tree: Tree) -> None:
        private = private_folder(tree)
        expect(tree, private / "upper", private / "work", tree.path)
        if not self._mounts.is_mounted(tree):
            self._mount(tree, self._bases.get(tree.base_id))

    @property
    def _mounts(self) -> HostOverlay | HeldOverlay:
        return self._host or self._held

    def open_root(self, tree: Tree) -> int:
        expect(tree)
        return self._mounts.open_root(tree)

    @contextlib.contextmanager
    def mount(self, tree: Tree) -> Iterator[TreeMount]:
        expect(tree)
        with self._mounts.shown(tree) as shown:
            yield shown

    def changes(self, tree: Tree) -> Iterator[Change]:
        return self.compare(tree, links=False)

    def compare(
        self,
        tree: Tree,
        *,
        links: bool,
        renames: PathTest | None = every_path,
        into_added: bool = True,
    ) -> Iterator[Change]:
        with self._compared(tree) as (merged, base), tree_errors("compare the tree"):
            yield from Comparison(
                merged, base, links=links, renames=renames, into_added=into_added
            ).changes()

    @contextlib.contextmanager
    def _compared(self, tree: Tree) -> Iterator[tuple[Layers, Layers]]:
        upper = private_folder(tree) / "upper"
        expect(tree, upper)
        of_base = self._bases.get(tree.base_id)
        with open_roots((upper, *self._lowers(tree, of_base))) as roots:
            prefix = note_prefix()
            yield Layers(roots, prefix), Layers(roots[-len(of_base.layers) :], prefix)

    def written(self, tree: Tree) -> list[Written]:
        upper = private_folder(tree) / "upper"
        expect(tree, upper)
        of_base = self._bases.get(tree.base_id)

        def compare(path: str) -> Iterator[Written]:
            with self._compared(tree) as (merged, base), self.open_written(tree) as files:
                found = Comparison(merged, base, links=True, renames=None).below(path)
                yield from as_written(found, files.status)

        with contextlib.ExitStack() as stack:
            folders = (upper, *self._lowers(tree, of_base))
            opened = [stack.enter_context(Descriptor(os.open(one, FOLDER))) for one in folders]
            split = len(opened) - len(of_base.layers)
            return WrittenEntries(note_prefix(), compare).read(opened[:split], opened[split:])

    def open_written(self, tree: Tree) -> WrittenFiles:
        upper = private_folder(tree) / "upper"
        expect(tree, upper)
        return WrittenFiles(Root.at(upper), note_prefix(), lambda: Root(self.open_root(tree)))

    def is_untouched(self, tree: Tree, since_ns: int) -> bool:
        """Whatever is done to a file or a folder of the tree is done to one of the upper folder."""
        upper = private_folder(tree) / "upper"
        expect(tree, upper)
        with tree_errors("look at the tree"), Descriptor(os.open(upper, FOLDER)) as folder:
            try:
                return os.fstat(folder).st_ctime_ns < since_ns and untouched(folder, since_ns)
            except (PermissionError, FileNotFoundError, NotADirectoryError):
                return False

    def usage(self, tree: Tree) -> TreeUsage:
        upper = private_folder(tree) / "upper"
        expect(tree, upper)
        with Root.at(upper) as root, tree_errors("measure the tree"):
            return measure(root, all_blocks)

    def freeze(self, tree: Tree) -> Base:
        return freeze(self, self._bases, tree)

    def drop(self, tree: Tree) -> None:
        self._drop(tree, self._let_go)

    def _drop(self, tree: Tree, let_go: Callable[[int], None]) -> None:
        held = self._mounts.unmount(tree)
        shared = (private_folder(tree) / BELOW).is_file()
        try:
            remove_folders(tree)
            if shared:
                with tree_errors("remove the layer of the tree"):
                    self._layers.tidy()
        finally:
            if held is not None:
                let_go(held)


def _probe_base(folder: Path) -> Base:
    owner = Owner(store_uid(), store_gid())
    layers = (folder / "above", folder / "below")
    for layer in layers:
        layer.mkdir(0o755)
        (layer / "file").write_text(layer.name)
        if os.geteuid() == 0:
            for path in (layer, layer / "file"):
                os.chown(path, owner.uid, owner.gid)
    (folder / "space").mkdir(0o700)
    return Base(
        base_id="probe",
        project=Project(ProjectKind.EMPTY),
        folder=folder,
        layers=layers,
        entries=1,
        size_bytes=0,
        created_at=0.0,
        store_owner=owner,
        project_owner=owner,
    )


def _expect_writable(root: int, owner: Owner) -> None:
    """That the file of the base is the owner's, and that writing stays in the tree."""
    status = os.stat("file", dir_fd=root)
    if (status.st_uid, status.st_gid) != (owner.uid, owner.gid):
        raise TreeUnavailable(
            f"A file of the base belongs to {status.st_uid}, not to {owner.uid}.", id_maps=False
        )
    with Descriptor(os.open("file", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, dir_fd=root)) as file:
        os.write(file, b"!")
        if os.pread(file, 16, 0) != b"above!":
            raise TreeUnavailable("What was written to an overlay was not there afterwards.")
