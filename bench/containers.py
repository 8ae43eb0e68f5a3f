"""podman and docker as rivals: with storage of their own, an image made here, and a running
container to execute in. Everything is gone afterwards."""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.measuring import say
from bench.sandbox_rivals import WORDS, Rival, last_line

STEP_S = 300.0
"""To import an image with a large project in it takes a minute on a slow disk; to start or
remove one container, a second."""
DAEMON_S = 30.0
"""Until dockerd answers, or has ended."""
_HIERARCHIES = Path("/sys/fs/cgroup")
_DRIVER = {
    "podman": ("info", "--format", "{{.Store.GraphDriverName}}"),
    "docker": ("info", "--format", "{{.Driver}}"),
}
_CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Unavailable(Exception):
    """Why this engine cannot be measured here."""


@dataclass(frozen=True)
class Engine:
    """`argv` is how it is called, before the verb."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]

    def ask(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [*self.argv, *words],
                capture_output=True,
                text=True,
                env={**os.environ, **self.env},
                timeout=STEP_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(str(error)) from error
        if done.returncode != 0:
            raise Unavailable(last_line(done.stderr) or f"{words[0]} ended with {done.returncode}")
        return done.stdout


@contextmanager
def container_rivals(
    place: Path, project: Path | None = None
) -> Iterator[tuple[list[Rival], dict[str, str]]]:
    """Those that work, and for the others why not. With a project, every container has a
    private copy of it: it is in the image."""
    rivals: list[Rival] = []
    missing: dict[str, str] = {}
    with _control_groups_as_before(), ExitStack() as stack:
        for name, opened in (("podman", own_podman), ("docker", _docker)):
            say(f"setting up {name}")
            folder = place / name
            folder.mkdir()
            try:
                engine = stack.enter_context(opened(folder))
                rivals += stack.enter_context(_ready(engine, folder, project))
            except Unavailable as error:
                missing[name] = str(error)
        yield rivals, missing


@contextmanager
def _control_groups_as_before() -> Iterator[None]:
    """Both leave theirs, empty, when their last container has gone."""
    before = _control_groups()
    try:
        yield
    finally:
        for top in _control_groups() - before:
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)


def _control_groups() -> set[Path]:
    """Those of others come and go meanwhile."""
    names = {"docker", "libpod_parent"}
    walked = os.walk(_HIERARCHIES)
    return {Path(place, name) for place, folders, _ in walked for name in names & {*folders}}


@contextmanager
def waiting_containers(
    place: Path, project: Path
) -> Iterator[tuple[dict[str, tuple[Engine, str]], dict[str, str]]]:
    """A container that waits and has `cat` and the project, of each engine that answers as it
    is: none is started. By the engine's name; for the others why not."""
    found: dict[str, tuple[Engine, str]] = {}
    missing: dict[str, str] = {}
    with _control_groups_as_before(), ExitStack() as stack:
        for name, opened in (("podman", own_podman), ("docker", _running_docker)):
            folder = place / f"{name}-waiting"
            folder.mkdir()
            try:
                engine = stack.enter_context(opened(folder))
                held = _waiting(engine, folder, ("cat", "sleep"), project)
                found[name] = (engine, stack.enter_context(held))
            except Unavailable as error:
                missing[name] = str(error)
        yield found, missing


@contextmanager
def _ready(engine: Engine, folder: Path, project: Path | None) -> Iterator[list[Rival]]:
    """An image with two programs of this machine, and a container that waits."""
    with _waiting(engine, folder, ("sh", "sleep"), project) as mark:
        run = ("run", "--rm", "--network=none", "--pull=never", mark, *WORDS)
        yield [
            Rival(f"{engine.name} run", (*engine.argv, *run), engine.env),
            Rival(f"{engine.name} exec", (*engine.argv, "exec", mark, *WORDS), engine.env),
        ]


