"""Building with every engine that is here, for real: what comes of it, and what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from carrel.domain.engines import EngineWatch
from carrel.domain.errors import (
    EngineFailed,
    EngineTimeout,
    EngineUnavailable,
    ImageBuildFailed,
    InsufficientDisk,
    RequestCancelled,
)
from carrel.environments.engines.catalogue import Engines
from carrel.linux import cgroupfs
from tests.environments.engines.rig import (
    FROM,
    START_S,
    build,
    built,
    docker_daemon,
    project,
    until,
)
from tests.volumes import volume

SLEEPS = FROM + "RUN echo asleep && sleep 4321.5\n"


def assert_nothing_left(folder: Path) -> None:
    assert list((folder / "work").iterdir()) == []
    mark = Engines(folder)._place._mark
    groups = [tree.mount.glob(f"{mark}*") for tree in cgroupfs.hierarchies()]
    assert [group for found in groups for group in found] == []
    assert not [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if "4321.5" in (one.info["cmdline"] or [])
    ]
    for name in ("podman", "buildah"):
        containers = folder / name / "overlay-containers"
        if containers.is_dir():
            assert [one.name for one in containers.iterdir() if one.is_dir()] == []


def test_an_image_has_what_its_dockerfile_says(
    engines: Engines, engine: str, tmp_path: Path
) -> None:
    dockerfile = (
        FROM.replace("scratch", "scratch AS first")
        + "ARG WORD=none\nRUN echo $WORD >/word\nCOPY a b/* /copied/\n"
        + "FROM first AS second\nRUN echo second >/second\n"
    )
    files = {"a": "1", "b/c": "2", "b/d.log": "3", ".dockerignore": "**/*.log\n"}
    place = project(tmp_path / "project", dockerfile, files)
    heard: list[str] = []
    found = built(
        engines,
        build(place, args={"WORD": "given"}, target="first"),
        EngineWatch(heard.append),
        engine,
    )
    assert found["word"] == b"given\n"
    assert found["copied/a"] == b"1" and found["copied/c"] == b"2"
    assert "copied/d.log" not in found and "second" not in found
    assert any("RUN" in line for line in heard)
    assert_nothing_left(engines._place.folder)


@pytest.mark.parametrize("option", ["--mount", "--mo\\\nunt"], ids=["plain", "in two lines"])
def test_what_a_step_finds_in_its_mounts_counts(
    engines: Engines, engine: str, tmp_path: Path, option: str
) -> None:
    """Two projects have the same Dockerfile, which runs a file of each: none gets what the other
    has made."""
    dockerfile = FROM + f"RUN {option}=type=bind,target=/project sh /project/install\n"
    for word in ("one", "other"):
        place = project(tmp_path / word, dockerfile, {"install": f"echo {word} >/made\n"})
        try:
            found = built(engines, build(place), engine=engine)
        except ImageBuildFailed as error:
            # The old builder of docker knows no mounts.
            assert engine == "docker" and "requires BuildKit" in error.message
            return
        assert found["made"] == f"{word}\n".encode()


def test_a_step_that_fails_is_shown(engines: Engines, engine: str, tmp_path: Path) -> None:
    place = project(tmp_path / "project", FROM + "RUN echo the reason >&2; exit 7\n")
    with pytest.raises(ImageBuildFailed) as caught:
        built(engines, build(place), engine=engine)
    assert "the reason" in caught.value.message
    assert_nothing_left(engines._place.folder)


def test_a_build_that_hangs_ends(engines: Engines, engine: str, tmp_path: Path) -> None:
    place = project(tmp_path / "project", SLEEPS)
    with pytest.raises(EngineTimeout):
        built(engines, build(place, most_s=2.0), engine=engine)
    until(lambda: _settled(engines._place.folder))


def test_a_build_can_be_cancelled(engines: Engines, engine: str, tmp_path: Path) -> None:
    place = project(tmp_path / "project", SLEEPS)
    heard: list[str] = []

    def check() -> None:
        if any("asleep" in line and "echo" not in line for line in heard):
            raise RequestCancelled("Enough.")

    with pytest.raises(RequestCancelled):
        built(engines, build(place), EngineWatch(heard.append, check), engine)
    until(lambda: _settled(engines._place.folder))


def test_an_engine_that_dies_in_a_build(engines: Engines, engine: str, tmp_path: Path) -> None:
    """Its program, by a signal: as the machine ends what takes too much memory."""
    place = project(tmp_path / "project", SLEEPS)
    killed: list[int] = []

    def hear(line: str) -> None:
        if "asleep" in line and "echo" not in line and not killed:
            for one in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if one.name() == engine:
                        one.kill()
                        killed.append(one.pid)

    with pytest.raises((ImageBuildFailed, EngineFailed)):
        built(engines, build(place), EngineWatch(hear), engine)
    assert killed
    until(lambda: _settled(engines._place.folder))
    # The next works.
    place = project(tmp_path / "project", FROM)
    assert "bin/busybox" in built(engines, build(place), engine=engine)


def test_a_docker_daemon_that_goes_in_a_build(tmp_path: Path) -> None:
    place = project(tmp_path / "project", SLEEPS)
    with docker_daemon() as socket:
        engines = Engines(tmp_path / "engines", docker=socket, keep_free=64 << 20)

        def hear(line: str) -> None:
            if "asleep" in line and "echo" not in line:
                os.kill(int((socket.parent / "pid").read_text()), signal.SIGTERM)

        with pytest.raises((ImageBuildFailed, EngineFailed)):
            built(engines, build(place), EngineWatch(hear), "docker")
        until(lambda: not engines.all[-1].probe().available)
        with pytest.raises(EngineUnavailable):
            built(engines, build(place), engine="docker")
    until(lambda: _settled(engines._place.folder))


def _settled(folder: Path) -> bool:
    """Docker's daemon takes a moment to notice."""
    try:
        assert_nothing_left(folder)
    except AssertionError:
        return False
    return True


