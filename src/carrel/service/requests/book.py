"""Every request that something is still to be done for, as it is now, and the writing of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from carrel.domain.access import LOCAL, Caller
from carrel.domain.collaborators import WorkFolders
from carrel.domain.events import EventType, NewEvent
from carrel.domain.hub import HubLog
from carrel.domain.requests import (
    ENDED,
    Collecting,
    Differing,
    Request,
    RequestDetails,
    RequestState,
    Result,
    Webhook,
)
from carrel.domain.runs import Recordings
from carrel.domain.store import Record, Store
from carrel.service.files import SpaceContext, SpaceFiles
from carrel.service.inbox import Inbox
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces
from carrel.service.runs import Runs
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces
from carrel.service.tokens import Tokens
from carrel.service.turns import Turns


@dataclasses.dataclass
class LiveRequest:
    """One that is being worked on, waited for or kept. `followers` are the connections of its
    clients."""

    request: Request
    by: str = ""
    """Whose turn it is in the line: the owner, or the connection."""
    task: asyncio.Task[None] | None = None
    followers: int = 0
    followed: bool = False
    """By anybody, ever since this daemon knows it."""
    lonely: asyncio.TimerHandle | None = None
    making: str = ""
    """What is being done for its workspace."""
    files: list[str] = dataclasses.field(default_factory=list)
    """Those that were seen in its workspace while the agent works, in their order; not more than
    are told of."""
    cancelling: bool = False
    """It is to end by that, whatever becomes of its agent meanwhile."""
    due: bool = False
    """Something is to be done for one that has ended."""
    writing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def account(self) -> str:
        """Whose share its work takes, as its space has it."""
        return self.request.realm or LOCAL.name

    @property
    def share(self) -> str:
        """Whose place it takes, as `Caller.account`: tokens of one label have theirs together."""
        return self.request.realm or self.request.caller


class RequestBook:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live: dict[str, LiveRequest] = {}
        self._of_space: dict[str, str] = {}
        self._bells: dict[str, set[asyncio.Event]] = {}

    def clock(self) -> float:
        return self._journal.clock()

    def know(self, live: LiveRequest) -> None:
        self._live[live.key] = live
        if live.request.space_id:
            self._of_space[live.request.space_id] = live.key

    def forget(self, live: LiveRequest) -> None:
        """Nothing is to be done for it any more, by the time that it would be given up either."""
        if live.lonely is not None:
            live.lonely.cancel()
            live.lonely = None
        self._live.pop(live.key, None)
        self._of_space.pop(live.request.space_id, None)

    def get(self, key: str) -> LiveRequest | None:
        return self._live.get(key)

    def in_space(self, space_id: str) -> LiveRequest | None:
        return self._live.get(self._of_space.get(space_id, ""))

    def all(self) -> list[LiveRequest]:
        return list(self._live.values())

    # Writing

    async def change(
        self,
        live: LiveRequest,
        *records: Record,
        still: Callable[[Request], bool] = lambda request: True,
        **changes: Any,
    ) -> bool:
        """Whether it was still to be changed: what has ended does not begin again. `still` is asked
        when all changes before this one are made. Returns when it is written down."""
        async with live.writing:
            before = live.request
            if not still(before):
                return False
            if before.ended and changes.get("state", before.state) is not before.state:
                return False
            new = dataclasses.replace(before, updated_at=self.clock(), **changes)
            await self._journal.write(*records, new)
            live.request = new
        if new.space_id != before.space_id:
            self._of_space.pop(before.space_id, None)
            self._of_space[new.space_id] = live.key
        self.ring(live.key)
        return True

    async def move(
        self,
        live: LiveRequest,
        state: RequestState,
        message: str,
        *records: Record,
        **changes: Any,
    ) -> bool:
        """To another state, which its followers hear of."""
        space_id = changes.get("space_id", live.request.space_id)
        event = self.event(live.request, state, message, space_id)
        return await self.change(live, event, *records, state=state, **changes)

    def event(self, request: Request, state: RequestState, message: str, space_id: str) -> NewEvent:
        return self._journal.event(
            EventType.REQUEST_STATE,
            space_id,
            request_id=request.request_id,
            key=request.key,
            to=str(state),
            **({} if state in ENDED else {"progress": PROGRESS[state], "message": message}),
        )

    # Bells

    def ring(self, key: str) -> None:
        """Something about it is new."""
        for bell in self._bells.get(key, ()):
            bell.set()

    def ring_spaces(self, spaces: set[str]) -> None:
        for key in self._of_space.keys() & spaces:
            self.ring(self._of_space[key])

    def ring_all(self) -> None:
        for bells in self._bells.values():
            for bell in bells:
                bell.set()

    def listen(self, key: str) -> tuple[asyncio.Event, Callable[[], None]]:
        """A bell, and how it is taken off again."""
        bell = asyncio.Event()
        self._bells.setdefault(key, set()).add(bell)

        def leave() -> None:
            bells = self._bells.get(key)
            if bells is not None:
                bells.discard(bell)
                if not bells:
                    del self._bells[key]

        return bell, leave


# What is large is kept beside the record, which lists and the daemon's start read by the hundreds.

Changes = dict[str, object]
SHOWN_CHARACTERS = 500
"""Of instructions, in the record of a request that has ended."""


def parted(request: Request, outcome: Changes) -> tuple[RequestDetails, Changes]:
    """At its end: what goes beside the record, and what of it changes. Nobody needs the values of
    variables and the texts for the agent any more; a retry is known by its digest."""
    asked, result = request.asked, outcome.get("result")
    assert result is None or isinstance(result, Result)
    details = RequestDetails(request.key, request.caller, asked.instructions, result)
    short = dataclasses.replace(
        asked,
        instructions=asked.instructions[:SHOWN_CHARACTERS],
        env=dict.fromkeys(asked.env, ""),
        architecture="",
        context="",
        context_files={},
    )
    changes = {**outcome, "asked": short, "checked": None}
    if result is not None:
        changes["result"] = Result(result.complete, total=result.total, usage=result.usage)
    return details, changes


async def with_details(store: Store, request: Request) -> Request:
    """With what its record leaves out; as it is where that is not kept any more."""
    details = await store.request_details(request.key) if request.ended else None
    if details is None:
        return request
    asked = dataclasses.replace(request.asked, instructions=details.instructions)
    return dataclasses.replace(request, asked=asked, result=details.result)


PROGRESS = {
    RequestState.QUEUED: 0.0,
    RequestState.MAKING: 0.02,
    RequestState.WORKING: 0.1,
    RequestState.CHECKING: 0.9,
    RequestState.COLLECTING: 0.95,
}
"""When it gets there. What the agent does is between working and checking."""


def path_of(parts: RequestParts, request: Request) -> str:
    """Where its workspace is, or was, on this machine."""
    if not request.space_id:
        return ""
    if request.asked.workspace_path:
        space = parts.journal.get(request.space_id)
        return space.place if space is not None else request.asked.workspace_path
    return str(parts.open_spaces.folder(request.space_id) / "project")


def told_path(parts: RequestParts, request: Request) -> str:
    """… as its client may know it: where things are is for the owner."""
    return "" if request.guest else path_of(parts, request)


# What requests are made of.

OnLive = Callable[[str, str, bytes], None]
"""A space, a type and a payload that is not kept."""


class NotSent(Exception):
    """What could not be sent, and whether another try is of any use."""

    def __init__(self, message: str, *, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good


class WebhookSender(Protocol):
    async def send(
        self, account: str, webhook: Webhook, body: Callable[[], Awaitable[bytes]]
    ) -> None:
        """`body` is made when the account's turn has come. Raises `NotSent`."""
        ...


