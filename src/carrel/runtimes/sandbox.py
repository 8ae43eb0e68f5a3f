"""What every sandbox is made of: its folders, the environment of its commands, its host user.

On the host its folders are nobody's but the daemon's user's: the folder of a sandbox is 0700, and
so is the one in which all of them are. As root that keeps out the sandbox's own user too, which
needs no way in: it gets its folders as mounts. Only a runtime that shows them at their own paths
lets it pass.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

from carrel.domain.errors import SandboxUnavailable
from carrel.domain.hub import HUB_SOCKET, SHELL_SOCKET, SHELLS
from carrel.domain.runtimes import Command, Output, SandboxSpec
from carrel.domain.trees import Owner
from carrel.linux import ids, subid_trial

WORKSPACE = "/workspace"
HOME = "/home/user"
HUB = "/run/carrel"
SHELL_NAMES = ("bash", "sh", "zsh", "git")
"""What an agent starts by these names runs in the image. A git beside the agent would do what files
of the tree tell it to, which the image may have written."""
INSIDE_ID = 1000
"""Every sandbox with a user namespace shows its own user as this one."""

TOOLCHAIN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
"""Folders of the host that every sandbox may read and execute."""

CLOSED, PASSABLE = 0o700, 0o710
"""Modes of a sandbox's folder."""


def is_below(path: str, folder: str) -> bool:
    """Also the folder itself."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


class SandboxFolders:
    """Below a space's folder."""

    def __init__(self, space: Path) -> None:
        self.space = space

    @property
    def home(self) -> Path:
        return self.space / "home"

    @property
    def tmp(self) -> Path:
        return self.space / "tmp"

    @property
    def hub(self) -> Path:
        """Shown to the sandbox, which may use what is in it, and put nothing there."""
        return self.space / "hub"

    @property
    def shared_memory(self) -> Path:
        """Its /dev/shm, where it has none of its own by namespaces."""
        return self.space / "shm"

    @property
    def runs(self) -> Path:
        return self.space / "runs"

    def run(self, run_id: str) -> Path:
        return self.space.joinpath("runs", run_id)

    def make(
        self,
        owner: Owner,
        home_files: Mapping[str, bytes] | None = None,
        home_links: Mapping[str, str] | None = None,
    ) -> None:
        """Idempotent. Home and /tmp are the sandbox's user's, the runs are ours. Only a new home
        is given its files: nobody has been in it yet."""
        self.runs.mkdir(mode=0o700, exist_ok=True)
        self.hub.mkdir(mode=0o755, exist_ok=True)
        _make_own(self.tmp, 0o1777, owner)
        if self.home.exists():
            return
        filled = self.space / "home.new"
        if filled.exists():
            shutil.rmtree(filled, ignore_errors=True)
        _make_own(filled, 0o700, owner)
        made: set[str] = set()
        for name, content in (home_files or {}).items():
            _make_above(filled, name, owner, made)
            _write_own(filled / name, content, owner)
        for name, target in (home_links or {}).items():
            _make_above(filled, name, owner, made)
            os.symlink(target, filled / name)
        filled.rename(self.home)

    def put_carrel(self, command: tuple[str, ...]) -> None:
        """Puts a program of that name beside the hub's socket, where commands look for programs
        first; an upgrade puts another. Not as a link to another space's: where modes are not
        confined (landlock), one space could take it from all."""
        if not command:
            return
        script = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'.encode()
        _put_script(self.hub / "carrel", script)

    def put_shells(self, command: tuple[str, ...]) -> None:
        """Puts programs there that run in the space's image: for an agent, which has them first on
        its PATH. `command` takes the socket, the program's name and its arguments."""
        if not command:
            return
        folder = self.hub / SHELLS
        folder.mkdir(mode=0o755, exist_ok=True)
        for name in SHELL_NAMES:
            words = shlex.join((*command, f"{HUB}/{SHELL_SOCKET}", name))
            _put_script(folder / name, f'#!/bin/sh\nexec {words} "$@"\n'.encode())

    def make_shared_memory(self, owner: Owner) -> None:
        """Idempotent."""
        _make_own(self.shared_memory, 0o1777, owner)

    def let_pass(self, owner: Owner) -> None:
        """Idempotent, and nothing where the sandbox runs as our own user. Its group, in which
        nobody else is, may pass through its folder, and everybody through the one above, which
        tells nothing of what is in it."""
        if os.geteuid() != 0:
            return
        found = self.space.stat()
        if (found.st_gid, found.st_mode & 0o777) != (owner.gid, PASSABLE):
            os.chown(self.space, -1, owner.gid)
            self.space.chmod(PASSABLE)
        above = self.space.parent
        if not above.stat().st_mode & 0o001:
            above.chmod(0o711)


def _put_script(path: Path, script: bytes) -> None:
    if path.exists() and path.read_bytes() == script:
        return
    draft = path.with_suffix(".new")
    draft.write_bytes(script)
    draft.chmod(0o755)
    draft.rename(path)