def test_what_floods_is_cut(engines: Engines, engine: str, tmp_path: Path) -> None:
    flood = "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | dd bs=64k count=100 iflag=fullblock"
    step = f"RUN {flood} 2>/dev/null; exit 3\n"
    place = project(tmp_path / "project", FROM + step)
    heard: list[str] = []
    with pytest.raises(ImageBuildFailed) as caught:
        built(engines, build(place), EngineWatch(heard.append), engine)
    assert len(heard) < 20_000
    assert len(caught.value.message) < 40_000


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_build_that_fills_the_disk_ends(tmp_path: Path) -> None:
    place = project(
        tmp_path / "project",
        FROM + "RUN dd if=/dev/zero of=/big bs=1M count=2000 && sleep 4321.5\n",
    )
    with volume("ext4") as disk:
        engines = Engines(disk, keep_free=150 << 20)
        if not engines.all[0].probe().available:
            pytest.skip("podman does not work here")
        with pytest.raises((InsufficientDisk, ImageBuildFailed)):
            built(engines, build(place), engine="podman")
        assert_nothing_left(disk)
        engines.empty()
        assert list((disk / "podman").iterdir()) == []


_KILLED = """
import sys
from pathlib import Path
from carrel.domain.engines import BuildNetwork, EngineWatch, ImageBuild
from carrel.environments.engines.catalogue import Engines
folder, project, engine = sys.argv[1:]
build = ImageBuild(Path(project), network=BuildNetwork.NONE)
watch = EngineWatch(lambda line: print(line, flush=True))
with Engines(Path(folder), keep_free=0).build(build, watch, engine=engine):
    pass
"""


@pytest.mark.parametrize("name", ["podman", "buildah"])
def test_a_killed_daemon_leaves_nothing(name: str, engine_folder: Path, tmp_path: Path) -> None:
    engines = Engines(engine_folder, keep_free=0)
    if not next(one.probe() for one in engines.all if one.name == name).available:
        pytest.skip(f"{name} does not work here")
    place = project(tmp_path / "project", SLEEPS)
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, engine_folder, place, name],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "asleep":
                break
        process.send_signal(signal.SIGKILL)
    engines.tidy()
    until(lambda: _settled(engine_folder))


def test_builds_side_by_side(engine_folder: Path, tmp_path: Path) -> None:
    """One that fails meanwhile does not disturb the others."""
    from concurrent.futures import ThreadPoolExecutor

    engines = Engines(engine_folder, keep_free=0)
    if not engines.all[0].probe().available:
        pytest.skip("podman does not work here")
    places = [
        project(tmp_path / str(n), FROM + f"RUN echo {n} >/n && sleep 0.3 && test {n} != 1\n")
        for n in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(built, engines, build(one), engine="podman") for one in places]
        assert isinstance(futures[1].exception(START_S * 2), ImageBuildFailed)
        assert futures[0].result(START_S)["n"] == b"0\n"
        assert futures[2].result(START_S)["n"] == b"2\n"
    assert_nothing_left(engine_folder)
