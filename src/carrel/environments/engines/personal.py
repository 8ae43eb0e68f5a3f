"""Podman's store of the daemon's user: images that a person has built or pulled there already.
Nothing is built in it, and nothing is pulled into it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.engines import UNWATCHED, EngineWatch, ImageBuild
from carrel.domain.errors import (
    CarrelError,
    EngineUnavailable,
    ImageNotInEngine,
)
from carrel.environments.engines.own import PROBE_S, SAVE_S, engine_failure
from carrel.environments.engines.place import EnginePlace
from carrel.environments.engines.processes import (
    KEEP_FREE,
    EngineBounds,
    EngineSaid,
    run_engine,
)
from carrel.linux import processes

_VARIABLES = ("HOME", "PATH", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
_SETTINGS = ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF")


class PersonalPodman:
    """An `ImageEngine` that only has and saves. It runs outside of a sandbox: podman as an ordinary
    user makes its own namespaces, and what it reads is the person's own."""

    name = "podman of the user"

    def __init__(self, place: EnginePlace, *, keep_free: int = KEEP_FREE) -> None:
        self._place = place
        self._keep_free = keep_free

    def probe(self) -> Availability:
        if shutil.which("podman") is None:
            return Availability(False, "podman is not installed.", "sudo apt-get install podman")
        return Availability(True, "podman is installed.")

    def build(self, build: ImageBuild, archive: Path, watch: EngineWatch) -> None:
        raise EngineUnavailable("Nothing is built in a person's own store.")

    def pull(self, name: str, watch: EngineWatch) -> None:
        raise EngineUnavailable("Nothing is pulled into a person's own store.")

    def has(self, name: str) -> bool:
        try:
            return self._run(("image", "exists", name), PROBE_S).code == 0
        except (CarrelError, OSError):
            return False

    def save(self, name: str, archive: Path, watch: EngineWatch) -> None:
        if not self.has(name):
            raise ImageNotInEngine(f"Your podman has no image {name}.")
        command = ("save", "--quiet", "--format", "oci-archive", "--output", str(archive), name)
        said = self._run(command, SAVE_S, watch)
        if said.code != 0:
            raise engine_failure("podman could not write the image", said)

    def tidy(self) -> None:
        """There is nothing of ours in it."""

    def _run(
        self, command: Sequence[str], most_s: float, watch: EngineWatch = UNWATCHED
    ) -> EngineSaid:
        env = {name: os.environ[name] for name in (*_VARIABLES, *_SETTINGS) if name in os.environ}
        with self._place.working() as work:
            env["TMPDIR"] = str(work)
            bounds = EngineBounds(most_s, (self._place.folder,), self._keep_free)
            try:
                return run_engine(("podman", *command), env, bounds, watch)
            finally:
                _end_pause(work)


def _end_pause(work: Path) -> None:
    """Podman of an ordinary user keeps a process for the namespaces that it made. Where his session
    has a folder for what runs, it is his, and serves the next; else it is here, and nobody's."""
    for note in work.glob("podman-run-*/libpod/tmp/pause.pid"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(note.read_text())
            processes.kill_all(processes.having_variable([pid], "TMPDIR", str(work)))
