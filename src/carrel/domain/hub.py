"""The hub: messages between people, agents, editors and the system, and the log of them.

A message whose type is kept has a place in the log of its space; others are live, and reach
whoever listens at that moment, at most once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

OWNED = "\x1f"
"""Between whose a durable consumer is and its name, in which it cannot be."""
HUB_SOCKET = "hub.sock"
"""In the folder of the hub, of which each sandbox has one of its own."""
SHELL_SOCKET = "shell.sock"
"""Beside it, where a space has an image: the agent's shell asks for commands there."""
SHELLS = "dev"
"""The folder beside it with shells that do."""
MCP_SOCKET = "mcp.sock"
"""Beside it: who connects there speaks MCP, with a server that speaks for whom the folder is."""
BUFFER = "buffer_"
"""Types that begin so are kept until they are acknowledged."""
QUESTION, ANSWER = "buffer_user_question", "buffer_user_answer"
SIGNAL, SEEN = "buffer_taskspace_signal_user", "buffer_user_seen"
MESSAGE = "buffer_space_message"
"""Types that Carrel itself reads too."""
NOT_YOURS = "Only the owner can answer this question."
"""To who answers what Carrel itself asks, and may not."""


def envelope_in(body: bytes) -> dict[str, Any] | None:
    """The envelope of one row of the log; None when it cannot be read. What is wrong with one
    row is not to be the end of whoever reads them all."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class McpSession:
    """One client of the MCP socket, as the process that serves it has to know it."""

    name: str
    """Whose it is. Sessions of one name are counted together."""
    folder: str
    """Where the socket of its hub is."""
    account: str
    """Whose space it is, and whose sessions are counted together, too."""
    inside: bool = False
    """It is a space's, and its process has the space's limits and user:"""
    join: tuple[str, ...] = ()
    """The `cgroup.procs` of its control groups."""
    uid: int | None = None
    gid: int | None = None


class ClientKind(StrEnum):
    APP = "app"
    """May speak to and of all spaces that its caller may see."""
    AGENT = "agent"
    """Speaks from inside one space, and of that one only."""
    IDE = "ide"
    """Speaks to the spaces that it is connected to."""
    CLI = "cli"
    """A person at a terminal; as an app."""
    SYSTEM = "system"
    """Carrel itself: no client may say it is."""


class Sync(StrEnum):
    """When a message counts as kept. Told in every acknowledgement."""

    DISK = "disk"
    """It is on the disk: it outlives a loss of power."""
    PROCESS = "process"
    """It is with the kernel: it outlives every end of the daemon."""


MOST_TOGETHER = 1000
"""Messages that may be said at once."""


class Message(NamedTuple):
    """One to be kept, or several of one type that were said at once. `body` is the whole
    envelope as it goes to clients, one JSON object without a line break, with its `seq` in it;
    of several, each is a line. `seq` is the number of the last of them. `origin` is the number
    of the event that it tells of, for those that Carrel itself wrote; such are repeated after
    a crash."""

    space_id: str
    seq: int
    type: str
    at: float
    body: bytes
    origin: int = 0
    together: int = 1


@dataclass(frozen=True, slots=True)
class Placed:
    """One that is in the log: `place` grows over all spaces, `seq` is dense within one."""

    place: int
    space_id: str
    seq: int
    type: str
    at: float
    body: bytes


@dataclass(frozen=True)
class Span:
    """What is kept of one space: `first` to `last`, without gaps. With nothing kept `first`
    is `last + 1`; `last` never goes back."""

    first: int
    last: int
    bytes: int = 0


@dataclass(frozen=True)
class Replay:
    """Of one space, in order, after `after`; at most so many messages and about so many
    bytes, at least one. What was said at once counts as one where bytes are counted."""

    space_id: str
    after: int
    limit: int = 1000
    max_bytes: int = 1 << 20


@dataclass(frozen=True)
class PlaceQuery:
    """Over all spaces, in the order of places, after `after`; `types` are exact. At most so many
    messages and about so many bytes, at least one: only none at all is the end."""

    after: int = 0
    space_ids: frozenset[str] | None = None
    types: frozenset[str] | None = None
    limit: int = 500
    max_bytes: int = 1 << 20


@dataclass(frozen=True)
class Keep:
    """How much of each space's log is kept, at most; 0 means no bound. What was said at once
    is kept or dropped as a whole."""

    messages: int = 10_000
    bytes: int = 100 << 20
    seconds: float = 86_400.0


@dataclass(frozen=True)
class Dropped:
    """What compaction takes out of one space's log, up to and with `last`. `missed` are the
    durable consumers that have not acknowledged all of it, with where they are."""

    space_id: str
    first: int
    last: int
    missed: Mapping[str, int] = field(default_factory=dict)


class HubLog(Protocol):
    """The kept messages. Nothing here blocks the event loop. All methods raise `StoreError`s."""

    async def append(self, messages: Sequence[Message], *, sync: bool = True) -> Sequence[int]:
        """All or none, in this order; gives the place of every one of them. With `sync` it
        returns when they are on the disk, if the log's policy is that. Appends that wait
        together share one sync.
        A `seq` that is not the next one of its space is a mistake of the caller: ValueError,
        and nothing is written."""
        ...

    async def replay(self, query: Replay) -> tuple[Sequence[bytes], int]:
        """Bodies, and the `seq` of the last one (or `after`)."""
        ...

    async def read(self, query: PlaceQuery) -> Sequence[Placed]: ...

    async def spans(self) -> Mapping[str, Span]:
        """Of every space that the log knows."""
        ...

    async def last_place(self) -> int: ...

    async def first_place(self) -> int:
        """Of the oldest message kept; 0 when there is none."""
        ...

    async def last_origin(self) -> int:
        """The newest event of Carrel's own that is in the log; 0 for none."""
        ...

    async def since(self, space_id: str, at: float) -> int:
        """The `seq` before the first message that is not older than `at`."""
        ...

    async def cursors(self, consumer: str) -> Mapping[str, int]:
        """How far a durable consumer has acknowledged, by space."""
        ...

    async def consumers(self, space_id: str) -> Mapping[str, int]:
        """All durable consumers of a space, and how far they are."""
        ...

    async def acknowledge(self, consumer: str, space_id: str, seq: int) -> int:
        """Moves the cursor on, never back; gives where it is. Makes the consumer known, and forgets
        of those of the same caller who is furthest behind, if they become too many."""
        ...

    async def forget_consumer(self, consumer: str) -> None: ...

    async def overdue(self, keep: Keep, now: float) -> Sequence[Dropped]:
        """What `compact` would take out now."""
        ...

    async def compact(self, keep: Keep, now: float, only: str | None = None) -> Sequence[Dropped]:
        """Takes out what is beyond the bounds, oldest first, in small steps. Never the last
        message of a space, nor what was said with it, so that numbers do not begin anew."""
        ...

    async def forget(self, space_id: str) -> None:
        """Everything of one space; its numbers begin anew if it is ever used again."""
        ...


class LogEnd(Protocol):
    """The way into the log, for those who read it."""

    async def settled(self) -> None:
        """Returns when what was told until now is in the log."""
        ...

    def listening(self, change: int) -> None:
        """So many more (or fewer) want to hear at once what there is to tell."""
        ...


@dataclass(frozen=True)
class Item:
    """Something that waits for a person: a question, or a word to the user."""

    item_id: str
    space_id: str
    seq: int
    at: float
    text: str
    question: bool
    choices: tuple[str, ...] = ()
    priority: str = ""
    """Of a word to the user: low, medium, high, urgent."""
    own: bool = False
    """Carrel itself says it: as a word to the user, that an agent waits."""
    turn: str = ""
    """The turn that waits for a permission, if that is what it is."""
    permission: str = ""
    """… and the agent's own id of it."""
    review: bool = False
    """The question asks for a look at the work of the space."""


def is_kept(type: str) -> bool:
    """Of clients' messages; what Carrel itself tells is kept always."""
    return type.startswith(BUFFER)
