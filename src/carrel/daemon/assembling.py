"""The service and the interface to it, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from carrel import __version__
from carrel.app.hub import SpaceSockets
from carrel.app.service import open_service
from carrel.config import Settings
from carrel.daemon import places
from carrel.interfaces.http.api import make_api
from carrel.interfaces.http.closing import Closing
from carrel.interfaces.http.services import Options, Services
from carrel.interfaces.hub.listening import Listening


@asynccontextmanager
async def open_api(
    settings: Settings, shutdown: Callable[[], None]
) -> AsyncIterator[tuple[FastAPI, Closing]]:
    """The caller holds the data folder's lock."""
    async with open_service(settings) as found:
        services = Services(
            store=found.store,
            spaces=found.spaces,
            runs=found.runs,
            hangups=found.hangups,
            turns=found.turns,
            keyring=found.keyring,
            context=found.context,
            files=found.files,
            tokens=found.tokens,
            feed=found.feed,
            hub=found.hub,
            inbox=found.inbox,
            instances=found.instances,
            requests=found.requests,
            collector=found.collector,
            doctor=found.doctor,
            bases=found.app.bases,
        )
        options = Options(
            data=settings.data,
            version=__version__,
            shutdown=shutdown,
            hosts=frozenset(settings.allowed_hosts),
            origins=frozenset(settings.allowed_origins),
            idle_s=settings.idle_s,
            keep_s=settings.keep_s,
        )
        closing = Closing(found.requests.ending)
        listening = Listening(found.hub)
        sockets = SpaceSockets(listening, found.desks, found.journal)
        listening.open_local(Path(places.make_folder(settings.data)))
        sockets.open_all()
        found.store.on_events(sockets.heard)
        try:
            yield make_api(services, options, closing), closing
        finally:
            listening.close_all()