@contextmanager
def _waiting(
    engine: Engine, folder: Path, programs: Sequence[str], project: Path | None
) -> Iterator[str]:
    """The name of an image, and of a container of it that sleeps."""
    mark = f"carrel-bench-{secrets.token_hex(4)}"
    if project is not None and (driver := engine.ask(*_DRIVER[engine.name]).strip()) == "vfs":
        raise Unavailable(f"its storage here ({driver}) copies the whole image each time")
    archive = folder / "image.tar"
    write_image(archive, programs, project)
    engine.ask("import", str(archive), mark)
    archive.unlink()
    try:
        held = ("run", "--detach", "--network=none", "--pull=never", "--name", mark, mark)
        engine.ask(*held, "sleep", "3600")
        yield mark
    finally:
        # Killed first: it would have ten seconds to end by itself, and does not.
        for words in (("kill", mark), ("rm", "--force", mark), ("rmi", "--force", mark)):
            try:
                engine.ask(*words)
            except Unavailable as error:
                say(f"{engine.name} {words[0]}: {error}")


@contextmanager
def own_podman(folder: Path) -> Iterator[Engine]:
    if shutil.which("podman") is None:
        raise Unavailable("not installed")
    conf = folder / "containers.conf"
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    conf.write_text(_CONTAINERS_CONF + runtime)
    stores = ("--root", str(folder / "root"), "--runroot", str(folder / "run"))
    env = {"CONTAINERS_CONF": str(conf)}
    if os.geteuid() != 0:
        # Else it keeps things in the home folder, and in /tmp for good.
        env |= {name: str(folder) for name in ("HOME", "XDG_RUNTIME_DIR", "TMPDIR")}
    yield Engine("podman", ("podman", *stores), env)


@contextmanager
def _docker(folder: Path) -> Iterator[Engine]:
    """One that runs already, else one of our own."""
    try:
        running = _answering_docker()
    except Unavailable as error:
        if os.geteuid() != 0 or shutil.which("dockerd") is None:
            raise Unavailable(
                f"{error} (and dockerd is not installed, or this is not root)"
            ) from None
        with _dockerd(folder) as engine:
            yield engine
    else:
        yield running


@contextmanager
def _running_docker(_folder: Path) -> Iterator[Engine]:
    yield _answering_docker()


def _answering_docker() -> Engine:
    if shutil.which("docker") is None:
        raise Unavailable("not installed")
    engine = Engine("docker", ("docker",), {})
    engine.ask("version")
    return engine


@contextmanager
def _dockerd(folder: Path) -> Iterator[Engine]:
    """In mount and network namespaces of its own, where it changes nothing for others."""
    address = f"unix://{folder}/socket"
    argv = ["unshare", "--mount", "--net", "dockerd", "--host", address, "--bridge=none"]
    argv += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    argv += ["--pidfile", f"{folder}/pid", "--iptables=false", "--ip6tables=false"]
    # Without the right to raise limits, and to make itself less likely to be killed.
    argv += ["--default-ulimit", "nofile=1024:20000", "--oom-score-adjust", "0"]
    engine = Engine("docker", ("docker", "--host", address), {})
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await_daemon(engine, daemon, folder / "log")
        yield engine
    finally:
        daemon.terminate()
        try:
            daemon.wait(DAEMON_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _await_daemon(engine: Engine, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DAEMON_S
    while True:
        try:
            engine.ask("version")
            return
        except Unavailable:
            if daemon.poll() is not None or time.monotonic() > deadline:
                said = last_line(log.read_text(errors="replace"))
                raise Unavailable(f"dockerd did not start: {said}") from None
            time.sleep(0.2)


def write_image(archive: Path, programs: Sequence[str], project: Path | None = None) -> None:
    """A root folder with these programs of the host and the libraries they load, and the
    project in /workspace."""
    with tarfile.open(archive, "w") as tar:
        for folder in ("proc", "sys", "dev", "etc", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for library in sorted({path for name in programs for path in _libraries(name)}):
            _add(tar, library, library)
        for name in programs:
            _add(tar, _program(name), f"/bin/{name}")
        if project is not None:
            tar.add(project, "workspace")


def _add(tar: tarfile.TarFile, source: str, target: str) -> None:
    content = Path(source).read_bytes()
    entry = tarfile.TarInfo(target.lstrip("/"))
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"this machine has no {name} to put into an image")
    return found


def _libraries(name: str) -> list[str]:
    """The loader's own list; none for a program that needs none."""
    told = subprocess.run(
        ["ldd", _program(name)], capture_output=True, text=True, timeout=STEP_S, check=False
    )
    return re.findall(r"(/\S+) \(0x", told.stdout)
