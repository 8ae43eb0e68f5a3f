"""Dedicated MCP servers on this machine, put together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carrel.agents import interpreting
from carrel.app.machine import LocalMachine
from carrel.app.rooms import App
from carrel.config import Settings
from carrel.hub.hub import Hub
from carrel.instances.compiling import CompileCaches
from carrel.instances.library import Library
from carrel.instances.locating import Locator
from carrel.instances.owners import ProcessOwners
from carrel.instances.reception import LocalReception
from carrel.runtimes.recordings import Recordings
from carrel.service.desk import Desks
from carrel.service.instances import InstanceParts, InstanceRules, Instances
from carrel.service.instances.bridging import Bridging
from carrel.service.instances.equipping import Equipping
from carrel.service.instances.live import Book
from carrel.service.instances.needing import Needs
from carrel.service.instances.places import Places
from carrel.service.instances.warming import Warming
from carrel.service.journal import Journal
from carrel.service.runs import Runs
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces
from carrel.store.sqlite import SqliteStore
from carrel.trees.projects import PlainProjects
from carrel.trees.removal import remove_tree

_log = logging.getLogger("carrel")


@dataclass(frozen=True)
class ServerParts:
    """What is known of servers before there is any instance."""

    servers: Library
    reception: LocalReception
    needs: Needs


def open_servers(settings: Settings) -> ServerParts:
    said = {name: server.said() for name, server in settings.servers.items()}
    servers = Library(settings.data / "servers", Locator(), said)
    for name, wrong in servers.broken().items():
        _log.warning("the server %s cannot be used: %s", name, wrong)
    reception = LocalReception(interpreting.python, interpreting.folders)
    return ServerParts(servers, reception, Needs(servers, reception))


@dataclass(frozen=True)
class Around:
    """What the rest of the service has."""

    store: SqliteStore
    journal: Journal
    hub: Hub
    desks: Desks
    machine: LocalMachine
    spaces: Spaces
    runs: Runs
    shared: Shared
    recordings: Recordings


class LocalHubClients:
    """Implements `carrel.domain.reception.HubClients`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def is_there(self, client_id: str) -> bool:
        return self._hub.is_connected(client_id)

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
        around.desks,
        around.journal,
        remove_tree,
    )
    rules = InstanceRules(
        most=settings.instances_max,
        per_caller=settings.instances_per_caller,
        memory_bytes=settings.instance_memory_bytes,
        starting=settings.instances_starting,
        project_roots=settings.project_roots,
    )
    servers, reception = known.servers, known.reception
    warming = Warming(data / "warm", servers, reception, around.machine, app.identities)
    book = Book(around.store, around.journal)
    return Instances(
        InstanceParts(
            data=data,
            book=book,
            places=places,
            reception=reception,
            recordings=around.recordings,
            servers=servers,
            warming=warming,
            bridging=Bridging(reception, around.machine, app.identities),
            caches=CompileCaches(data / "compiled"),
            owners=ProcessOwners(),
            hub=LocalHubClients(around.hub),
            journal=around.journal,
            spaces=around.spaces,
            equipping=Equipping(book, around.journal, around.desks, around.runs, around.shared),
            needs=known.needs,
            shared=around.shared,
            rules=rules,
        )
    )
