"""A tree driver on a data folder of its own, with everything it needs, and gone afterwards.

Root has all drivers: btrfs and reflink on file systems made for the tests. An ordinary
user has them where root prepared the file systems and named them in the environment.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from carrel.domain.ids import new_id
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.domain.trees import Base, Change, Owner, Tree, TreeDriver, TreeMount, TreeRequest
from carrel.launcher.client import Launcher
from carrel.linux import libc, mounts, namespaces
from carrel.linux.btrfs import is_subvolume
from carrel.linux.ids import uid_range
from carrel.trees.bases.disk import SubvolumeLayout
from carrel.trees.bases.store import SANDBOX_OWNER, BaseStore
from carrel.trees.drivers.btrfs import BtrfsDriver
from carrel.trees.drivers.copies import CopyDriver, ReflinkDriver
from carrel.trees.drivers.overlay import OverlayDriver
from tests.folders import remove_folder
from tests.volumes import volume

DRIVERS = ("overlay", "btrfs", "reflink", "copy")
VOLUMES = {"btrfs": "btrfs", "reflink": "xfs"}
"""The file system that a driver needs under it."""
SANDBOX = (SANDBOX_OWNER.uid, SANDBOX_OWNER.gid)
"""Whom everything belongs to where a sandbox sees it."""
ACT_TIMEOUT_S = 60.0
"""For a command in a tree; they take milliseconds."""

Result = TypeVar("Result")


def volume_variable(driver: str) -> str:
    """The environment variable in which root names a folder for an ordinary user's tests."""
    return f"CARREL_TEST_{driver.upper()}"


@contextlib.contextmanager
def place_for(driver: str) -> Iterator[Path]:
    """A folder that data folders for this driver can be made in."""
    if driver not in VOLUMES:
        yield Path(tempfile.gettempdir())
    elif os.geteuid() != 0:
        yield Path(os.environ[volume_variable(driver)])
    else:
        with volume(VOLUMES[driver]) as folder:
            yield folder


@contextlib.contextmanager
def open_launcher() -> Iterator[Launcher]:
    """One for many rigs: its folder need not be theirs."""
    folder = Path(tempfile.mkdtemp(prefix="carrel-launcher-"))
    launcher = Launcher(folder)
    try:
        yield launcher
    finally:
        busy = launcher.shutdown(force=False)
        if busy:
            launcher.shutdown(force=True)
        remove_folder(folder)
        assert busy == 0, f"{busy} things were left held"


@dataclass
class Rig:
    """One driver, any number of trees."""

    name: str
    data: Path
    launcher: Launcher
    trees: list[Tree] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = SubvolumeLayout() if self.name == "btrfs" else None
        self.bases = BaseStore(self.data, layout=layout)
        self.driver = self._make_driver()
        self.spaces = self.data / "spaces"
        self.spaces.mkdir(mode=0o711)

    def _make_driver(self) -> TreeDriver:
        if self.name == "overlay":
            # In this thread, so that nothing runs on when a test forks.
            return OverlayDriver(self.data, self.bases, self.launcher, let_go=os.close)
        if self.name == "btrfs":
            return BtrfsDriver(self.data, self.bases)
        if self.name == "reflink":
            return ReflinkDriver(self.data, self.bases)
        return CopyDriver(self.data, self.bases)

    def base_of(self, project: Path | None) -> Base:
        if project is None:
            return self.bases.build(BaseRequest(Project(ProjectKind.EMPTY)))
        return self.bases.build(BaseRequest(Project(ProjectKind.FOLDER, str(project))))

    def request(self, base: Base) -> TreeRequest:
        tree_id = new_id("sp")
        folder = self.spaces / tree_id
        folder.mkdir(mode=0o711)
        return TreeRequest(tree_id, base, folder, self.owner(len(self.trees)))

    def owner(self, number: int) -> Owner:
        """Another for each tree, where there are several users at all."""
        if os.geteuid() != 0:
            return Owner(os.geteuid(), os.getegid())
        uid = uid_range()[100 + number]
        return Owner(uid, uid)

    def tree(self, base: Base) -> Tree:
        tree = self.driver.create(self.request(base))
        self.trees.append(tree)
        return tree

    def changes(self, tree: Tree) -> list[Change]:
        return list(self.driver.changes(tree))

    def act(self, tree: Tree, action: Callable[[], Result]) -> Result:
        """Runs it in another process, as the tree's owner, where a sandbox would see it:
        the working folder is the tree. The result comes back by pickle."""
        with self.driver.mount(tree) as shown, detach(shown) as detached:
            return in_child(lambda: enter(self.launcher, tree, shown, detached), action)

    def git(self, tree: Tree, *words: str) -> str:
        return self.act(tree, lambda: run_git(*words))

    def unmount(self, tree: Tree) -> None:
        """What a reboot does."""
        if os.geteuid() == 0:
            mounts.detach_all(str(tree.path))
        else:
            self.launcher.release(tree.tree_id)

    def close(self) -> None:
        for tree in self.trees:
            self.driver.drop(tree)


