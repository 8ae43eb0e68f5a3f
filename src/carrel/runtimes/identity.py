"""Host users for sandboxes: as root a number of its own for each, else one's own."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from carrel.domain.errors import SandboxUnavailable
from carrel.domain.trees import Owner
from carrel.linux import ids


class Identities:
    """Hands out ids and takes them back; a file per id, so that no two daemons or threads
    ever give the same one."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "uids"

    def take(self, sandbox_id: str) -> Owner:
        """The same sandbox always gets the same id while it holds one."""
        if os.geteuid() != 0:
            return Owner(os.geteuid(), os.getegid())
        available = ids.uid_range()[1:]
        if not available:
            raise SandboxUnavailable(
                "This user namespace has no ids to spare for sandboxes.",
                hint="Map at least 65536 ids into the container.",
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = zlib.crc32(sandbox_id.encode()) % len(available)
        for step in range(len(available)):
            uid = available[(first + step) % len(available)]
            if self._claim(uid, sandbox_id):
                return Owner(uid, uid)
        raise SandboxUnavailable("All ids for sandboxes are taken.", hint="Remove some spaces.")

    def _claim(self, uid: int, sandbox_id: str) -> bool:
        path = self._folder / str(uid)
        try:
            # A symbolic link is made and filled in one step.
            os.symlink(sandbox_id, path)
        except FileExistsError:
            return os.readlink(path) == sandbox_id
        return True

    def find(self, sandbox_id: str) -> Owner | None:
        """It may be any: the first that it tried was perhaps another's then."""
        if os.geteuid() != 0:
            return Owner(os.geteuid(), os.getegid())
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return None
        uid = next((int(name) for name in names if self._holds(sandbox_id, name)), None)
        return None if uid is None else Owner(uid, uid)

    def give_back(self, sandbox_id: str, owner: Owner) -> None:
        name = str(owner.uid)
        if self._holds(sandbox_id, name):
            with contextlib.suppress(OSError):
                os.unlink(self._folder / name)

    def _holds(self, sandbox_id: str, name: str) -> bool:
        try:
            return os.readlink(self._folder / name) == sandbox_id
        except OSError:
            return False
