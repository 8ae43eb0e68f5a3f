"""The service on this machine: every room put together, and the record taken up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from carrel.agents import programs
from carrel.agents.events import Emitter
from carrel.agents.folders import Context
from carrel.agents.imports import has_login
from carrel.agents.library import Library
from carrel.agents.programs import install
from carrel.app.agents import HubTurnLog, open_agents
from carrel.app.hub import KnownSpaces, notifying, open_hub, open_messages
from carrel.app.instances import Around, open_instances, open_servers
from carrel.app.machine import LocalMachine, LocalSweeper, TreeContents, project_setup
from carrel.app.requests import RequestsAround, open_requests
from carrel.app.rooms import App, open_app, own_program
from carrel.cleanup.retention import Defaults, due
from carrel.cleanup.trash import Trash
from carrel.config import Settings
from carrel.domain.errors import CarrelError
from carrel.domain.events import Event, EventType
from carrel.domain.ids import space_of
from carrel.domain.runtimes import LimitHit, LimitsChanged
from carrel.domain.spaces import Space
from carrel.domain.systems import Part
from carrel.domain.trees import Tree, TreeDriver
from carrel.environments.discovery import asks_for_setup
from carrel.environments.engines.catalogue import Engines
from carrel.environments.engines.maker import ProjectImages
from carrel.environments.home_tools import HomeToolchains, home_toolchains
from carrel.environments.login_shell import is_same
from carrel.environments.package_settings import PackageManagers
from carrel.hub.hub import HubServer
from carrel.instances.owners import OwnersConnections
from carrel.interfaces.hub.system import SystemRequests
from carrel.interfaces.mcp import McpProcess
from carrel.linux.reserve import Reserve
from carrel.linux.sockets import has_other_end
from carrel.ports.forwarder import LoopbackForwarder, listen
from carrel.review import comments as comment_lines
from carrel.review.checks import CheckTrees
from carrel.review.diff import TreeDiffs
from carrel.review.export import TreeExports
from carrel.review.landing import GitLander
from carrel.review.takes import TreeTaker
from carrel.runtimes.bubblewrap import found_by_commands
from carrel.runtimes.limits.disk import disk_bytes
from carrel.runtimes.policy import etc_paths
from carrel.runtimes.recordings import FileRecordings
from carrel.runtimes.sandbox import HUB, TOOLCHAIN, WORKSPACE, SandboxFolders
from carrel.service.agents import AgentSpaces, usual_agent
from carrel.service.checkpoints import CheckpointBudget, Checkpoints
from carrel.service.checks import LandingChecks
from carrel.service.cleanup import Collector, Watch
from carrel.service.comments import Comments
from carrel.service.conflicts import ConflictTurns
from carrel.service.creation import Creator
from carrel.service.credentials import AgentKeys, Keyring, endpoint_hosts
from carrel.service.dev_shells import DevShells
from carrel.service.diffs import SpaceDiffs
from carrel.service.disk_use import DiskUse
from carrel.service.doctor import Doctor
from carrel.service.environments import SpaceEnvironments
from carrel.service.exports import SpaceExports
from carrel.service.family import Family
from carrel.service.feed import Feed
from carrel.service.files import Attachments, SpaceContext, SpaceFiles
from carrel.service.helpers import HelperFiles
from carrel.service.images import ImageLibrary
from carrel.service.inbox import Inbox, WaitingItems
from carrel.service.instances import Instances
from carrel.service.journal import Journal
from carrel.service.landing import Landings
from carrel.service.open_spaces import OpenSpaces
from carrel.service.operations import Operations
from carrel.service.operations.admin import BaseOperations, CleanUpOperations, DaemonOperations
from carrel.service.operations.agents import (
    AgentOperations,
    ContextOperations,
    CredentialOperations,
    InboxOperations,
    InvocationOperations,
    KitOperations,
    TrustOperations,
    TurnOperations,
)
from carrel.service.operations.checkpoints import CheckpointOperations
from carrel.service.operations.comments import CommentOperations
from carrel.service.operations.files import FileOperations
from carrel.service.operations.images import ImageOperations
from carrel.service.operations.instances import InstanceOperations, ServerOperations
from carrel.service.operations.landings import LandingOperations, QueueOperations
from carrel.service.operations.ports import (
    PortOperations,
    PsOperations,
    ServiceOperations,
    SshKeyOperations,
    SshOperations,
)
from carrel.service.operations.races import RaceOperations
from carrel.service.operations.requests import RequestOperations
from carrel.service.operations.review import ReviewOperations
from carrel.service.operations.runs import RunOperations
from carrel.service.operations.spaces import SpaceOperations, SpaceViews, TrashOperations
from carrel.service.ports import Ports
from carrel.service.queue import LandingQueue
from carrel.service.races import Races
from carrel.service.reconciler import Reconciler
from carrel.service.removal import Remover
from carrel.service.requests import Requests
from carrel.service.reviews import SpaceReviews
from carrel.service.runs import Hangups, RunKeeping, Runs
from carrel.service.services import SpaceServices
from carrel.service.setup import Setups, SetupTools
from carrel.service.shared import CallerPolicy, Errands, Shared
from carrel.service.space_config import SpaceConfigs
from carrel.service.space_servers import SpaceServers
from carrel.service.spaces import Parts, Spaces
from carrel.service.ssh import FOLDER as SSH_FOLDER
from carrel.service.ssh import SshSessions
from carrel.service.ssh_listener import SshListener
from carrel.service.takes import Takes
from carrel.service.tokens import Tokens
from carrel.service.trust import Trust
from carrel.service.turns import TurnParts, Turns
from carrel.ssh.authorized import AuthorizedKeys
from carrel.ssh.keys import SshFiles
from carrel.ssh.listener_process import ListenerProcess
from carrel.store.sqlite import SqliteStore, open_store
from carrel.trees.bundles import TreeBundler
from carrel.trees.download_caches import DownloadCaches
from carrel.trees.drivers.overlay import LAYERS
from carrel.trees.git.personal import PersonalGit
from carrel.trees.git.version import merging_git
from carrel.trees.ranged.images import RangedSystems
from carrel.trees.ranged.states import RangedStates, has_range
from carrel.trees.removal import remove_tree
from carrel.trees.review import TreeReviews
from carrel.trees.shared_layers import SharedLayers
from carrel.trees.states import SpaceStates
from carrel.trees.systems import Systems

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
    trust: Trust
    context: SpaceContext
    files: SpaceFiles
    tokens: Tokens
    feed: Feed
    hub: HubServer
    mcp: McpProcess
    inbox: Inbox
    open_spaces: OpenSpaces
    toolchains: HomeToolchains
    collector: Collector
    reconciler: Reconciler
    instances: Instances
    space_servers: SpaceServers
    space_services: SpaceServices
    requests: Requests
    landings: Landings
    takes: Takes
    checkpoints: Checkpoints
    ports: Ports
    queue: LandingQueue
    races: Races
    dev_shells: DevShells
    ssh: SshSessions
    ssh_listener: SshListener
    operations: Operations


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Services]:
    """The caller holds the data folder's lock. What runs in spaces goes on afterwards."""
    watches: list[Watch] = []

    holders: list[Instances] = []

    def heard(event: LimitHit | LimitsChanged) -> None:
        event = replace(event, sandbox_id=space_of(event.sandbox_id))
        if isinstance(event, LimitsChanged):
            for watch in watches:
                watch.limits_changed(event)
            return
        for listener in holders if event.sandbox_id.startswith("in_") else watches:
            listener.limit_hit(event)

    reserve = Reserve(settings.data / "reserve")
    reserve.ensure()
    configs = SpaceConfigs(settings.data / "spaces")
    async with (
        open_app(settings, heard) as app,
        open_store(settings.data / "carrel.db", durable=settings.durable, room=reserve) as store,
        open_messages(settings) as log,
        open_hub(settings, log, store, journal := Journal(store, configs=configs)) as hub,
        notifying(settings, hub, KnownSpaces(journal).account),
    ):
        recordings = FileRecordings(app.readers)
        services = _assemble(settings, app, Records(store, journal, hub, reserve), recordings)
        watch = Watch(services.journal, services.collector, services.reconciler, reserve)
        watches.append(watch)
        holders.append(services.instances)
        rebooted = await asyncio.to_thread(_rebooted, settings)
        await services.reconciler.at_start(rebooted=rebooted)
        await asyncio.to_thread(app.images.keep_holders, partial(_with_images, journal))
        await services.instances.take_up(rebooted=rebooted)
        # A daemon may have ended between a removal and this.
        await services.spaces.refresh_seers()
        await services.space_services.take_up()
        services.space_servers.begin_all(journal.all())
        await services.turns.take_up()
        await services.requests.take_up()
        await services.landings.take_up()
        await services.takes.take_up()
        await services.checkpoints.take_up()
        await services.queue.take_up()
        await services.races.take_up()
        await services.ports.take_up()
        await services.ssh.take_up()
        services.hangups.begin()
        # Asks the login shell, if it must be asked, before somebody waits for the answer.
        asyncio.get_running_loop().run_in_executor(None, services.toolchains.find)
        task = asyncio.create_task(watch.run())
        try:
            yield services
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await services.space_services.close()
            await services.ports.close()
            await services.ssh_listener.close()
            await services.ssh.close()
            await services.collector.close()
            await services.reconciler.close()
            await services.requests.close()
            await services.queue.close()
            await services.space_servers.close()
            await services.instances.close()
            await services.shared.tasks.close()
            await services.turns.close()
            await services.hangups.close()
            await services.runs.close()
            await services.mcp.close()
            recordings.close()
            app.end_watches()
            # It stays when there is anything that it holds or runs.
            with contextlib.suppress(CarrelError, OSError):
                await asyncio.to_thread(app.launcher.shutdown)


