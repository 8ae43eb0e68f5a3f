"""Docker, by its socket: asked over it whether it works, and told what to do by its own program,
which knows both of its builders.

Its program runs in the sandbox too, so that a Dockerfile that is a link cannot send a file of the
host. What its daemon does is bounded by the daemon: a build whose client is gone is cancelled.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.engines import UNWATCHED, EngineWatch, ImageBuild
from carrel.domain.errors import (
    CarrelError,
    EngineTimeout,
    EngineUnavailable,
    ImageNotInEngine,
)
from carrel.environments.engines.own import (
    PULL_S,
    SAVE_S,
    build_failure,
    build_words,
    engine_failure,
    registry_logins,
)
from carrel.environments.engines.place import EnginePlace
from carrel.environments.engines.processes import (
    KEEP_FREE,
    EngineBounds,
    EngineSaid,
    run_engine,
)
from carrel.environments.engines.sandbox import HOME, PATH, WORK, EngineSandbox

ANSWER_S = 5.0
"""A daemon answers in a thousandth of it; one that does not within this hangs."""
PROGRAM_S = 20.0
OLDEST_API = (1, 40)
"""Docker 19.03, of 2019."""
BUILDX_CLIENT = 23
"""From this version on, docker builds with buildx only, or with the old builder."""
_SOCKET = "/run/docker.sock"
_LOGINS = f"{HOME}/.docker/config.json"
_MOST_ANSWER = 1 << 20


class DockerSilent(Exception):
    """It did not answer, and why in words; with what to do."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(str(self._path))


def docker_socket() -> Path | None:
    """That of DOCKER_HOST, of the person's own daemon, or of the machine's."""
    named = os.environ.get("DOCKER_HOST", "")
    if named:
        return Path(named.removeprefix("unix://")) if named.startswith("unix://") else None
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [Path(own, "docker.sock")] if own else []
    for place in (*places, Path("/run/docker.sock"), Path("/var/run/docker.sock")):
        if place.is_socket():
            return place
    return None


def ask_docker(path: Path, what: str) -> Mapping[str, object]:
    """Raises `DockerSilent`."""
    connection = _Connection(path)
    try:
        connection.request("GET", what)
        answer = connection.getresponse()
        content = json.loads(answer.read(_MOST_ANSWER))
    except FileNotFoundError:
        raise DockerSilent(f"There is no socket at {path}.", "Start docker's daemon.") from None
    except ConnectionRefusedError:
        raise DockerSilent(f"No daemon answers at {path}.", "Start docker's daemon.") from None
    except PermissionError:
        raise DockerSilent(
            f"You may not use {path}.", "Let an administrator add you to the group docker."
        ) from None
    except TimeoutError:
        why = f"Docker's daemon hangs: it did not answer within {ANSWER_S:.0f} s at {path}."
        raise DockerSilent(why, "Restart docker's daemon.") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = f"What answers at {path} is not docker: {type(error).__name__}."
        raise DockerSilent(why, "Check DOCKER_HOST.") from None
    finally:
        connection.close()
    return content if isinstance(content, dict) else {}


