"""The store: the one place where records are kept, as a narrow contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.domain.access import TokenRecord
from carrel.domain.checkpoints import Checkpoint
from carrel.domain.comments import Comment
from carrel.domain.events import Event, EventQuery, NewEvent
from carrel.domain.instances import Instance
from carrel.domain.landing import Landing
from carrel.domain.queue import QueueEntry
from carrel.domain.requests import Request, RequestDetails, RequestQuery
from carrel.domain.runs import RunRecord
from carrel.domain.spaces import Space, SpacePage, SpaceQuery, SpaceState, Trashed
from carrel.domain.takes import UndoRecord
from carrel.domain.turns import Turn


@dataclass(frozen=True)
class Step:
    """One step of an operation on a space, recorded before it begins and after it ended.
    There is one record for each (space, operation, step): the last time it was done."""

    space_id: str
    operation: str
    name: str
    begun_at: float
    ended_at: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Claim:
    """An idempotency key in use: `digest` is of the request it came with."""

    caller: str
    key: str
    digest: bytes
    space_id: str
    at: float


@dataclass(frozen=True)
class Forget:
    """Removes records: of a space (its steps, claims, runs with turns), one run, a piece of
    trash, of the instances that have ended all but the newest so many, and requests.
    The record of a removed space itself stays, unless it is among `spaces`."""

    steps_of: str = ""
    claims_of: str = ""
    runs_of: str = ""
    trash_of: str = ""
    checkpoints_of: str = ""
    checkpoints: tuple[str, ...] = ()
    run_id: str = ""
    ended_instances_but: int | None = None
    spaces: tuple[str, ...] = ()
    """Removed ones, and all that is kept of them."""
    requests: tuple[str, ...] = ()
    """By key."""
    values: bool = False
    """Also what the store's own files still have of records as they were before: some had keys."""
    bare_requests_but: int | None = None
    """Of each caller's requests of which nothing else is left, all but the newest so many."""
    queue_but: int | None = None
    """Of the queue's entries that have ended, all but the newest so many."""
    details_of: str = ""
    """A caller: of its requests whose outcome was delivered, or of those whose outcome was not, the
    oldest details beyond `details_bytes`."""
    details_bytes: int = 0
    details_delivered: bool = True
    comment_id: str = ""
    turns_of: str = ""
    """Of the turns of a space that have ended, all but the newest so many, and what of these is
    beyond `turns_bytes`."""
    turns_but: int = 0
    turns_bytes: int = 0


Record = (
    Space
    | RunRecord
    | Turn
    | Instance
    | Request
    | RequestDetails
    | NewEvent
    | Step
    | Claim
    | TokenRecord
    | Trashed
    | Landing
    | Comment
    | UndoRecord
    | Checkpoint
    | QueueEntry
    | Forget
)


class Room(Protocol):
    """What is kept free for the time when the disk is full. Blocking, quick, any thread."""

    def ensure(self) -> bool:
        """Gives up what the next write needs, if it is missing. Whether it was."""
        ...

    def give_up(self) -> bool:
        """Another piece, after a write found no room all the same. Whether there was one."""
        ...


class Store(Protocol):
    """Everything a `write` gets is stored together or not at all, in the order given, and
    is there after a crash of this process when it returns. Nothing here blocks the event
    loop. All methods raise `StoreError`s."""

    async def write(self, *records: Record) -> Sequence[Event]:
        """New or replaced, by id. Gives the events with their places in the log."""
        ...

    async def space(self, space_id: str) -> Space | None: ...

    async def spaces(self, query: SpaceQuery) -> SpacePage: ...

    async def find(
        self, word: str, realm: str = "", among: SpaceQuery | None = None
    ) -> Sequence[Space]:
        """By id, exact name, or prefix of an id, in this order of preference; at most a few.
        Of those with the name the one in `realm`, if there is one. Names and prefixes only of
        spaces with the labels and ids of `among`. Removed ones only by their whole id."""
        ...

    async def run(self, run_id: str) -> RunRecord | None: ...

    async def runs(
        self, space_id: str = "", *, live: bool = False, limit: int = 100
    ) -> Sequence[RunRecord]:
        """Newest first, as far as a list may be long; with `live` all that have not ended."""
        ...

    async def turn(self, run_id: str) -> Turn | None: ...

    async def turns(self, space_id: str, *, limit: int = 100) -> Sequence[Turn]:
        """Newest first, as far as a list may be long."""
        ...

    async def usages(self, space_id: str) -> Sequence[Turn]:
        """All turns of a space, without what was said in them."""
        ...

    async def live_turns(self) -> Sequence[Turn]:
        """Those that have not ended, of all spaces; oldest first."""
        ...

    async def instance(self, instance_id: str) -> Instance | None: ...

    async def instances(self, *, live: bool, limit: int = 100) -> Sequence[Instance]:
        """Newest first; those that have not ended, or those that have."""
        ...

    async def request(self, key: str) -> Request | None: ...

    async def request_of(self, caller: str, request_id: str) -> Request | None: ...

    async def requests(self, query: RequestQuery) -> Sequence[Request]: ...

    async def request_details(self, key: str) -> RequestDetails | None: ...

    async def last_version(self, caller: str, series: str) -> int:
        """Of the requests of a series the highest version; 0 when there is none."""
        ...

    async def events(self, query: EventQuery) -> Sequence[Event]: ...

    async def last_seq(self) -> int:
        """The number of the newest event; 0 when there is none."""
        ...

    def on_events(self, callback: Callable[[Sequence[Event]], None]) -> None:
        """Called on the event loop after each write that had events, in their order."""
        ...

    async def steps(self, space_id: str) -> Sequence[Step]: ...

    async def claim(self, caller: str, key: str) -> Claim | None: ...

    async def tokens(self, digest: bytes | None = None) -> Sequence[TokenRecord]: ...

    async def landings(self, *, limit: int = 100) -> Sequence[Landing]:
        """The newest first."""
        ...

    async def comments(self, space_id: str) -> Sequence[Comment]:
        """Oldest first."""
        ...

    async def undo_records(self, *, limit: int = 100) -> Sequence[UndoRecord]:
        """The newest first."""
        ...

    async def checkpoints(self, space_id: str = "") -> Sequence[Checkpoint]:
        """The newest first; without a space those whose rewind has not ended."""
        ...

    async def queue(self, *, live: bool, limit: int) -> Sequence[QueueEntry]:
        """The newest first; those that wait or land, or those that have ended."""
        ...

    async def trash(self) -> Sequence[Trashed]:
        """Oldest first."""
        ...

    async def count(self) -> dict[SpaceState, int]:
        """How many spaces are in each state, for the metrics."""
        ...
