"""The service on this machine: every room put together, and the record taken up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from carrel.agents.context import Context
from carrel.agents.emitting import Emitter
from carrel.agents.installing import install
from carrel.app.agents import HubTurnLog, open_agents
from carrel.app.contents import TreeContents
from carrel.app.hub import open_hub, open_messages
from carrel.app.instances import Around, open_instances, open_servers
from carrel.app.machine import LocalMachine
from carrel.app.notifying import notifying
from carrel.app.requests import RequestsAround, open_requests
from carrel.app.rooms import App, open_app
from carrel.app.sweeping import LocalSweeper
from carrel.cleanup.retention import Defaults, due
from carrel.cleanup.trash import Trash
from carrel.config import Settings
from carrel.domain.errors import CarrelError
from carrel.domain.runtimes import LimitHit
from carrel.domain.spaces import Space
from carrel.hub.hub import Hub
from carrel.interfaces.hub.system import SystemRequests
from carrel.runtimes.layout import SandboxFolders
from carrel.runtimes.recordings import Recordings
from carrel.service.agents import AgentSpaces
from carrel.service.context import Attachments, SpaceContext
from carrel.service.creating import Creator
from carrel.service.desk import Desks
from carrel.service.doctor import Doctor
from carrel.service.family import Family
from carrel.service.feed import Feed
from carrel.service.files import SpaceFiles
from carrel.service.gc import Collector
from carrel.service.hangups import Hangups
from carrel.service.inbox import Inbox
from carrel.service.instances import Instances
from carrel.service.journal import Journal
from carrel.service.keyring import Keyring
from carrel.service.reconciling import Reconciler
from carrel.service.removing import Remover
from carrel.service.requests import Requests
from carrel.service.runs import Keeping, Runs
from carrel.service.shared import Policy, Shared
from carrel.service.space_servers import SpaceServers
from carrel.service.spaces import Parts, Spaces
from carrel.service.tokens import Tokens
from carrel.service.turns import TurnParts, Turns
from carrel.service.watch import Watch
from carrel.store.sqlite import SqliteStore, open_store
from carrel.trees.bundles import TreeBundler
from carrel.trees.removal import remove_tree

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Services:
    """What interfaces call."""

    settings: Settings
    app: App
    store: SqliteStore
    journal: Journal
    shared: Shared
    spaces: Spaces
    runs: Runs
    hangups: Hangups
    turns: Turns
    keyring: Keyring
    context: SpaceContext
    files: SpaceFiles
    tokens: Tokens
    feed: Feed
    hub: Hub
    inbox: Inbox
    desks: Desks
    collector: Collector
    doctor: Doctor
    reconciler: Reconciler
    instances: Instances
    space_servers: SpaceServers
    requests: Requests


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Services]:
    """The caller holds the data folder's lock. What runs in spaces goes on afterwards."""
    watches: list[Watch] = []

    holders: list[Instances] = []

    def limit_hit(hit: LimitHit) -> None:
        for listener in holders if hit.sandbox_id.startswith("in_") else watches:
            listener.limit_hit(hit)

    async with (
        open_app(settings, limit_hit) as app,
        open_store(settings.data / "carrel.db", durable=settings.durable) as store,
        open_messages(settings) as log,
        open_hub(settings, log, store, journal := Journal(store)) as hub,
        notifying(settings, hub),
    ):
        recordings = Recordings()
        services = _assemble(settings, app, Records(store, journal, hub), recordings)
        watch = Watch(services.journal, services.collector, services.reconciler)
        watches.append(watch)
        holders.append(services.instances)
        rebooted = await asyncio.to_thread(_rebooted, settings)
        await services.reconciler.at_start(rebooted=rebooted)
        await services.instances.take_up(rebooted=rebooted)
        services.space_servers.begin_all(journal.all())
        await services.turns.take_up()
        await services.requests.take_up()
        services.hangups.begin()
        task = asyncio.create_task(watch.run())
        try:
            yield services
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await services.requests.close()
            await services.space_servers.close()
            await services.instances.close()
            await services.shared.tasks.close()
            await services.turns.close()
            await services.hangups.close()
            await services.runs.close()
            recordings.close()
            # It stays when there is anything that it holds or runs.
            with contextlib.suppress(CarrelError, OSError):
                await asyncio.to_thread(app.launcher.shutdown)