def _make_own(folder: Path, mode: int, owner: Owner) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    os.chmod(folder, mode)
    if os.geteuid() == 0:
        os.chown(folder, owner.uid, owner.gid)


def _make_above(top: Path, name: str, owner: Owner, made: set[str]) -> None:
    """The folders in which something is to be; `made` are those that are there."""
    above = name.rpartition("/")[0]
    if above and above not in made:
        _make_above(top, above, owner, made)
        _make_own(top / above, 0o755, owner)
        made.add(above)


def _write_own(path: Path, content: bytes, owner: Owner) -> None:
    """Opened once: what is opened again to be filled goes to the disk when it is closed."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, content)
        if os.geteuid() == 0:
            os.fchown(file, owner.uid, owner.gid)
    finally:
        os.close(file)


def close_folders(above: Path) -> None:
    """Makes the folder of all sandboxes, and closes it and those in it, which an earlier version
    may have left open. Those whose sandbox's user passes through stay passable."""
    above.mkdir(mode=CLOSED, exist_ok=True)
    passed = False
    with os.scandir(above) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                mode = entry.stat(follow_symlinks=False).st_mode & 0o777
                if os.geteuid() == 0 and mode == PASSABLE:
                    passed = True
                elif mode & 0o077 and entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, CLOSED)
    if not passed:
        above.chmod(CLOSED)


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

FILTERED = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "core.sharedRepository",
    "GIT_CONFIG_VALUE_0": "umask",
}
"""Below a filter that refuses set-id bits: git gives one to each folder of a repository that a
group shares, and would write nothing there."""

GUARDED = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
"""Beside an agent whose tree an image writes: a git that is not first on its PATH takes no folder
for its own there, and so follows none of the settings, hooks and filters of a repository."""


def environment(
    spec: SandboxSpec, command: Command, home: str, tmp: str, hub: str, *, filtered: bool
) -> dict[str, str]:
    """All that a command finds, built up from nothing; what it brings itself wins. `hub` is the
    folder with the hub's socket."""
    programs = (hub,) if spec.carrel else ()
    terminal = {"TERM": "xterm-256color"} if command.output is Output.PTY else {}
    return {
        "PATH": ":".join((*programs, *command.path_first, *spec.path_first, PATH, *spec.path_last)),
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": tmp,
        "CARREL_SPACE": spec.sandbox_id,
        "CARREL_HUB": f"{hub}/{HUB_SOCKET}",
        **(FILTERED if filtered else {}),
        **(GUARDED if spec.shells else {}),
        **terminal,
        **spec.env,
        **command.env,
    }


# Host users


class Identities:
    """Hands out ids and takes them back; a file per id, so that no two daemons or threads
    ever give the same one."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "uids"
        self._ranges = data / "ranges"

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
            if _claim(self._folder / str(uid), sandbox_id):
                return Owner(uid, uid)
        raise SandboxUnavailable("All ids for sandboxes are taken.", hint="Remove some spaces.")

    def take_range(self, sandbox_id: str) -> int | None:
        """The first of the ids that are the sandbox's own beside its user, for the users of an
        image; None where the machine has none to give. The same one while it holds one."""
        if os.geteuid() != 0:
            # There is one, which all spaces of the user share: images are kept in it.
            own = subid_trial.usable()
            return None if own is None else own.uid
        available = ids.image_ranges()
        if not available:
            return None
        self._ranges.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = zlib.crc32(sandbox_id.encode()) % len(available)
        for step in range(len(available)):
            first = available[(place + step) % len(available)]
            if _claim(self._ranges / str(first), sandbox_id):
                return first
        raise SandboxUnavailable("All ids for images are taken.", hint="Remove some spaces.")

    def why_no_range(self) -> str:
        if os.geteuid() != 0:
            return subid_trial.why_not()
        return "" if ids.image_ranges() else "Map at least 2^31 ids into the container."

    def find(self, sandbox_id: str) -> Owner | None:
        """It may be any: the first that it tried was perhaps another's then."""
        if os.geteuid() != 0:
            return Owner(os.geteuid(), os.getegid())
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return None
        uid = next((int(name) for name in names if _holds(self._folder / name, sandbox_id)), None)
        return None if uid is None else Owner(uid, uid)

    def give_back(self, sandbox_id: str, owner: Owner) -> None:
        """Its range too."""
        claims = [self._folder / str(owner.uid)]
        with contextlib.suppress(OSError):
            claims += self._ranges.iterdir()
        for claim in claims:
            if _holds(claim, sandbox_id):
                with contextlib.suppress(OSError):
                    os.unlink(claim)


def _claim(path: Path, sandbox_id: str) -> bool:
    try:
        # A symbolic link is made and filled in one step.
        os.symlink(sandbox_id, path)
    except FileExistsError:
        return os.readlink(path) == sandbox_id
    return True


def _holds(path: Path, sandbox_id: str) -> bool:
    try:
        return os.readlink(path) == sandbox_id
    except OSError:
        return False
