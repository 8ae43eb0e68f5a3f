"""The hub on this machine: its log, what it knows of spaces, and its sockets in them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from carrel.config import Settings
from carrel.domain.access import Caller, ScopeKind
from carrel.domain.events import Event, EventType
from carrel.domain.hub import HubLog, Keep, Sync
from carrel.domain.spaces import Space, SpaceState
from carrel.hub.hub import HubServer, Options
from carrel.hub.log import Teller
from carrel.hub.rates import Rate
from carrel.interfaces.dev_shell import DevShellListener
from carrel.interfaces.hub.sockets import HubListener
from carrel.interfaces.notifications import NoticeChannel, NoticeWebhook, Notifier, find_desktop
from carrel.lifecycle.table import SETTLED
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.runtimes.sandbox import SandboxFolders
from carrel.service.access import may_agree, may_see
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces
from carrel.store.messages import open_log
from carrel.store.sqlite import SqliteStore


class KnownSpaces:
    """Implements `carrel.hub.access.Spaces`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def exists(self, space_id: str) -> bool:
        return self._journal.get(space_id) is not None

    def visible(self, caller: Caller, space_id: str) -> bool:
        if caller.scope.kind is ScopeKind.ADMIN:
            return True
        space = self._journal.get(space_id)
        return space is not None and may_see(caller, space)

    def may_agree(self, caller: Caller, space_id: str) -> bool:
        space = self._journal.get(space_id)
        return space is not None and may_agree(caller, space)

    def account(self, space_id: str) -> str:
        """Whose it is."""
        space = self._journal.get(space_id)
        return space.counts_for if space is not None else space_id


@asynccontextmanager
async def open_messages(settings: Settings) -> AsyncIterator[HubLog]:
    async with open_log(settings.data / "hub.db", sync=Sync(settings.hub_sync)) as log:
        yield log


@asynccontextmanager
async def open_hub(
    settings: Settings, log: HubLog, store: SqliteStore, journal: Journal
) -> AsyncIterator[HubServer]:
    """All that the store tells is in the hub's log too, from before this on."""
    options = Options(
        most_clients=settings.hub_clients,
        most_in_space=settings.hub_clients_in_space,
        most_questions=settings.hub_questions,
        rate=Rate(settings.hub_rate, int(2 * settings.hub_rate)),
        keep=Keep(settings.hub_messages, settings.hub_bytes, settings.hub_seconds),
        sync=Sync(settings.hub_sync),
    )
    hub = HubServer(log, KnownSpaces(journal), options)
    await hub.open()
    teller = Teller(hub.keeper)
    try:
        await teller.catch_up(log, store.events)
        store.on_events(teller.tell)
        yield hub
    finally:
        await hub.close()


class SpaceSockets:
    """A socket in each space that is there, opened and closed as spaces come and go."""

    def __init__(
        self,
        listening: HubListener,
        cgroups: Cgroups,
        open_spaces: OpenSpaces,
        journal: Journal,
        shells: DevShellListener | None = None,
    ) -> None:
        self._shells = shells
        self._listening = listening
        self._cgroups = cgroups
        self._open_spaces = open_spaces
        self._journal = journal

    def open_all(self) -> None:
        for space in self._journal.all():
            if space.state in SETTLED:
                self._open(space)

    def heard(self, events: Sequence[Event]) -> None:
        """Called by the store after every write of events."""
        for event in events:
            if event.type != EventType.SPACE_STATE:
                continue
            space = self._journal.get(event.space_id)
            if event.data["to"] == SpaceState.READY and space is not None:
                self._open(space)
            elif event.data["to"] in (SpaceState.REMOVING, SpaceState.REMOVED):
                self._listening.close(self._folder(event.space_id))

    def _open(self, space: Space) -> None:
        folder = self._folder(space.space_id)
        if space.owner is not None and folder.is_dir():
            groups = partial(self._groups, space.space_id)
            account = space.counts_for
            shell = None
            if space.image is not None and self._shells is not None:
                shell = partial(self._shells.enter, space.space_id)
            self._listening.open_space(folder, space.space_id, space.owner, account, groups, shell)

    def _groups(self, space_id: str) -> Sequence[str]:
        found = self._cgroups.load(space_id)
        return found.procs if found is not None else ()

    def _folder(self, space_id: str) -> Path:
        return SandboxFolders(self._open_spaces.folder(space_id)).hub


# Telling a person, by the ways that the settings name.

FAILED = "notice.failed"


@asynccontextmanager
async def notifying(
    settings: Settings, hub: HubServer, account: Callable[[str], str] = str
) -> AsyncIterator[None]:
    """`account` gives whose a space is."""
    ways = _ways(settings)
    if not ways:
        yield
        return

    def failed(space_id: str, notice: dict[str, Any], why: str) -> None:
        hub.tell(space_id, FAILED, {"id": notice["id"], "why": why})

    note = settings.data / "notified"
    notifier = Notifier(hub.log, hub.keeper, note, ways, failed, account)
    hub.on_kept.append(notifier.ring)
    task = asyncio.create_task(notifier.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _ways(settings: Settings) -> list[NoticeChannel]:
    ways: list[NoticeChannel] = [NoticeWebhook(settings.webhook)] if settings.webhook else []
    desktop = find_desktop(os.environ) if settings.desktop else None
    return ways if desktop is None else [*ways, desktop]
