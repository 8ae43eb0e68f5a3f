"""Carrel's hub, of a daemon that was started for the benchmark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.own_spaces import Daemon, open_daemon
from carrel.client import Hub
from carrel.daemon import places
from carrel.domain.hub import HUB_SOCKET

_SETTINGS = """\
hub_sync = "{sync}"
hub_messages = 0
hub_bytes = 0
hub_seconds = 0
hub_clients = 100000
hub_rate = 1e9
"""


class OwnHub:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.socket = os.path.join(places.folder(daemon.data), HUB_SOCKET)

    def new_space(self) -> str:
        """Empty; its id."""
        return self._daemon.client.create().id

    def restart(self) -> None:
        """What earlier phases left in its memory is then gone."""
        self._daemon.stop()
        self._daemon.start()

    def memory_mb(self) -> float:
        return self._daemon.memory_mb()

    def clients(self) -> int:
        """Connected now."""
        with Hub(socket=self.socket) as hub:
            return hub.status().clients - 1

    def cpu_s(self) -> float:
        """That the daemon has used since its start."""
        return self._daemon.cpu_s()


@contextmanager
def open_hub(place: Path, sync: str) -> Iterator[OwnHub]:
    """With no bounds that the benchmark would meet; its data are below `place`."""
    config = place / f"{sync}.toml"
    config.write_text(_SETTINGS.format(sync=sync))
    before = os.environ.get("CARREL_CONFIG")
    os.environ["CARREL_CONFIG"] = str(config)
    try:
        with open_daemon(place / sync) as daemon:
            yield OwnHub(daemon)
    finally:
        os.environ.pop("CARREL_CONFIG")
        if before is not None:
            os.environ["CARREL_CONFIG"] = before