class DockerEngine:
    """An `ImageEngine`. `socket` is where its daemon listens; None: where it usually does."""

    name = "docker"

    def __init__(
        self, place: EnginePlace, socket: Path | None = None, *, keep_free: int = KEEP_FREE
    ) -> None:
        self._place = place
        self._named = socket
        self._keep_free = keep_free

    def probe(self) -> Availability:
        path = self._named or docker_socket()
        if path is None:
            return Availability(False, "No docker daemon runs here.", "Not needed with podman.")
        try:
            version = ask_docker(path, "/version")
        except DockerSilent as silent:
            return Availability(False, silent.why, silent.remedy)
        found = f"Docker {version.get('Version', 'of an unknown version')} at {path}"
        api = _numbers(str(version.get("ApiVersion", "")))
        if api < OLDEST_API:
            why = f"{found} is too old: it speaks version {version.get('ApiVersion')} of its API."
            return Availability(False, why, "Install docker 19.03 or newer.")
        for needed, package in (("docker", "docker.io"), ("bwrap", "bubblewrap")):
            if shutil.which(needed, path=PATH) is None:
                why = f"{found} runs, but the program {needed} is not installed."
                return Availability(False, why, f"sudo apt-get install {package}")
        return Availability(True, f"{found} answers.")

    def build(self, build: ImageBuild, archive: Path, watch: EngineWatch) -> None:
        image = f"carrel-build:{uuid.uuid4().hex}"
        env = self._builder()
        command = ["build", "--tag", image]
        if env["DOCKER_BUILDKIT"] == "0":
            command.append("--force-rm")
        command += build_words(build)
        try:
            said = self._run(command, build.most_s, watch, env=env, project=build.project)
            if said.code != 0:
                raise build_failure(said)
            self._save(image, archive, watch)
        finally:
            # The person's own docker: no image of ours stays in its list.
            with contextlib.suppress(CarrelError, OSError):
                self._run(("rmi", "--force", image), PROGRAM_S)

    def has(self, name: str) -> bool:
        try:
            return self._run(("image", "inspect", name), PROGRAM_S).code == 0
        except (CarrelError, OSError):
            return False

    def save(self, name: str, archive: Path, watch: EngineWatch) -> None:
        if not self.has(name):
            raise ImageNotInEngine(
                f"docker has no image {name}.",
                hint=f"Fetch it with `carrel image pull {name}`.",
            )
        self._save(name, archive, watch)

    def _save(self, image: str, archive: Path, watch: EngineWatch) -> None:
        with self._place.working() as work:
            written = work / "image.tar"
            command = ("save", "--output", f"{WORK}/{written.name}", image)
            said = self._run(command, SAVE_S, watch, work=work)
            if said.code != 0:
                raise engine_failure("docker could not write the image", said)
            os.replace(written, archive)

    def pull(self, name: str, watch: EngineWatch) -> None:
        said = self._run(("pull", name), PULL_S, watch, logins=True)
        if said.code != 0:
            raise engine_failure(f"docker could not fetch {name}", said)

    def tidy(self) -> None:
        """Its daemon removes what a cancelled build has left."""

    def _builder(self) -> dict[str, str]:
        """BuildKit where this program can use it: the old builder knows no mounts in RUN."""
        said = self._run(("--version",), PROGRAM_S)
        client = _numbers(said.text.partition("version ")[2])
        buildkit = client < (BUILDX_CLIENT,) or (
            self._run(("buildx", "version"), PROGRAM_S).code == 0
        )
        return {"DOCKER_BUILDKIT": "1" if buildkit else "0", "BUILDKIT_PROGRESS": "plain"}

    def _run(
        self,
        command: Sequence[str],
        most_s: float,
        watch: EngineWatch = UNWATCHED,
        *,
        work: Path | None = None,
        env: Mapping[str, str] | None = None,
        project: Path | None = None,
        logins: bool = False,
    ) -> EngineSaid:
        if work is None:
            with self._place.working() as work:
                return self._run(
                    command, most_s, watch, work=work, env=env, project=project, logins=logins
                )
        path = self._named or docker_socket()
        if path is None:
            raise EngineUnavailable("No docker daemon runs here.", hint="Start it, or use podman.")
        found = registry_logins() if logins else None
        files = {_LOGINS: found} if found is not None else {}
        sandbox = EngineSandbox(
            work,
            project=project,
            sockets={_SOCKET: path},
            files=files,
            env={"DOCKER_HOST": f"unix://{_SOCKET}", **(env or {})},
        )
        bounds = EngineBounds(most_s, (self._place.folder, *self._data(path)), self._keep_free)
        try:
            return run_engine(
                sandbox.argv("docker", *command), sandbox.environment(), bounds, watch
            )
        except EngineTimeout:
            if most_s != PROGRAM_S:
                raise
            raise EngineUnavailable(
                "Docker's daemon does not answer.", hint="Restart it, or use podman."
            ) from None

    @staticmethod
    def _data(path: Path) -> tuple[Path, ...]:
        """Where it keeps images, if we see that disk."""
        try:
            root = Path(str(ask_docker(path, "/info").get("DockerRootDir", "")))
        except DockerSilent:
            return ()
        return (root,) if root.is_absolute() and root.is_dir() else ()


def _numbers(version: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in version.replace(",", " ").partition(" ")[0].split("."):
        digits = "".join(char for char in part if char.isdigit())
        found.append(int(digits) if digits else 0)
    return tuple(found) or (0,)
