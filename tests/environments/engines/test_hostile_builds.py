"""What a Dockerfile tries to reach of the host: there is nothing of it where an engine runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.domain.engines import BuildNetwork
from carrel.domain.errors import CarrelError, EngineError, EnvironmentRefused
from carrel.environments.engines.catalogue import Engines
from carrel.environments.engines.processes import EngineBounds, run_engine
from carrel.environments.engines.sandbox import STORE, WORK, EngineSandbox
from tests.environments.engines.rig import FROM, build, built, project, rootfs

pytestmark = pytest.mark.parametrize("engine", ["podman", "docker"])
"""Buildah is the same program as podman here."""
SECRET = "swordfish-of-the-host"

FROM_FILES = ["FROM tarball:{0}/secret.tar\n", "FROM oci-archive:{0}/secret.tar\n"]
FROM_FILES += ["FROM dir:{0}\n", FROM + "COPY --from=tarball:{0}/secret.tar / /stolen/\n"]
STEPS = [
    FROM + "RUN --mount=type=bind,source=../../secret,target=/s cat /s\n",
    FROM + "RUN --mount=type=bind,source=out,target=/s cat /s/secret\n",
    FROM + "COPY out/secret /\nRUN cat /secret\n",
    FROM + "COPY out /out\nRUN cat /out/secret\n",
    FROM + "COPY ../../secret /\nRUN cat /secret\n",
    FROM + "ADD {0}/secret /\nRUN cat /secret\n",
    "# syntax=localhost/nobody\n" + FROM + "RUN cat {0}/secret\n",
]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the host with secrets in it, beside the project."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret.tar").write_bytes(rootfs())
    return tmp_path


def said(engines: Engines, engine: str, place: Path, **options: object) -> str:
    """All that the build says, and what is in its image."""
    try:
        return repr(built(engines, build(place, **options), engine=engine))
    except CarrelError as error:
        assert isinstance(error, EngineError | EnvironmentRefused)
        return str(error)


@pytest.mark.parametrize("dockerfile", FROM_FILES + STEPS)
def test_no_build_reads_the_host(
    engines: Engines, engine: str, host: Path, dockerfile: str
) -> None:
    place = project(host / "project", dockerfile.format(host))
    (place / "out").symlink_to(host)
    found = said(engines, engine, place)
    assert SECRET not in found
    assert "stolen/bin" not in found
    if dockerfile in FROM_FILES:
        assert "bin/busybox" not in found


def test_a_dockerfile_that_is_a_link(engines: Engines, engine: str, host: Path) -> None:
    place = project(host / "project", FROM)
    (place / "Linked").symlink_to(host / "secret")
    assert SECRET not in said(engines, engine, place, dockerfile="Linked")


def test_a_dockerfile_for_the_preprocessor(engines: Engines, engine: str, host: Path) -> None:
    place = project(host / "project", FROM, {"Dockerfile.in": f'#include "{host}/secret"\n{FROM}'})
    for network in (BuildNetwork.NONE, BuildNetwork.HOST):
        found = said(engines, engine, place, dockerfile="Dockerfile.in", network=network)
        assert SECRET not in found


def test_a_context_that_leads_out(engines: Engines, engine: str, host: Path) -> None:
    place = project(host / "project", FROM + "COPY secret /\nRUN cat /secret\n")
    (place / "out").symlink_to(host)
    assert SECRET not in said(engines, engine, place, context="out")


LED_OUT = (
    'RUN ["/bin/busybox", "ln", "-s", "/", "/up"]\n'
    "FROM scratch\nADD rootfs.tar /\n"
    "RUN --mount=type=bind,from=first,source=/up,target=/x,rw "
    "cat /x/proc/sys/kernel/core_pattern /x/etc/passwd > /stolen && touch /x/engine/planted\n"
)


def test_a_mount_of_a_link_leads_nowhere(engines: Engines, engine: str, host: Path) -> None:
    """Old engines follow it to what they see themselves: their store, and the kernel's settings."""
    dockerfile = FROM.replace("FROM scratch", "FROM scratch AS first") + LED_OUT
    found = said(engines, engine, project(host / "project", dockerfile))
    assert "root:" not in found and "'stolen'" not in found


TRIES = f"""
try() {{ ( "$@" ) 2>/dev/null && echo "out: $*"; }}
for path in /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sysrq-trigger \
    /sys/kernel/uevent_helper /sys/fs/cgroup/*/release_agent /proc/sys/vm/overcommit_memory
do [ -e $path ] && try dd if=/dev/null of=$path conv=notrunc count=0; done
for path in /etc/ld.so.preload /planted /etc/containers/planted /usr/planted
do try touch $path; done
try touch /run/fine; try touch {WORK}/fine; try touch {STORE}/fine
"""


def test_where_an_engine_runs_nothing_of_the_kernel_can_be_set(
    engines: Engines, engine: str, tmp_path: Path
) -> None:
    """A step that gets out of its container is root there."""
    if engine != "podman":
        pytest.skip("docker runs elsewhere")
    work, store = tmp_path / "work", tmp_path / "store"
    work.mkdir()
    store.mkdir()
    sandbox = EngineSandbox(work, store, privileged=True)
    found = run_engine(
        sandbox.argv("/bin/sh", "-c", TRIES), sandbox.environment(), EngineBounds(60.0)
    )
    fine = [f"out: touch {place}/fine" for place in ("/run", WORK, STORE)]
    assert [line for line in found.lines if "/dev/null" not in line] == fine, found.text
    agents = [line for line in found.lines if "release_agent" in line]
    # They are there, and are not the kernel's.
    assert len(found.lines) == len(fine) + len(agents)
    for agent in Path("/sys/fs/cgroup").glob("*/release_agent"):
        assert not agent.read_text().strip()
