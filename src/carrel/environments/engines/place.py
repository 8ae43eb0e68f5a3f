"""The folder of the engines below the data folder: a store for each, and a folder for each work."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from carrel.linux import cgroupfs

WAIT_S = 0.1
"""How often a lock is tried; builds take seconds."""


class EnginePlace:
    """Several may work in it at once, also of several processes; who tidies up is alone in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = "carrel-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]

    def store(self, name: str) -> Path:
        store = self.folder / name
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        return store

    @contextlib.contextmanager
    def working(self) -> Iterator[Path]:
        """A folder that is gone afterwards, with the control groups of `group`."""
        self.store("work")
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            work = self.folder / "work" / uuid.uuid4().hex
            work.mkdir(mode=0o700)
            try:
                yield work
            finally:
                self._forget(work)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def one_by_one(self, check: Callable[[], None]) -> Iterator[None]:
        """For work that gives its images names which are always the same. `check` is asked while
        it waits."""
        self.store("work")
        path = self.folder / "names"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    check()
                    time.sleep(WAIT_S)
            yield
        finally:
            os.close(descriptor)

    def group(self, work: Path) -> str:
        """The control group of what runs for this work."""
        return f"{self._mark}-{work.name}"

    def alone(self, tidy: Callable[[], None]) -> bool:
        """Calls `tidy`, if nobody works here now. It may use `working`."""
        self.store("work")
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in (self.folder / "work").iterdir():
                self._forget(left)
            # No longer alone, but whoever comes now only waits for us, or finds a store in order.
            tidy()
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    @property
    def leftovers(self) -> bool:
        """Whether something that worked here was killed, or works."""
        try:
            return any((self.folder / "work").iterdir())
        except FileNotFoundError:
            return False

    def _open(self) -> int:
        return os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _forget(self, work: Path) -> None:
        if os.geteuid() == 0:
            for tree in cgroupfs.hierarchies():
                if tree.writable:
                    with contextlib.suppress(OSError):
                        cgroupfs.kill(tree.mount / self.group(work))
                        cgroupfs.remove(tree.mount / self.group(work))
        remove_folder(work)


def remove_folder(folder: Path) -> None:
    """With folders in it that an engine has closed, even to their owner. What stays is removed the
    next time."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for place, folders, _ in os.walk(folder):
            for name in (".", *folders):
                # A link's target is not ours.
                inner = os.path.join(place, name)
                if not os.path.islink(inner):
                    with contextlib.suppress(OSError):
                        os.chmod(inner, 0o700)
        shutil.rmtree(folder, ignore_errors=True)