@dataclass(frozen=True)
class Records:
    """What is written down of spaces, and where."""

    store: SqliteStore
    journal: Journal
    hub: HubServer
    reserve: Reserve


def _systems(data: Path, app: App) -> Systems | RangedSystems:
    systems = Systems(app.launcher, SharedLayers(data / LAYERS))
    return systems if os.geteuid() == 0 else RangedSystems(systems, app.ranges, app.launcher)


def _assemble(
    settings: Settings, app: App, records: Records, recordings: FileRecordings
) -> Services:
    store, journal, hub = records.store, records.journal, records.hub
    shared = Shared()
    machine = LocalMachine(app.drivers, app.runtimes, (app.direct,))
    mcp = McpProcess(programs.python("carrel.mcp"))
    toolchains = home_toolchains(settings.data, os.environ, shows=settings.sandbox.home_tools)
    packages = PackageManagers(
        toolchains.home if settings.sandbox.package_settings else None,
        # The system's own mapping decodes each variable, for each new space.
        *(dict(os.environ), toolchains.said, toolchains.check),
        seen=lambda: (*TOOLCHAIN, *etc_paths()),
    )
    agents = open_agents(settings, mcp.expect, toolchains.search)
    folder = settings.data / "spaces"
    downloads = DownloadCaches(
        settings.data / "downloads", settings.sandbox.caches_bytes, records.reserve.is_full
    )
    images = app.images
    systems = _systems(settings.data, app)

    def states_of(
        driver: TreeDriver, tree: Tree, parts: tuple[Part, ...]
    ) -> SpaceStates | RangedStates:
        base = app.bases.get(tree.base_id)
        states = SpaceStates(driver, tree, base, parts, systems.part)
        if os.geteuid() == 0 or not any(map(has_range, parts)):
            return states
        return RangedStates(states, app.ranges, app.launcher, (tree, base, parts))

    open_spaces = OpenSpaces(
        *(folder, machine, agents.agent_folders, own_program(), downloads),
        edits=app.edits,
        others=journal.staying,
        systems=systems,
        reserved=partial(endpoint_hosts, agents.credentials, agents.imports),
    )
    trash = Trash(settings.data / "trash", settings.trash_bytes, settings.trash_s, TreeBundler())
    personal = PersonalGit(os.environ)
    tree_reviews = TreeReviews(app.bases, personal.ignored)
    reviews = SpaceReviews(open_spaces, tree_reviews)
    remover = Remover(
        *(app.identities, open_spaces, journal, reviews, trash, downloads, images, remove_tree),
        states_of=states_of,
        locks=shared.locks,
    )
    keeping = RunKeeping(_drop_run, settings.output_bytes)
    runs = Runs(store, journal, open_spaces, shared, recordings, keeping)
    services = SpaceServices(store, journal, open_spaces, runs, shared, _drop_run)
    creator = Creator(
        *(app.bases, machine, app.identities, open_spaces, journal, remover.undo),
        disk=records.reserve,
        home_files=personal,
        toolchains=toolchains,
        packages=packages,
        downloads=downloads,
        images=images,
        systems=systems,
        services=services,
        show=tuple(map(str, settings.sandbox.show)),
        bases_going=shared.bases_going,
        disk_for=settings.disk_for,
        most_of_caller=settings.spaces_per_caller,
        clone_hosts=settings.clone_hosts,
    )
    policy = CallerPolicy(settings.project_roots)
    frontends = agents.registry
    known = open_servers(settings)
    servers = SpaceServers(known.needs, journal)
    tokens = Tokens(store, journal)
    spaces = Spaces(
        Parts(
            *(
                store,
                journal,
                open_spaces,
                creator,
                remover,
                runs,
                trash,
                states_of,
                shared,
                policy,
                frontends,
            ),
            servers=servers,
            tokens=tokens,
        )
    )
    spaces.setups = Setups(
        *(settings.data / "setups", app.bases, spaces, open_spaces, creator, runs, shared.locks),
        SetupTools(asks_for_setup, project_setup, is_same),
    )
    maker = ProjectImages(Engines(settings.data / "engines"))
    image_library = ImageLibrary(app.images, maker)
    spaces.environments = SpaceEnvironments(
        *(image_library, creator, spaces, journal, spaces.setups), settings.sandbox.image
    )
    keys = AgentKeys(
        agents.credentials, agents.imports, time.time, partial(has_login, env=os.environ)
    )
    trust = Trust(spaces, open_spaces, TreeContents(), frontends, agents.agreements)
    turns = Turns(
        TurnParts(
            store=store,
            journal=journal,
            spaces=spaces,
            agents=AgentSpaces(journal, open_spaces, runs, servers, shared),
            attachments=Attachments(open_spaces, TreeContents(), Context()),
            runs=runs,
            shared=shared,
            frontends=frontends,
            agent_folders=agents.agent_folders,
            keys=keys,
            trust=trust,
            servers=servers,
            log=HubTurnLog(hub),
            make_events=Emitter,
            tokens=tokens,
        )
    )
    sweeper = LocalSweeper(settings.data, app, time.time())
    reconciler = Reconciler(store, journal, open_spaces, remover, runs, shared, sweeper)
    feed = Feed(hub.log, hub.keeper, store, journal)
    hub.on_kept.append(feed.ring)
    inbox = Inbox(hub.log, hub.keeper, journal, hub.say_for, hub.ask)
    store.on_events(partial(_tell_landed, inbox, Errands(lambda _error: None)))
    family = Family(spaces, journal, feed, turns, inbox, frontends)
    files = SpaceFiles(spaces, journal, open_spaces, shared, TreeContents())
    helpers = HelperFiles(family, spaces, files)
    rules = Defaults(settings.idle_s, settings.keep_s)

    def folders_of(family: str) -> list[Path]:
        members = (one for one in journal.all() if family in (one.space_id, one.family))
        return [open_spaces.folder(one.space_id) for one in members]

    app.enforcement.folders_of = folders_of

    def due_now(space: Space, now: float) -> tuple[str, str] | None:
        if space.transient and space.parent and journal.get(space.parent) is None:
            # The daemon ended before all that goes with a space was gone.
            return "remove", "the space that asked for it is gone"
        found = due(space, now, rules)
        return None if found is None else (str(found.verb), found.why)

    collector = Collector(
        *(spaces, journal, store, app.bases, trash, downloads, reconciler, due_now, shared)
    )
    collector.base_budget_bytes, collector.base_age_s = settings.bases_bytes, settings.bases_s
    collector.images, collector.image_budget_bytes = app.images, settings.images_bytes
    around = Around(
        *(store, journal, hub, open_spaces, machine, spaces, runs, shared, recordings, tokens)
    )
    servers.instances = open_instances(settings, app, around, known)
    context = SpaceContext(spaces, open_spaces, shared, Context())
    differ = TreeDiffs(tree_reviews, settings.data / "review")
    differ.sweep()
    diffs = SpaceDiffs(store, spaces, journal, open_spaces, shared, differ)
    requests = open_requests(
        settings,
        RequestsAround(
            *(store, journal, hub, open_spaces, spaces, runs, turns, files, context, inbox, shared),
            tokens=tokens,
            recordings=recordings,
            usual_agent=partial(usual_agent, frontends, keys),
        ),
    )
    lander = GitLander(settings.data, app.bases, tree_reviews, personal.identity)
    check_trees = CheckTrees(tree_reviews, lander)
    landings = Landings(
        *(store, journal, spaces, open_spaces, shared, lander, turns.working),
        LandingChecks(creator, spaces, runs, shared, check_trees.check_out),
        ConflictTurns(store, spaces, files, turns),
    )
    exporter = TreeExports(settings.data, app.bases, reviews.reviews, personal.identity)
    exporter.sweep()
    exports = SpaceExports(journal, spaces, files, open_spaces, shared, exporter)
    takes = Takes(
        *(store, journal, spaces, open_spaces, shared),
        TreeTaker(settings.data / "takes", app.bases),
    )
    comments = Comments(store, journal, spaces, files, turns, shared, diffs, comment_lines)
    checkpoints = Checkpoints(
        *(store, journal, spaces, open_spaces, shared, turns),
        states_of,
        services,
        CheckpointBudget(settings.checkpoints, settings.checkpoint_bytes),
    )
    turns.after_turn = checkpoints.after_turn
    hub.requests.system = SystemRequests(
        hub, spaces, family, inbox, turns, helpers, checkpoints
    ).answer
    queue = LandingQueue(store, journal, spaces, landings)
    races = Races(store, journal, spaces, turns, runs, diffs, shared)
    keyring = Keyring(
        agents.credentials,
        frontends,
        partial(install, own=agents.own),
        agents.imports,
        time.time,
    )
    library = Library(frontends)
    views = SpaceViews(spaces, runs, turns, settings.data)
    disk_use = DiskUse(settings.data, journal, store, app.bases, records.reserve, disk_bytes)
    turn_operations = TurnOperations(turns)
    space_operations = SpaceOperations(spaces, views)
    run_operations = RunOperations(spaces, runs, store, str(settings.data))
    forwarder = LoopbackForwarder(partial(OwnersConnections, settings.data))
    ports = Ports(journal, spaces, open_spaces, shared, forwarder)
    store.on_events(ports.heard)
    ssh_files = SshFiles(
        settings.data, programs.python("carrel.cli.main"), f"{HUB}/{SSH_FOLDER}", WORKSPACE
    )
    ssh = SshSessions(
        *(journal, spaces, open_spaces, turns, shared, ssh_files, found_by_commands, _drop_run),
        has_other_end,
    )
    ssh_listener = SshListener(
        *(journal, tokens, ssh, AuthorizedKeys(settings.data)),
        ListenerProcess(
            programs.python("carrel.ssh.listener"),
            *(settings.data, settings.data / "daemon", listen),
        ),
    )
    operations = Operations(
        spaces=space_operations,
        trash=TrashOperations(spaces, views),
        review=ReviewOperations(diffs, exports),
        tokens=tokens,
        bases=BaseOperations(app.bases),
        images=ImageOperations(image_library),
        cleanup=CleanUpOperations(
            collector,
            disk_use,
            Doctor(
                *(settings.data, machine, app.limits, app.launcher.about, merging_git),
                keyring=keyring,
                toolchains=toolchains,
                packages=packages,
                engines=maker.found,
                no_range=app.identities.why_no_range,
            ),
        ),
        daemon=DaemonOperations(store, feed, settings.data, settings.idle_s, settings.keep_s),
        turns=turn_operations,
        trust=TrustOperations(trust),
        context=ContextOperations(context),
        agents=AgentOperations(keyring),
        invocations=InvocationOperations(library),
        kits=KitOperations(library),
        credentials=CredentialOperations(keyring),
        inbox=InboxOperations(inbox, WaitingItems(inbox, turns, journal), spaces),
        runs=run_operations,
        files=FileOperations(files),
        instances=InstanceOperations(servers.instances, str(settings.data)),
        servers=ServerOperations(servers.instances),
        landings=LandingOperations(landings, takes, checkpoints, spaces),
        comments=CommentOperations(comments, turn_operations.info),
        checkpoints=CheckpointOperations(checkpoints, views),
        queue=QueueOperations(queue),
        races=RaceOperations(races),
        ports=PortOperations(ports),
        services=ServiceOperations(spaces, services),
        ps=PsOperations(
            spaces, views, runs, ports, ssh, space_operations, run_operations, services
        ),
        ssh=SshOperations(ssh, ssh_listener),
        ssh_keys=SshKeyOperations(ssh_listener),
        requests=RequestOperations(requests, str(settings.data)),
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
        trust=trust,
        context=context,
        files=files,
        tokens=tokens,
        feed=feed,
        hub=hub,
        mcp=mcp,
        inbox=inbox,
        open_spaces=open_spaces,
        toolchains=toolchains,
        collector=collector,
        reconciler=reconciler,
        instances=servers.instances,
        space_servers=servers,
        space_services=services,
        requests=requests,
        landings=landings,
        takes=takes,
        checkpoints=checkpoints,
        ports=ports,
        queue=queue,
        races=races,
        dev_shells=DevShells(journal, open_spaces, shared, _has_run, _drop_run),
        ssh=ssh,
        ssh_listener=ssh_listener,
        operations=operations,
    )


def _tell_landed(inbox: Inbox, errands: Errands, events: Sequence[Event]) -> None:
    """A landing answers the requests for a review of its space. What cannot be said now is left
    for the person to answer."""
    for event in events:
        if event.type == EventType.LANDED:
            errands.begin(inbox.landed(event.space_id, str(event.data.get("branch", ""))))


def _with_images(journal: Journal) -> list[str]:
    """The spaces that hold some."""
    return [space.space_id for space in journal.all() if space.image is not None or space.services]


def _has_run(folder: Path, run_id: str) -> bool:
    return SandboxFolders(folder).run(run_id).is_dir()


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
