"""Podman and docker, as far as they make containers for spaces: by their own programs.

A container has one process, which waits, and no mounts of the host's but that program: the rest is
the launcher's. It is named and labelled after its sandbox and the data folder. When its process has
ended, the next one replaces it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import ContainerUnavailable
from carrel.domain.trees import Owner
from carrel.linux import processes
from carrel.runtimes.requests import ContainerProcess
from carrel.runtimes.systems import HOLD

ANSWER_S = 20.0
"""For what takes a tenth of a second on a quiet machine."""
RUN_S = 60.0
"""One starts within a second; on a busy disk it may take longer."""
LABEL = "carrel.data"
SPACE = "carrel.space"
RUNTIMES = ("runc", "crun")
"""runc first: crun gives up where version 1 of control groups is mixed with version 2."""
MOST_FILES = 1 << 20
LONGEST_RUN_FOLDER = 50
_EMPTY = "carrel-empty:1"
TOP_FOLDERS = ("proc", "dev", "sys", "etc", "run", "tmp")
_VERSION = re.compile(r"(\d+)\.(\d+)")
_TAKEN = ("is already in use", "already exists")


@dataclass(frozen=True)
class ContainerRequest:
    """`name` is the id of the sandbox, `user` whom its process belongs to on the host. `root` is
    the folder with its files, for an engine that can use one."""

    name: str
    user: Owner
    holder: Path
    root: Path
    own_network: bool
    shared_memory: int


class ContainerEngine:
    """Blocking. Methods raise `ContainerUnavailable`."""

    name = ""
    oldest = (0, 0)
    package = ""
    takes_root = False
    """It makes a container of a folder; else the container is empty."""

    def __init__(self, data: Path) -> None:
        self._label = str(data)

    def words(self) -> Sequence[str]:
        """How each command begins."""
        return (self.name,)

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def probe(self) -> Availability:
        """Tries the real thing; leaves nothing."""
        install = f"sudo apt-get install {self.package}"
        if os.geteuid() != 0:
            return Availability(False, "Only a daemon that runs as root uses containers.")
        if shutil.which(self.name) is None:
            return Availability(False, f"{self.name} is not installed.", install)
        try:
            found = self._version()
            if found < self.oldest:
                least, here = (".".join(map(str, one)) for one in (self.oldest, found))
                why = f"{self.name} {here} is too old: at least {least} is needed."
                return Availability(False, why, f"Install a newer {self.name}.")
            self.known()
        except ContainerUnavailable as error:
            return Availability(False, error.message, error.hint)
        version = ".".join(map(str, found))
        return Availability(True, f"{self.name} {version} answers. Its containers need --image.")

    def _version(self) -> tuple[int, int]:
        """Of what makes the containers."""
        said = self.call("version", "--format", "{{.Server.Version}}")
        found = _VERSION.search(said)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def start(self, request: ContainerRequest) -> ContainerProcess:
        """One of that name that is there is replaced."""
        words = self.definition(request)
        try:
            return self._process(request.name, self._run(words))
        except BaseException:
            # What was made and could not be started stays otherwise.
            with contextlib.suppress(ContainerUnavailable):
                self.remove(request.name)
            raise

    def definition(self, request: ContainerRequest) -> list[str]:
        """The words of `run` that make it."""
        options = ["--detach", "--name", request.name]
        options += ["--label", f"{LABEL}={self._label}", "--label", f"{SPACE}={request.name}"]
        options += ["--network", "none" if request.own_network else "host", "--cgroupns", "private"]
        options += ["--user", f"{request.user.uid}:{request.user.gid}", "--cap-drop", "ALL"]
        options += ["--security-opt", "no-new-privileges", "--log-driver", "none"]
        # The first process of a namespace hears nothing else.
        options += ["--stop-signal", "KILL"]
        options += ["--shm-size", str(request.shared_memory), "--workdir", "/"]
        options += ["--volume", f"{request.holder}:{HOLD}:ro"]
        if request.own_network:
            options += ["--hostname", "carrel"]
        return [*options, *self.made_of(request)]

    def made_of(self, request: ContainerRequest) -> Sequence[str]:
        """The end of the command line."""
        raise NotImplementedError

    def _run(self, words: Sequence[str]) -> str:
        """The id."""
        try:
            return self.call("run", *words, most_s=RUN_S)
        except ContainerUnavailable as error:
            if any(one in error.message for one in _TAKEN):
                self.remove(words[words.index("--name") + 1])
            elif not self.mend(error.message):
                raise
        return self.call("run", *words, most_s=RUN_S)

    def mend(self, _problem: str) -> bool:
        """Whether it is worth another try."""
        return False

    def _process(self, name: str, said: str) -> ContainerProcess:
        pid = int(self.call("inspect", "--format", "{{.State.Pid}}", name).strip() or 0)
        started = processes.start_time(pid) if pid > 1 else None
        if started is None:
            raise ContainerUnavailable(
                f"The container of {self.name} ended at once.", hint="Run `carrel doctor`."
            )
        container = said.split()[-1]
        try:
            groups = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            groups = ""
        if container not in groups:
            # An engine in a virtual machine, or elsewhere, has numbers of its own.
            raise ContainerUnavailable(
                f"The containers of {self.name} are not processes of this machine.",
                hint="Use an engine that runs on this machine itself.",
            )
        return ContainerProcess(pid, started)

    def remove(self, name: str) -> None:
        """Idempotent."""
        try:
            self.call("rm", "--force", name)
        except ContainerUnavailable as error:
            gone = ("no such container", "no container with", "already in progress")
            if not any(one in error.message.lower() for one in gone):
                raise

    def known(self) -> list[str]:
        """The names of all of this data folder's."""
        options = ("--all", "--filter", f"label={LABEL}={self._label}", "--format", "{{.Names}}")
        return self.call("ps", *options).split()

    def call(self, *words: str, most_s: float = 0.0, given: bytes | None = None) -> str:
        """What it prints. It has `ANSWER_S` unless something else is said."""
        most_s = most_s or ANSWER_S
        try:
            process = subprocess.Popen(
                [*self.words(), *words],
                env=dict(self.environment()),
                cwd="/",
                stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ContainerUnavailable(
                f"{self.name} cannot be started: {error.strerror}.",
                hint=f"sudo apt-get install {self.package}",
            ) from None
        with process:
            try:
                out, errors = process.communicate(given, most_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise ContainerUnavailable(
                    f"{self.name} hangs: `{words[0]}` did not end within {most_s:.0f} s.",
                    hint=f"Try `{self.name} info`, and restart its daemon if it has one.",
                ) from None
        if process.returncode != 0:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it says nothing"]
            told = next((one for one in lines if "rror" in one), lines[-1]).rstrip(".?! ")
            raise ContainerUnavailable(
                f"{self.name} failed: {told[-500:]}.", hint="Run `carrel doctor`, and try again."
            )
        return out.decode(errors="replace")


class PodmanContainers(ContainerEngine):
    """With a store of our own, which has no images: a container is made of a folder."""

    name = "podman"
    oldest = (4, 0)
    package = "podman runc"
    takes_root = True

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data)
        self._folder = folder

    def words(self) -> Sequence[str]:
        places = ("--root", f"{self._folder}/root", "--runroot", str(run_folder(self._folder)))
        return ("podman", *places, "--tmpdir", f"{self._folder}/tmp", "--storage-driver", "vfs")

    def environment(self) -> Mapping[str, str]:
        settings = self._folder / "containers.conf"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.write_text(_settings())
        return {**os.environ, "CONTAINERS_CONF": str(settings)}

    def _version(self) -> tuple[int, int]:
        found = _VERSION.search(self.call("--version"))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def remove(self, name: str) -> None:
        super().remove(name)
        notes = run_folder(self._folder)
        if not notes.is_relative_to(self._folder) and not self.known():
            shutil.rmtree(notes, ignore_errors=True)

    def made_of(self, request: ContainerRequest) -> Sequence[str]:
        if ":" in str(request.root):
            raise ContainerUnavailable(
                "Podman makes no container of a folder with a colon in its path.",
                hint="Choose another data folder, or docker.",
            )
        mild = ("--passwd=false", "--no-hosts", "--systemd=false", "--rootfs")
        return (*mild, str(request.root), HOLD)


def run_folder(folder: Path) -> Path:
    """Of what podman notes while the machine is up; it takes no path of more than 50 characters."""
    own = folder / "run"
    if len(str(own)) <= LONGEST_RUN_FOLDER:
        return own
    return Path(f"/run/carrel-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}")


class DockerContainers(ContainerEngine):
    """The daemon of the person or the machine, with an image of ours that is empty."""

    name = "docker"
    oldest = (20, 10)
    package = "docker.io"

    def __init__(self, data: Path, socket: Path | None = None) -> None:
        super().__init__(data)
        self._socket = socket

    def environment(self) -> Mapping[str, str]:
        named = {} if self._socket is None else {"DOCKER_HOST": f"unix://{self._socket}"}
        return {**os.environ, **named}

    def made_of(self, request: ContainerRequest) -> Sequence[str]:
        return ("--pull", "never", _EMPTY, HOLD)

    def mend(self, problem: str) -> bool:
        if "No such image" not in problem:
            return False
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as files:
            for name in TOP_FOLDERS:
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                files.addfile(folder)
        self.call("import", "-", _EMPTY, given=archive.getvalue(), most_s=RUN_S)
        return True


def _settings() -> str:
    """Podman asks for more than a process may have, for systemd, and for crun, unless told else."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    tasks = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    files = MOST_FILES if files == resource.RLIM_INFINITY else min(files, MOST_FILES)
    tasks = most if tasks == resource.RLIM_INFINITY else min(tasks, most)
    runtime = next((one for one in RUNTIMES if shutil.which(one)), RUNTIMES[0])
    return (
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc={tasks}:{tasks}"]\n'
        f'[engine]\ncgroup_manager = "cgroupfs"\nruntime = "{runtime}"\nevents_logger = "none"\n'
    )
