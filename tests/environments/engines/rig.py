"""Real engines and a small image for the tests of engines. No registry is reached."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from carrel.domain.engines import UNWATCHED, BuildNetwork, EngineWatch, ImageBuild
from carrel.environments.engines.catalogue import Engines
from tests.folders import remove_folder, unmount_below
from tests.load.patience import SLOWER

BUSYBOX = Path("/bin/busybox")
START_S = 20.0 * SLOWER
APPLETS = (
    *("sh", "cat", "chmod", "cut", "dd", "echo", "grep", "ln", "ls", "mkdir", "rm", "sleep"),
    *("test", "yes"),
)
FROM = "FROM scratch\nADD rootfs.tar /\n"
"""How the Dockerfiles of tests begin; the archive is in every project of `project`."""


def rootfs() -> bytes:
    """An archive with a static busybox."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(BUSYBOX, "bin/busybox", filter=_plain)
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
    return stream.getvalue()


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def need_busybox() -> None:
    # One that is linked to libraries cannot run in an image of its own.
    if not BUSYBOX.is_file() or b"/ld-linux" in BUSYBOX.read_bytes()[: 1 << 12]:
        pytest.skip("busybox-static is not installed")


def project(folder: Path, dockerfile: str, files: Mapping[str, str] | None = None) -> Path:
    need_busybox()
    folder.mkdir(exist_ok=True)
    (folder / "rootfs.tar").write_bytes(rootfs())
    for name, text in {"Dockerfile": dockerfile, **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def build(folder: Path, **options: object) -> ImageBuild:
    values = {"network": BuildNetwork.NONE, "most_s": 60.0 * SLOWER, **options}
    return ImageBuild(folder, **values)  # type: ignore[arg-type]


def image_files(stream: BinaryIO) -> dict[str, bytes]:
    """What the layers of an archive of either kind have, later ones last; no whiteouts."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream) as archive:
        for name in _layers(archive):
            member = archive.extractfile(name)
            assert member is not None
            with tarfile.open(fileobj=io.BytesIO(member.read())) as layer:
                for one in layer:
                    content = layer.extractfile(one) if one.isreg() else None
                    found[one.name.removeprefix("./")] = content.read() if content else b""
    return found


def _layers(archive: tarfile.TarFile) -> list[str]:
    def blob(digest: str) -> str:
        return "blobs/" + digest.replace(":", "/")

    def load(name: str) -> Any:
        member = archive.extractfile(name)
        assert member is not None
        content = json.load(member)
        return content[0] if isinstance(content, list) else content

    if "manifest.json" in archive.getnames():
        return [str(layer) for layer in load("manifest.json")["Layers"]]
    manifest = load(blob(load("index.json")["manifests"][0]["digest"]))
    return [blob(layer["digest"]) for layer in manifest["layers"]]


def built(
    engines: Engines, what: ImageBuild, watch: EngineWatch = UNWATCHED, engine: str = "auto"
) -> dict[str, bytes]:
    with engines.build(what, watch, engine=engine) as stream:
        return image_files(stream)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def docker_daemon() -> Iterator[Path]:
    """The socket of a daemon of our own, which touches no network of the host."""
    if os.geteuid() != 0:
        pytest.skip("dockerd needs root")
    program = shutil.which("dockerd", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("docker.io is not installed")
    folder = Path(tempfile.mkdtemp(prefix="carrel-docker-"))
    socket, log = folder / "docker.sock", folder / "log"
    options = ["-H", f"unix://{socket}", "--data-root", f"{folder}/data"]
    options += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", "--bridge=none"]
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [program, *options, "--iptables=false", "--ip6tables=false"],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)},
        )
    try:
        _wait_for(socket, daemon, log)
        yield socket
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(START_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        unmount_below(folder)
        remove_folder(folder)


def _wait_for(socket: Path, daemon: subprocess.Popen[bytes], log: Path) -> None:
    from carrel.environments.engines.docker import DockerSilent, ask_docker

    deadline = time.monotonic() + START_S
    while True:
        try:
            ask_docker(socket, "/version")
            return
        except DockerSilent:
            said = log.read_text()[-2000:]
            if daemon.poll() is not None:
                pytest.skip(f"dockerd does not start here: {said}")
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
