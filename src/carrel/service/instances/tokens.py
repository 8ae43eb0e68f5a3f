"""The tokens of instances: in a file each that only the daemon's user reads, never in records."""

from __future__ import annotations

import os

from carrel.service.instances.places import Places


class TokenFiles:
    def __init__(self, places: Places) -> None:
        self._places = places

    def write(self, instance_id: str, token: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        path = self._places.folder(instance_id) / "token"
        with open(os.open(path, flags, 0o600), "w") as file:
            file.write(token)

    def read(self, instance_id: str) -> str:
        try:
            return (self._places.folder(instance_id) / "token").read_text()
        except OSError:
            return ""
