"""Dedicated MCP servers on this machine, put together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carrel.agents import programs
from carrel.app.machine import LocalMachine
from carrel.app.rooms import App
from carrel.config import Settings
from carrel.domain.access import Caller
from carrel.hub.hub import HubServer
from carrel.instances.adapter import LocalServerAdapter
from carrel.instances.compile_cache import NodeCompileCaches
from carrel.instances.processes import ProcessOwners
from carrel.instances.programs import ServerLocator
from carrel.instances.servers import ServerCatalog
from carrel.runtimes.recordings import FileRecordings
from carrel.service.instances import InstanceParts, InstanceRules, Instances
from carrel.service.instances.book import InstanceBook
from carrel.service.instances.draft import Equipping, Needs
from carrel.service.instances.places import Places
from carrel.service.instances.warm import Bridging, Warming
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces
from carrel.service.runs import Runs
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces
from carrel.service.tokens import Tokens
from carrel.store.sqlite import SqliteStore
from carrel.trees.host_folders import PlainProjects
from carrel.trees.removal import remove_tree

_log = logging.getLogger("carrel")


@dataclass(frozen=True)
class ServerParts:
    """What is known of servers before there is any instance."""

    servers: ServerCatalog
    adapter: LocalServerAdapter
    needs: Needs


def open_servers(settings: Settings) -> ServerParts:
    said = {name: server.said() for name, server in settings.servers.items()}
    servers = ServerCatalog(settings.data / "servers", ServerLocator(), said)
    for name, wrong in servers.broken().items():
        _log.warning("the server %s cannot be used: %s", name, wrong)
    adapter = LocalServerAdapter(programs.python, programs.folders)
    return ServerParts(servers, adapter, Needs(servers, adapter))


@dataclass(frozen=True)
class Around:
    """What the rest of the service has."""

    store: SqliteStore
    journal: Journal
    hub: HubServer
    open_spaces: OpenSpaces
    machine: LocalMachine
    spaces: Spaces
    runs: Runs
    shared: Shared
    recordings: FileRecordings
    tokens: Tokens


class LocalHubClients:
    """Implements `carrel.domain.server_adapter.HubClients`."""

    def __init__(self, hub: HubServer) -> None:
        self._hub = hub

    def is_there(self, client_id: str) -> bool:
        return self._hub.is_connected(client_id)

    def is_for(self, caller: Caller, client_id: str) -> bool:
        return self._hub.is_connected(client_id, caller)

    def on_gone(self, then: Callable[[str], None]) -> None:
        self._hub.on_gone.append(then)

    def tell(self, client_id: str, type: str, payload: Mapping[str, object]) -> None:
        self._hub.tell_client(client_id, type, payload)


def open_instances(settings: Settings, app: App, around: Around, known: ServerParts) -> Instances:
    data = settings.data
    places = Places(
        data / "instances",
        around.machine,
        app.identities,
        PlainProjects(),
        around.open_spaces,
        around.journal,
        remove_tree,
    )
    rules = InstanceRules(
        most=settings.instances_max,
        per_caller=settings.instances_per_caller,
        memory_bytes=settings.instance_memory_bytes,
        starting=settings.instances_starting,
    )
    servers, adapter = known.servers, known.adapter
    warming = Warming(data / "warm", servers, adapter, around.machine, app.identities)
    book = InstanceBook(around.store, around.journal)
    return Instances(
        InstanceParts(
            data=data,
            book=book,
            places=places,
            adapter=adapter,
            recordings=around.recordings,
            servers=servers,
            warming=warming,
            bridging=Bridging(adapter, around.machine, app.identities),
            caches=NodeCompileCaches(data / "compiled"),
            owners=ProcessOwners(),
            hub=LocalHubClients(around.hub),
            journal=around.journal,
            spaces=around.spaces,
            equipping=Equipping(
                book, around.journal, around.open_spaces, around.runs, around.shared
            ),
            needs=known.needs,
            shared=around.shared,
            rules=rules,
            reaches=around.tokens.reaches,
        )
    )
