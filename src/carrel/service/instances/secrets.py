"""The token of an instance and the variables that its caller gave: in a file that only the
daemon's user reads, never in a record."""

from __future__ import annotations

import json
import os

from carrel.service.instances.live import Live
from carrel.service.instances.places import Places

FILE = "secrets"


class Secrets:
    """Blocking."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def write(self, live: Live) -> None:
        if not live.token and not live.env:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        path = self._places.folder(live.instance_id) / FILE
        with open(os.open(path, flags, 0o600), "w") as file:
            json.dump({"token": live.token, "env": dict(live.env)}, file)

    def read(self, live: Live) -> None:
        """Into it; nothing where there are none."""
        try:
            found = json.loads((self._places.folder(live.instance_id) / FILE).read_text())
        except (OSError, ValueError):
            return
        live.token, live.env = found["token"], found["env"]
