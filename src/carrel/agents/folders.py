"""The agent's folders in its space: its own state, and the context that it may read.

The agent may make anything of its own folder, links to elsewhere too: files are put there by
descriptors, one path component after the other, and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from carrel.agents import programs
from carrel.domain.agents import ContextFile, Frontends, Prepared, SetupRequest
from carrel.domain.errors import PathInvalid, PathNotFound, ResolveFailed, TooLarge
from carrel.domain.hub import HUB_SOCKET
from carrel.domain.runtimes import Bind
from carrel.domain.trees import Owner
from carrel.domain.turns import AgentSetup

STATE, CONTEXT = "/agent/state", "/agent/context"
WORKSPACE, HUB = "/workspace", "/run/carrel"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Secrets = Callable[[tuple[str, ...]], Mapping[str, str]]
"""Gives those of the named credentials that there are."""
Remove = Callable[[int, bytes], None]
"""Removes one entry of an open folder, with all that is in it."""


class SpaceAgentFolders:
    """Implements `carrel.domain.agents.AgentFolders`."""

    def __init__(
        self,
        frontends: Frontends,
        secrets_of: Secrets,
        remove: Remove,
        expect_mcp: Callable[[], None],
    ) -> None:
        self._frontends = frontends
        self._expect_mcp = expect_mcp
        self._secrets_of = secrets_of
        self._remove = remove

    def make(self, folder: Path, owner: Owner) -> None:
        _make(folder, owner)

    def binds(self, folder: Path, frontend: str) -> tuple[Bind, ...]:
        state, context = _folders(folder)
        # The space's MCP server is ours, whatever the agent is.
        paths = dict.fromkeys((*self._programs(frontend), *programs.folders()))
        shown = [Bind(Path(path), path) for path in paths]
        return (Bind(state, STATE, writable=True), Bind(context, CONTEXT), *shown)

    def documents(self, folder: Path) -> Bind:
        return Bind(_folders(folder)[1], CONTEXT)

    def _programs(self, frontend: str) -> tuple[str, ...]:
        """What the frontend's programs need; nothing when it is gone or broken: the space can still
        be looked at and removed, and its next turn says what is wrong."""
        try:
            return self._frontends.get(frontend).binds()
        except Exception:
            return ()

    def setup(self, place: SetupRequest) -> AgentSetup:
        # It is there when the agent has loaded itself.
        self._expect_mcp()
        state, context = _make(place.folder, place.owner)
        inside = place.own_paths
        hub = f"{HUB}/{HUB_SOCKET}" if inside else str(place.folder / "hub" / HUB_SOCKET)
        return AgentSetup(
            workspace=WORKSPACE if inside else str(place.tree),
            state=STATE if inside else str(state),
            context=_shown(context, inside),
            confined=place.confined,
            mcp=programs.python("carrel.cli.main", "mcp"),
            mcp_env={"CARREL_HUB": hub},
            credentials=self._secrets_of(place.frontend.credentials),
        )

    def put(self, place: SetupRequest, prepared: Prepared) -> None:
        try:
            state, _ = _make(place.folder, place.owner)
            root = os.open(state, _FOLDER)
            try:
                for path, kept in prepared.keeps.items():
                    self._clear(root, path, frozenset(map(os.fsencode, kept)))
                for path, data in {**prepared.files, **prepared.secrets}.items():
                    _put(root, path, data, place.owner)
            finally:
                os.close(root)
        except OSError as error:
            # What runs in the space may have closed it.
            raise ResolveFailed(
                f"The agent's own folder cannot be written: {error}.",
                hint="In the space: chmod -R u+rwX /agent/state",
            ) from error

    def has(self, folder: Path, path: str) -> bool:
        try:
            with _above(folder, path) as (here, name):
                return stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def remove(self, folder: Path, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(OSError), _above(folder, path) as (here, name):
                self._remove(here, os.fsencode(name))

    def _clear(self, root: int, path: str, kept: frozenset[bytes]) -> None:
        try:
            here = _entered(root, path)
        except FileNotFoundError:
            return
        try:
            for name in map(os.fsencode, os.listdir(here)):
                if name not in kept:
                    self._remove(here, name)
        finally:
            os.close(here)


def put_files(state: str, files: Mapping[str, bytes]) -> None:
    """Puts files into a folder that is an agent's, of which it may have made anything; they belong
    to whom the folder does. Raises `ResolveFailed`."""
    try:
        os.makedirs(state, mode=0o700, exist_ok=True)
        root = os.open(state, _FOLDER)
        try:
            found = os.fstat(root)
            for path, data in files.items():
                _put(root, path, data, Owner(found.st_uid, found.st_gid))
        finally:
            os.close(root)
    except OSError as error:
        raise ResolveFailed(
            f"The agent's state in {state} cannot be written: {error.strerror}.",
            hint="Name a folder of your own for it, which is no link.",
        ) from error


@contextlib.contextmanager
def _above(folder: Path, path: str) -> Iterator[tuple[int, str]]:
    """The open folder of a file of the state, and the file's name. Raises `OSError`."""
    above, _, name = path.rpartition("/")
    root = os.open(_folders(folder)[0], _FOLDER)
    try:
        here = _entered(root, above)
    finally:
        os.close(root)
    try:
        yield here, name
    finally:
        os.close(here)