@contextlib.contextmanager
def open_rig(name: str, place: Path, launcher: Launcher) -> Iterator[Rig]:
    data = Path(tempfile.mkdtemp(prefix="carrel-", dir=place))
    try:
        data.chmod(0o711)
        rig = Rig(name, data, launcher)
        try:
            yield rig
        finally:
            rig.close()
    finally:
        remove_data(data)


def remove_data(data: Path) -> None:
    """Bases of btrfs are read-only subvolumes, which go as such."""
    for layer in (data / "bases").glob("*/layer"):
        if is_subvolume(layer):
            SubvolumeLayout().discard(layer)
    remove_folder(data)


def run_git(*words: str) -> str:
    """With nothing of ours but the path, and no other configuration than the tree's."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "LC_ALL": "C",
    }
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": "Tester", f"GIT_{role}_EMAIL": "tester@example.org"}
    done = subprocess.run(
        ["git", *words],
        env=env,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=ACT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"git {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def in_child(prepare: Callable[[], None], action: Callable[[], Result]) -> Result:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            prepare()
            try:
                answer: tuple[object, str] = (action(), "")
            except BaseException:
                answer = (None, traceback.format_exc())
            with open(write, "wb") as pipe:
                pickle.dump(answer, pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    try:
        with open(read, "rb") as pipe:
            content = pipe.read()
    finally:
        os.waitpid(pid, 0)
    assert content, "the child could not enter the tree"
    result, trouble = pickle.loads(content)
    assert not trouble, trouble
    return result  # type: ignore[no-any-return]


@contextlib.contextmanager
def detach(shown: TreeMount) -> Iterator[int | None]:
    """Out here: in another namespace it cannot be had any more."""
    detached = shown.detached() if shown.detached is not None else None
    try:
        yield detached
    finally:
        if detached is not None:
            os.close(detached)


def enter(launcher: Launcher, tree: Tree, shown: TreeMount, detached: int | None) -> None:
    """As a runtime does: the tree in a mount namespace, then away with all privileges."""
    if os.geteuid() == 0:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        namespaces.set_propagation(namespaces.MS_PRIVATE)
        if detached is not None:
            mounts.attach(detached, str(shown.path))
        os.chdir(shown.path)
        os.setgroups([])
        os.setresgid(tree.owner.gid, tree.owner.gid, tree.owner.gid)
        os.setresuid(tree.owner.uid, tree.owner.uid, tree.owner.uid)
    else:
        if shown.namespace is not None:
            _join_held(launcher, shown.path)
        os.chdir(shown.path)
    os.umask(0o022)
    _become_sandbox_owner(tree.owner, shown.read_only)


def _become_sandbox_owner(owner: Owner, read_only: tuple[Path, ...]) -> None:
    """In a user namespace in which the owner has the id that sandboxes give him."""
    namespaces.set_dumpable(True)
    namespaces.unshare(namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{SANDBOX_OWNER.uid} {owner.uid} 1")
    Path("/proc/self/gid_map").write_text(f"{SANDBOX_OWNER.gid} {owner.gid} 1")
    for folder in read_only:
        bound = mounts.clone_mount(str(folder))
        attributes = struct.pack("=QQQQ", 1, 0, 0, 0)
        libc.syscall("mount_setattr", bound, b"", libc.AT_EMPTY_PATH, attributes, 32)
        mounts.attach(bound, str(folder))
    namespaces.drop_capabilities()
    namespaces.set_no_new_privileges()


def _join_held(launcher: Launcher, path: Path) -> None:
    """Enters the one of the launcher's namespaces in which `path` is mounted."""
    reply, _ = launcher.call("hello", {}, [])
    descriptors = Path(f"/proc/{reply['pid']}/fd")
    for entry in descriptors.iterdir():
        try:
            if not os.readlink(entry).startswith("mnt:["):
                continue
            namespace = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        if _joins(namespace, path):
            _join(namespace)
            return
    raise AssertionError(f"no namespace shows {path}")


def _joins(namespace: int, path: Path) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            _join(namespace)
            os._exit(0 if mounts.is_mounted(path) else 1)
        except BaseException:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def _join(namespace: int) -> None:
    namespaces.setns(namespaces.owning_user_namespace(namespace), namespaces.CLONE_NEWUSER)
    namespaces.setns(namespace, namespaces.CLONE_NEWNS)