class SpaceLog(Protocol):
    """The log of spaces, for those who follow one."""

    @property
    def log(self) -> HubLog: ...

    def last(self, space_id: str) -> int: ...

    async def settled(self) -> None: ...

    def listening(self, change: int) -> None: ...

    def on_kept(self, then: Callable[[set[str]], None]) -> None:
        """Told the spaces of which there is something new."""
        ...

    def on_live(self, then: OnLive) -> None:
        """Told at once, and kept nowhere."""
        ...

    async def forget(self, space_id: str) -> None:
        """Everything of a space that has gone."""
        ...


@dataclass(frozen=True)
class RequestParts:
    store: Store
    journal: Journal
    spaces: Spaces
    turns: Turns
    runs: Runs
    open_spaces: OpenSpaces
    files: SpaceFiles
    context: SpaceContext
    inbox: Inbox
    shared: Shared
    tokens: Tokens
    recordings: Recordings
    log: SpaceLog
    collecting: Collecting
    differing: Differing
    folders: WorkFolders
    sender: WebhookSender
    archives: Path
    """The folder of the archives of old versions."""
    rules: RequestRules
    usual_agent: Callable[[Caller, Mapping[str, str]], str]
    """The frontend for who names none. Raises what is in the way of one. Blocking, quick."""


# How much requests may take, and how long they stay, where nobody says otherwise.


@dataclass(frozen=True)
class RequestRules:
    at_once: int = 4
    waiting: int = 1000
    """Beyond these, a request is refused."""
    frontend: str = ""
    """Empty: one that is installed and has a key."""
    tier: str = "default"
    timeout_s: float = 1800.0
    given_up_s: float = 600.0
    """So long without its client a request goes on, and its result waits."""
    remembered: int = 1000
    """Requests that have ended, and of which nothing but the record is left."""
    webhook_hosts: tuple[str, ...] = ()
    """Where callers who are no administrators may have results sent."""
    webhook_tries: int = 8
    most_files: int = 10_000
    """In one answer."""
    content_bytes: int = 4 << 20
    """Of files, in one answer."""