def _entered(root: int, path: str) -> int:
    """A folder below an open one. Links are not followed."""
    here = os.dup(root)
    try:
        for part in path.split("/"):
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
    except BaseException:
        os.close(here)
        raise
    return here


def _shown(context: Path, inside: bool) -> str:
    """The context as the agent sees it. Empty when there is nothing to read in it."""
    if not any(context.iterdir()):
        return ""
    return CONTEXT if inside else str(context)


def _folders(folder: Path) -> tuple[Path, Path]:
    return folder / "agent" / "state", folder / "agent" / "context"


def _make(folder: Path, owner: Owner) -> tuple[Path, Path]:
    """Idempotent. The state is the agent's, all else is ours."""
    state, context = _folders(folder)
    if state.is_dir():
        return state, context
    state.parent.mkdir(mode=0o711, exist_ok=True)
    context.mkdir(mode=0o755, exist_ok=True)
    state.mkdir(mode=0o700, exist_ok=True)
    _give(os.open(state, _FOLDER), owner)
    return state, context


def _put(root: int, path: str, data: bytes, owner: Owner) -> None:
    """Puts a file at that path below the folder, and makes the folders on the way."""
    *above, name = path.split("/")
    here = os.dup(root)
    try:
        for part in above:
            below = _enter(here, part, owner)
            os.close(here)
            here = below
        # A skill's script is run by its name.
        _write(here, name, data, 0o700 if data.startswith(b"#!") else 0o600, owner)
    finally:
        os.close(here)


def _write(folder: int, name: str, data: bytes, mode: int, owner: Owner | None = None) -> None:
    """Writes the file whole or not at all."""
    draft = f".{secrets.token_hex(8)}"
    descriptor = os.open(draft, _NEW, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            if owner is not None and os.geteuid() == 0:
                os.fchown(descriptor, owner.uid, owner.gid)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(draft, dir_fd=folder)
        raise


def _enter(above: int, name: str, owner: Owner) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=above)
    made = os.open(name, _FOLDER, dir_fd=above)
    _give(os.dup(made), owner)
    return made


def _give(descriptor: int, owner: Owner) -> None:
    """Gives it to the owner, and closes the descriptor."""
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.uid, owner.gid)
    finally:
        os.close(descriptor)


# The context: files that agents are given to read, in a folder that their sandbox shows read-only

MAX_BYTES = 16 << 20
"""Of one file: a picture or a long document. What is larger belongs into the tree."""
MAX_FILES = 1000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Context:
    """Implements `carrel.domain.agents.ContextStore`. Where nothing confines the agent it may
    put anything there, so nothing is followed."""

    def list(self, folder: Path) -> Sequence[ContextFile]:
        try:
            place = _open(folder)
        except FileNotFoundError:
            return []
        try:
            return sorted(_files(place), key=lambda file: file.name)
        finally:
            os.close(place)

    def read(self, folder: Path, name: str) -> bytes:
        _check(name)
        with _place(folder, name) as place:
            descriptor = os.open(name, _READ, dir_fd=place)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise _missing(name)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(MAX_BYTES)

    def put(self, folder: Path, name: str, data: bytes) -> None:
        """Whole or not at all."""
        _check(name)
        if len(data) > MAX_BYTES:
            raise TooLarge(
                f"A context file has at most {MAX_BYTES} bytes.",
                hint="Copy it into the tree instead: carrel cp FILE SPACE:PATH",
            )
        with _place(folder, name) as place:
            if len(_files(place)) >= MAX_FILES:
                raise TooLarge(
                    f"There are {MAX_FILES} context files already.",
                    hint="Remove some: carrel context rm SPACE NAME",
                )
            _write(place, name, data, 0o644)

    def remove(self, folder: Path, name: str) -> None:
        _check(name)
        with _place(folder, name) as place:
            os.unlink(name, dir_fd=place)


@contextlib.contextmanager
def _place(folder: Path, name: str) -> Iterator[int]:
    place = -1
    try:
        place = _open(folder)
        yield place
    except (FileNotFoundError, IsADirectoryError):
        raise _missing(name) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _missing(name) from None
        raise
    finally:
        if place >= 0:
            os.close(place)


def _open(folder: Path) -> int:
    return os.open(folder / "agent" / "context", _FOLDER)


def _files(place: int) -> list[ContextFile]:
    """All files but drafts."""
    found: list[ContextFile] = []
    with os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                found.append(ContextFile(entry.name, entry.stat(follow_symlinks=False).st_size))
    return found


def _check(name: str) -> None:
    fits = 0 < len(name.encode("utf-8", "surrogateescape")) <= 255
    if not fits or name.startswith(".") or not name.isprintable() or "/" in name:
        raise PathInvalid(
            f"{name[:80]!r} cannot be the name of a context file.",
            hint="Use a plain file name, without a folder, that does not begin with a dot.",
        )


def _missing(name: str) -> PathNotFound:
    return PathNotFound(
        f"There is no context file {name[:80]!r}.", hint="`carrel context ls SPACE` lists them."
    )
