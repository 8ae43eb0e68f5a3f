"""Requests on this machine, put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carrel.config import Settings
from carrel.domain.access import Caller
from carrel.domain.hub import HubLog
from carrel.hub.hub import HubServer
from carrel.interfaces.notifications import OutcomeSender
from carrel.runtimes.recordings import FileRecordings
from carrel.service.files import SpaceContext, SpaceFiles
from carrel.service.inbox import Inbox
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces
from carrel.service.requests import RequestParts, RequestRules, Requests
from carrel.service.requests.book import OnLive
from carrel.service.runs import Runs
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces
from carrel.service.tokens import Tokens
from carrel.service.turns import Turns
from carrel.store.sqlite import SqliteStore
from carrel.trees.differences import GitDiffs
from carrel.trees.host_folders import HostFolders
from carrel.trees.results import Results


@dataclass(frozen=True)
class RequestsAround:
    """What the rest of the service has."""

    store: SqliteStore
    journal: Journal
    hub: HubServer
    open_spaces: OpenSpaces
    spaces: Spaces
    runs: Runs
    turns: Turns
    files: SpaceFiles
    context: SpaceContext
    inbox: Inbox
    shared: Shared
    tokens: Tokens
    recordings: FileRecordings
    usual_agent: Callable[[Caller, Mapping[str, str]], str]


class HubSpaceLog:
    """Implements `carrel.service.requests.book.SpaceLog`."""

    def __init__(self, hub: HubServer) -> None:
        self._hub = hub

    @property
    def log(self) -> HubLog:
        return self._hub.log

    def last(self, space_id: str) -> int:
        return self._hub.keeper.last(space_id)

    async def settled(self) -> None:
        await self._hub.keeper.settled()

    def listening(self, change: int) -> None:
        self._hub.keeper.listening(change)

    def on_kept(self, then: Callable[[set[str]], None]) -> None:
        self._hub.on_kept.append(then)

    def on_live(self, then: OnLive) -> None:
        self._hub.on_live.append(then)

    async def forget(self, space_id: str) -> None:
        await self._hub.log.forget(space_id)
        self._hub.keeper.forget(space_id)


def open_requests(settings: Settings, around: RequestsAround) -> Requests:
    folder = settings.data / "requests"
    differing = GitDiffs(folder / "work")
    differing.sweep()
    rules = RequestRules(
        at_once=settings.requests_at_once or 2 * (os.cpu_count() or 1),
        waiting=settings.requests_waiting,
        frontend=settings.request_agent,
        tier=settings.request_tier,
        timeout_s=settings.request_s,
        given_up_s=settings.request_given_up_s,
        remembered=settings.requests_remembered,
        webhook_hosts=settings.request_webhook_hosts,
    )
    return Requests(
        RequestParts(
            store=around.store,
            journal=around.journal,
            spaces=around.spaces,
            turns=around.turns,
            runs=around.runs,
            open_spaces=around.open_spaces,
            files=around.files,
            context=around.context,
            inbox=around.inbox,
            shared=around.shared,
            tokens=around.tokens,
            recordings=around.recordings,
            log=HubSpaceLog(around.hub),
            collecting=Results(),
            differing=differing,
            folders=HostFolders(settings.data),
            sender=OutcomeSender(),
            archives=folder / "versions",
            rules=rules,
            usual_agent=around.usual_agent,
        )
    )
