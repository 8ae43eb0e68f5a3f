"""What the service needs of the other rooms, beside tree drivers, runtimes and the store."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from carrel.domain.checkpoints import PartStates
from carrel.domain.cleanup import Action
from carrel.domain.environments import HomeTools, PackageSettings
from carrel.domain.files import Files
from carrel.domain.projects import BaseRequest, OnProgress, ignore_progress
from carrel.domain.runtimes import Bind, Runtime
from carrel.domain.spaces import Space, Trashed
from carrel.domain.trees import Base, Owner, Review, ReviewQuery, Skipped, Tree, TreeDriver


class Bases(Protocol):
    """Blocking."""

    def build(self, request: BaseRequest, progress: OnProgress = ignore_progress) -> Base: ...

    def get(self, base_id: str) -> Base:
        """Raises `BaseNotFound`."""
        ...

    def use(self, base_id: str) -> Base:
        """As `get`; it counts as used now."""
        ...

    def list(self) -> builtins.list[Base]: ...

    def used_at(self, base: Base) -> float:
        """When it was last built, or found to be the project's state."""
        ...

    def remove(self, base_id: str) -> None:
        """Raises `BaseInUse` when another base or a tree stands on it."""
        ...


class Disk(Protocol):
    """The disk with the data folder, and what is kept free on it. Blocking, quick."""

    def free(self) -> tuple[int, int]:
        """Bytes and files that there is room for, without the reserve. Raises OSError."""
        ...

    def held(self) -> int:
        """The bytes of the reserve."""
        ...

    def is_full(self) -> bool: ...

    def take_back(self) -> None:
        """What the reserve has given up, as far as there is room again."""
        ...


class HomeFiles(Protocol):
    """What the homes of new spaces begin with."""

    def files(self, *, owner: bool) -> Mapping[str, bytes]:
        """By path; of the daemon's user, or of nobody. Blocking, quick."""
        ...


class Toolchains(Protocol):
    """The toolchains in the home of the daemon's user, and what else of the host its spaces may
    be shown. Blocking."""

    def find(self) -> HomeTools:
        """Quick, unless a start file of the login shell has changed. Raises nothing."""
        ...

    def narrowed(
        self, tools: HomeTools, shown: Collection[str], *, just_found: bool = False
    ) -> HomeTools:
        """What was found earlier, with what must not be seen by now of it and of what else is
        shown: real paths. `just_found`: the tools need no second look."""
        ...

    def check(self, path: str) -> Mapping[str, str]:
        """A path that somebody wants shown: the paths inside, and the real path on the host.
        Raises `SpaceInvalid` for one that is missing, or that no space is shown."""
        ...


class Packages(Protocol):
    """The settings for package managers of the daemon's user. Blocking, quick."""

    def settings(self, *, credentials: bool = False) -> PackageSettings:
        """As a new space gets them, with passwords and tokens only on request."""
        ...


class Downloads(Protocol):
    """What spaces of one project have fetched, for the next ones. Blocking."""

    most_bytes: int
    """What it may all take; 0: nothing is shared."""

    def shown(self, key: str) -> Bind:
        """What the sandboxes of a project show of it."""
        ...

    def links(
        self, key: str, homes: Mapping[Path, float] | None = None, base: Base | None = None
    ) -> dict[str, str]:
        """What a new home gets, the places in it and where they lead, with what was fetched in
        these homes, each with the time when something last ran there. What is believed by its name
        only as far as lock files of the base say what it is."""
        ...

    def gather(self, key: str, home: Path) -> None:
        """Takes over what was fetched in a home, as far as it proves itself. Raises nothing."""
        ...

    def tidy(
        self, used: Collection[str], *, everything: bool, dry_run: bool
    ) -> builtins.list[Action]:
        """Removes what is too old or too much, and of the `used` ones only what is too much."""
        ...


class Users(Protocol):
    """Host users for spaces. Blocking, quick."""

    def take(self, sandbox_id: str) -> Owner:
        """The same again for one that has one."""
        ...

    def find(self, sandbox_id: str) -> Owner | None:
        """Whom it has taken, if anybody; nothing is written."""
        ...

    def take_range(self, sandbox_id: str) -> int | None:
        """The first of the ids for the users of its image, the same again for one that has some;
        None where there are none."""
        ...

    def why_no_range(self) -> str:
        """In a sentence, with what to do. Empty: there is one to have."""
        ...

    def give_back(self, sandbox_id: str, owner: Owner) -> None:
        """Its user, and its range."""
        ...