@dataclass(frozen=True)
class Records:
    """What is written down of spaces, and where."""

    store: SqliteStore
    journal: Journal
    hub: Hub


def _assemble(settings: Settings, app: App, records: Records, recordings: Recordings) -> Services:
    store, journal, hub = records.store, records.journal, records.hub
    shared = Shared()
    machine = LocalMachine(app.drivers, app.runtimes, (app.direct,))
    agents = open_agents(settings)
    desks = Desks(settings.data / "spaces", machine, agents.seats)
    trash = Trash(settings.data / "trash", settings.trash_bytes, settings.trash_s, TreeBundler())
    remover = Remover(app.identities, desks, journal, trash, remove_tree)
    creator = Creator(app.bases, machine, app.identities, desks, journal, remover.undo)
    keeping = Keeping(_drop_run, settings.output_bytes)
    runs = Runs(store, journal, desks, shared, recordings, keeping)
    policy = Policy(settings.project_roots)
    frontends = agents.registry
    known = open_servers(settings)
    servers = SpaceServers(known.needs, journal)
    spaces = Spaces(
        Parts(
            *(store, journal, desks, creator, remover, runs, trash, shared, policy, frontends),
            servers=servers,
        )
    )
    turns = Turns(
        TurnParts(
            store=store,
            journal=journal,
            spaces=spaces,
            agents=AgentSpaces(journal, desks, runs, servers, shared),
            attachments=Attachments(desks, TreeContents(), Context()),
            runs=runs,
            shared=shared,
            frontends=frontends,
            seats=agents.seats,
            servers=servers,
            log=HubTurnLog(hub),
            make_events=Emitter,
        )
    )
    sweeper = LocalSweeper(settings.data, app, time.time())
    reconciler = Reconciler(store, journal, desks, remover, runs, shared, sweeper)
    feed = Feed(hub.log, hub.keeper, store, journal)
    hub.on_kept.append(feed.ring)
    inbox = Inbox(hub.log, hub.keeper, journal, hub.say_for)
    family = Family(spaces, journal, feed)
    hub.system = SystemRequests(hub, spaces, family, inbox, turns).answer
    rules = Defaults(settings.idle_s, settings.keep_s)

    def due_now(space: Space, now: float) -> tuple[str, str] | None:
        found = due(space, now, rules)
        return None if found is None else (str(found.verb), found.why)

    collector = Collector(spaces, journal, store, app.bases, trash, reconciler, due_now)
    collector.base_budget_bytes = settings.bases_bytes
    around = Around(store, journal, hub, desks, machine, spaces, runs, shared, recordings)
    servers.instances = open_instances(settings, app, around, known)
    context = SpaceContext(spaces, desks, shared, Context())
    files = SpaceFiles(spaces, journal, desks, shared, TreeContents())
    requests = open_requests(
        settings,
        RequestsAround(
            *(store, journal, hub, desks, spaces, runs, turns, files, context, inbox, shared),
            recordings=recordings,
        ),
    )
    return Services(
        settings=settings,
        app=app,
        store=store,
        journal=journal,
        shared=shared,
        spaces=spaces,
        runs=runs,
        hangups=Hangups(runs),
        turns=turns,
        keyring=Keyring(agents.credentials, frontends, partial(install, own=agents.own)),
        context=context,
        files=files,
        tokens=Tokens(store, journal),
        feed=feed,
        hub=hub,
        inbox=inbox,
        desks=desks,
        collector=collector,
        doctor=Doctor(settings.data, machine, app.limits),
        reconciler=reconciler,
        instances=servers.instances,
        space_servers=servers,
        requests=requests,
    )


def _drop_run(folder: Path, run_id: str) -> None:
    remove_tree(SandboxFolders(folder).run(run_id))


def _rebooted(settings: Settings) -> bool:
    """Whether this machine was started since a daemon last had this data folder."""
    now = BOOT_ID.read_text().strip()
    note = settings.data / "boot"
    try:
        before = note.read_text().strip()
    except FileNotFoundError:
        before = now
    temporary = settings.data / "boot.new"
    temporary.write_text(now)
    os.replace(temporary, note)
    return before != now
