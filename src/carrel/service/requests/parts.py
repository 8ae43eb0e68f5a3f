"""What requests are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carrel.domain.collaborators import WorkFolders
from carrel.domain.hub import HubLog
from carrel.domain.requests import Collecting, Differing, Webhook
from carrel.domain.runs import Recordings
from carrel.domain.storing import Store
from carrel.service.context import SpaceContext
from carrel.service.desk import Desks
from carrel.service.files import SpaceFiles
from carrel.service.inbox import Inbox
from carrel.service.journal import Journal
from carrel.service.requests.rules import RequestRules
from carrel.service.runs import Runs
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces
from carrel.service.turns import Turns

OnLive = Callable[[str, str, bytes], None]
"""A space, a type and a payload that is not kept."""


class NotSent(Exception):
    """What could not be sent, and whether another try is of any use."""

    def __init__(self, message: str, *, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good


class Sender(Protocol):
    async def send(self, webhook: Webhook, body: bytes) -> None:
        """Raises `NotSent`."""
        ...


class SpaceLog(Protocol):
    """The log of spaces, for those who follow one."""

    @property
    def log(self) -> HubLog: ...

    def last(self, space_id: str) -> int: ...

    async def settled(self) -> None: ...

    def listening(self, change: int) -> None: ...

    def on_kept(self, then: Callable[[], None]) -> None: ...

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
    desks: Desks
    files: SpaceFiles
    context: SpaceContext
    inbox: Inbox
    shared: Shared
    recordings: Recordings
    log: SpaceLog
    collecting: Collecting
    differing: Differing
    folders: WorkFolders
    sender: Sender
    archives: Path
    """The folder of the archives of old versions."""
    rules: RequestRules
