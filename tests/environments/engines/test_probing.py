"""Each way in which an engine cannot be used has a clear word."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.errors import (
    EngineError,
    EngineUnavailable,
    EnvironmentRefused,
    ImageNotInEngine,
)
from carrel.environments.engines import docker, own
from carrel.environments.engines.catalogue import Engines, check_image_name
from carrel.environments.engines.docker import DockerEngine
from carrel.environments.engines.own import PODMAN, OwnEngine, OwnEngineProgram, containers_conf
from carrel.environments.engines.place import EnginePlace
from tests.environments.engines.rig import FROM, build, built, image_files, project


@pytest.fixture
def place(tmp_path: Path) -> EnginePlace:
    return EnginePlace(tmp_path / "engines")


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        yield path, server


def answering(server: socket.socket, answer: bytes) -> None:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()


def test_no_docker(place: EnginePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    answer = DockerEngine(place).probe()
    assert not answer.available and "no socket" in answer.reason
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert "No docker daemon" in DockerEngine(place).probe().reason


def test_a_docker_that_has_died(place: EnginePlace, tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
    assert "No daemon answers" in DockerEngine(place, path).probe().reason


def test_a_docker_that_hangs(
    place: EnginePlace,
    listening: tuple[Path, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docker, "ANSWER_S", 0.2)
    assert "hangs" in DockerEngine(place, listening[0]).probe().reason


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"Version": "1.9", "ApiVersion": "1.21"}', "too old"),
        (b"[]", "too old"),
        (b"<html>", "not docker"),
        (b"\xff" * 100, "not docker"),
    ],
)
def test_a_docker_that_is_none(
    place: EnginePlace, listening: tuple[Path, socket.socket], body: bytes, word: str
) -> None:
    path, server = listening
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    answering(server, head + body)
    answer = DockerEngine(place, path).probe()
    assert not answer.available and word in answer.reason


def test_something_else_listens(place: EnginePlace, listening: tuple[Path, socket.socket]) -> None:
    answering(listening[1], b"SSH-2.0-OpenSSH\r\n\r\n")
    assert "not docker" in DockerEngine(place, listening[0]).probe().reason


def test_an_engine_that_is_missing_or_too_old(place: EnginePlace) -> None:
    missing = OwnEngineProgram("podman-of-nobody", (4, 0), "podman")
    answer = OwnEngine(missing, place).probe()
    assert not answer.available and "apt-get install podman" in answer.remedy
    if not OwnEngine(PODMAN, place).probe().available:
        pytest.skip("podman does not work here")
    newer = OwnEngineProgram("podman", (99, 0), "podman")
    assert "too old: at least 99.0" in OwnEngine(newer, place).probe().reason


def test_an_engine_that_hangs(place: EnginePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    if not OwnEngine(PODMAN, place).probe().available:
        pytest.skip("podman does not work here")
    monkeypatch.setattr(own, "PROBE_S", 0.0)
    assert "hangs" in OwnEngine(PODMAN, place).probe().reason


def test_no_engine_names_all_reasons(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable) as caught:
        Engines(tmp_path, docker=tmp_path / "none").best("docker")
    assert "no socket" in caught.value.message
    with pytest.raises(EngineUnavailable):
        Engines(tmp_path).best("nonsense")


def test_podman_is_not_asked_for_more_than_this_process_may() -> None:
    import tomllib

    settings = tomllib.loads(containers_conf())
    files, processes = (one.split("=")[1] for one in settings["containers"]["default_ulimits"])
    assert int(files.split(":")[0]) <= 1 << 20
    assert int(processes.split(":")[0]) <= int(Path("/proc/sys/kernel/pid_max").read_text())


NAMES = ["debian", "debian:12", "ghcr.io/owner/name:tag", "localhost:5000/a/b@sha256:" + "0" * 64]
NO_NAMES = ["", "-v", "dir:x", "tarball:/etc/passwd", "oci-archive:x", "docker://debian", "../x"]
NO_NAMES += ["a b", "a\nb", "/etc", "Debian", "a:" + "x" * 200, "x" * 600, "containers-storage:a"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_images(name: str) -> None:
    assert check_image_name(name) == name


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_of_an_image(name: str) -> None:
    with pytest.raises(EnvironmentRefused):
        check_image_name(name)


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_a_registry_that_does_not_answer(engines: Engines, engine: str) -> None:
    with pytest.raises(EngineError), engines.pull("localhost:1/nobody/nothing", engine=engine):
        pass


@pytest.mark.parametrize("engine", ["podman"])
def test_an_image_that_nobody_has(engines: Engines) -> None:
    with pytest.raises(ImageNotInEngine, match="image pull"), engines.save("localhost/nobody"):
        pass


def test_an_image_of_the_person(
    engine_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a person has pulled or built already is found, in their own store."""
    import subprocess

    engines = Engines(engine_folder, keep_free=0)
    if os.geteuid() != 0 or not engines.all[0].probe().available:
        pytest.skip("podman does not work here")
    (tmp_path / "containers.conf").write_text(containers_conf())
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/own"\nrunroot = "{tmp_path}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_CONF", f"{tmp_path}/containers.conf")
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", f"{tmp_path}/storage.conf")
    place = project(tmp_path / "project", FROM)
    archive = tmp_path / "rootfs.tar"
    archive.write_bytes((place / "rootfs.tar").read_bytes())
    subprocess.run(["podman", "import", archive, "localhost/own:1"], check=True, timeout=60)
    with engines.save("localhost/own:1") as stream:
        assert "bin/busybox" in image_files(stream)


@pytest.mark.parametrize("engine", ["podman"])
def test_what_is_built_is_saved_again(engines: Engines, engine: str, tmp_path: Path) -> None:
    """An image in the store is found by its name; the names of builds are gone."""
    built(engines, build(project(tmp_path / "project", FROM)), engine=engine)
    with pytest.raises(ImageNotInEngine), engines.save("localhost/carrel-build:latest"):
        pass
