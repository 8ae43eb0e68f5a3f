"""Trees as overlays: a base's layers below, a private upper folder above.

Making one is a mount, however big the project is; what the tree costs is what was
written in it, and that is also all that needs to be read to say what changed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, TreeUnavailable
from carrel.domain.launching import MountHelper
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
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.changes import Comparison
from carrel.trees.drivers.closing import BackgroundCloser
from carrel.trees.drivers.common import (
    Bases,
    begin,
    expect,
    freeze,
    make,
    note_prefix,
    open_roots,
    private_folder,
    probe_folder,
    remove_folders,
    some_owner,
    tree_errors,
)
from carrel.trees.drivers.held_overlay import HeldOverlay
from carrel.trees.drivers.host_overlay import HostOverlay
from carrel.trees.folders import Root
from carrel.trees.layers import Layers
from carrel.trees.usage import all_blocks, measure

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
        bases: Bases,
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
                root = self.open_root(tree)
                try:
                    _expect_writable(root, owner)
                finally:
                    os.close(root)
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
            self._mount(tree, request.base)
        except BaseException:
            with contextlib.suppress(CarrelError):
                self._drop(tree, os.close)
            raise
        return tree

    def _mount(self, tree: Tree, base: Base) -> None:
        if self._host is not None:
            self._host.mount(tree.folder, base, tree.owner)
        else:
            self._held.mount(tree.tree_id, tree.folder, base)

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

    def compare(self, tree: Tree, *, links: bool, renames: bool = True) -> Iterator[Change]:
        upper = private_folder(tree) / "upper"
        expect(tree, upper)
        layers = self._bases.get(tree.base_id).layers
        with open_roots((upper, *layers)) as roots, tree_errors("compare the tree"):
            prefix = note_prefix()
            merged, base = Layers(roots, prefix), Layers(roots[1:], prefix)
            yield from Comparison(merged, base, links=links, renames=renames).changes()

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
        try:
            remove_folders(tree)
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
    file = os.open("file", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, dir_fd=root)
    try:
        os.write(file, b"!")
        if os.pread(file, 16, 0) != b"above!":
            raise TreeUnavailable("What was written to an overlay was not there afterwards.")
    finally:
        os.close(file)