class Contents(Protocol):
    """What is in trees, from outside. Blocking."""

    def files(self, driver: TreeDriver, tree: Tree) -> AbstractContextManager[Files]: ...

    def archive(
        self, driver: TreeDriver, tree: Tree, path: str, taking: Taking, *, zstd: bool = True
    ) -> Iterator[bytes]:
        """A tar of a folder or file, which is compressed with `zstd`. `taking` hears what is in it
        and what is not, by its path from the folder that `path` is in."""
        ...

    def unpack(
        self,
        driver: TreeDriver,
        tree: Tree,
        stream: BinaryIO,
        path: str,
        check: Callable[[int], None],
    ) -> None:
        """`check` is told how many bytes are written next, and may raise."""
        ...


class Edits(Protocol):
    """What is made on the host in trees becomes the spaces' own. Quick, any thread."""

    def watch(self, tree: Tree, *, own_mount: bool) -> None:
        """From now on; idempotent. `own_mount`: its runtime shows it through another mount than
        the one on the host."""
        ...

    def forget(self, tree_id: str) -> None:
        """Idempotent."""
        ...


class Taking(Protocol):
    """Who sends files of a tree tells of each before its bytes are read; folders come before what
    is in them."""

    def sends(self, path: str, status: os.stat_result) -> None: ...

    def skips(self, skipped: Skipped) -> None:
        """It is not sent, or not as it is."""
        ...

    def only_commits(self, oids: Collection[str]) -> None:
        """Of what git has, these commits are sent and nothing else."""
        ...

    def done(self) -> bytes:
        """Everything was sent but for what was skipped: for `Reviews.took`."""
        ...


class Reviews(Protocol):
    """What trees changed, and what of that somebody has taken out. Blocking. Raises what trees
    raise."""

    def review(self, driver: TreeDriver, tree: Tree, query: ReviewQuery) -> Review: ...

    def taking(self, driver: TreeDriver, tree: Tree, path: str, query: ReviewQuery) -> Taking:
        """For who is about to send all that is at and below a path."""
        ...

    def sent(self, tree: Tree, path: str, status: os.stat_result) -> bytes:
        """A file was read to its end, and was this one all the time: for `took`."""
        ...

    def took(self, tree: Tree, sent: bytes) -> None:
        """Who was sent this has all of it."""
        ...

    def forget_taken(self, tree: Tree) -> None:
        """Nobody has anything of it: what was taken last was taken back."""
        ...


class WorkFolders(Protocol):
    """Folders of the host in which a space may work directly. Blocking."""

    def check(self, path: str, taken: Iterable[str] = ()) -> str:
        """The real path. `taken` are folders in which others work already.

        Raises `ProjectInvalid`, `ProjectNotFound`, `ProjectNotAFolder`, `ProjectUnreadable`,
        `ProjectReadOnly`, `ProjectInUse`."""
        ...


class TrashCan(Protocol):
    """What is kept of removed spaces. Blocking; the records are the caller's to write."""

    def keep(
        self, space: Space, tree: Tree, driver: TreeDriver, parts: PartStates | None = None
    ) -> Trashed | None:
        """`parts`: what it has beside its tree and is to be kept. None: nothing was changed.
        `TooLarge` when it would be more than the budget."""
        ...

    def restore(
        self, trashed: Trashed, tree: Tree, driver: TreeDriver, parts: PartStates | None = None
    ) -> None: ...

    def purge(self, trashed: Trashed) -> None:
        """Idempotent."""
        ...

    def lighten(self, entries: Sequence[Trashed]) -> builtins.list[Trashed]:
        """Beyond the budget, systems go before anybody's work: the records as they are without, of
        the oldest."""
        ...

    def drop_system(self, trashed: Trashed) -> None:
        """Idempotent."""
        ...

    def expire(self, entries: Sequence[Trashed], now: float) -> builtins.list[Trashed]:
        """Which are to be purged: too old, or the oldest beyond the budget."""
        ...

    def stray(self, entries: Sequence[Trashed]) -> builtins.list[Path]:
        """What is there and in none of these records, named by its space."""
        ...

    def discard(self, stray: Path) -> None:
        """Idempotent."""
        ...


class Machine(Protocol):
    """Which tree drivers and runtimes there are, and which is best. What was found to work
    is remembered; what did not is tried again."""

    @property
    def drivers(self) -> tuple[TreeDriver, ...]: ...

    @property
    def runtimes(self) -> tuple[Runtime, ...]: ...

    def expect(self) -> None:
        """See `LocalRuntime.expect`; which runtime it will be need not be known yet. Not for
        spaces: these have the time of their tree for it, and many at once would be slowed down."""
        ...

    async def runtime(self, name: str) -> Runtime:
        """By name, or the best for `auto`. `SandboxUnavailable`."""
        ...

    async def driver(self, name: str, runtime: Runtime) -> TreeDriver:
        """By name, or the best that this runtime can use. `TreeUnavailable`."""
        ...
