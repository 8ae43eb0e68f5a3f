"""Spaces whose image is in a container of podman: made, used, lost, and gone with the space."""

from __future__ import annotations

import os
import select
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from carrel.domain.ids import dev_id
from carrel.launcher.client import Launcher
from carrel.runtimes.container_engines import ContainerEngine, PodmanContainers
from carrel.runtimes.containers import FOLDER
from tests.busybox import busybox_image
from tests.conformance.runtime_rig import WAIT_S
from tests.container_engines import forget_podman, missing
from tests.daemon.rig import Daemon, bad, fresh_daemon, good
from tests.daemon.test_images import make, sh

pytestmark = pytest.mark.skipif(bool(missing("podman")), reason=missing("podman"))


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found
        forget_podman(found.data / FOLDER / "podman")


@pytest.fixture
def client(shared: Daemon) -> httpx.Client:
    return shared.local()


@pytest.fixture
def space(client: httpx.Client, shared: Daemon) -> Iterator[str]:
    space = make(client, busybox_image(shared.data, user="worker"), runtime="podman")
    yield space
    good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    assert podman(shared).known() == []


def podman(daemon: Daemon) -> ContainerEngine:
    return PodmanContainers(daemon.data, daemon.data / FOLDER / "podman")


def first_process(daemon: Daemon, space: str) -> int:
    return int(podman(daemon).call("inspect", "--format", "{{.State.Pid}}", dev_id(space)))


def test_commands_run_in_the_container_and_the_agent_beside_it(
    client: httpx.Client, space: str, shared: Daemon
) -> None:
    assert podman(shared).known() == [dev_id(space)]
    assert sh(client, space, "test -x /bin/busybox && test ! -e /usr && id -u") == (0, "0\n")
    assert sh(client, space, "readlink /proc/self/ns/pid") == (
        0,
        os.readlink(f"/proc/{first_process(shared, space)}/ns/pid") + "\n",
    )
    assert sh(client, space, "echo one > a; mkdir /opt; echo x > /opt/x") == (0, "")
    assert sh(client, space, "cat a; test -d /usr/bin && id -un", place="agent") == (
        0,
        "one\nuser\n",
    )
    # They have one network.
    look = "readlink /proc/self/ns/net"
    nets = [sh(client, space, look, place=place)[1] for place in ("dev", "agent")]
    assert nets[0] == nets[1] != os.readlink("/proc/self/ns/net") + "\n"
    sh(client, space, "nc -l -p 3000 > /dev/null 2>&1 < /dev/null & echo $!")
    assert wait_for_port(client, space) == [3000]
    proof = good(client.post(f"/v1/spaces/{space}/verify", json={}))
    assert proof["holds"], proof


def test_how_it_is_made_is_there_to_read(shared: Daemon, space: str) -> None:
    text = (shared.data / "spaces" / space / "containers/podman.sh").read_text()
    words = shlex.split(text, comments=True)
    assert words[0] == "podman" and "run" in words and dev_id(space) in words
    assert "never read back" in text


def test_set_user_id_programs_of_an_image_give_nothing(
    client: httpx.Client, shared: Daemon, tmp_path: Path
) -> None:
    """Nor do capabilities of files, which no image has: nobody gains rights by a program."""
    image = busybox_image(tmp_path)
    os.chmod(image / "bin/busybox", 0o4755)
    space = make(client, image, runtime="podman")
    code, text = sh(client, space, "busybox grep -E '^(NoNew|CapPrm|CapBnd)' /proc/self/status")
    assert code == 0 and "NoNewPrivs:\t1" in text, text
    pid = first_process(shared, space)
    status = Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "CapBnd:\t0000000000000000" in status
    good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))


def wait_for_port(client: httpx.Client, space: str) -> list[int]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = good(client.get(f"/v1/spaces/{space}/ps"))["listening"]
        if found:
            return [one["port"] for one in found]
        time.sleep(0.05)
    return []


def test_one_that_is_removed_behind_our_back_is_made_anew(
    client: httpx.Client, space: str, shared: Daemon
) -> None:
    assert sh(client, space, "echo kept > /etc/motd; echo kept > a") == (0, "")
    podman(shared).remove(dev_id(space))
    assert sh(client, space, "cat /etc/motd a") == (0, "kept\nkept\n")
    first = os.pidfd_open(first_process(shared, space))
    signal.pidfd_send_signal(first, signal.SIGKILL)
    # What begins in it meanwhile is killed with it.
    assert select.select([first], [], [], WAIT_S)[0]
    os.close(first)
    assert sh(client, space, "cat /etc/motd a") == (0, "kept\nkept\n")


def test_a_launcher_and_a_daemon_that_die_find_it_again(shared: Daemon) -> None:
    client = shared.local()
    space = make(client, busybox_image(shared.data, user="worker"), runtime="podman")
    before = first_process(shared, space)
    body = {"argv": ["sh", "-c", "touch up; while [ ! -e go ]; do sleep 0.1; done; echo done"]}
    run = good(client.post(f"/v1/spaces/{space}/runs", json=body))["id"]
    assert sh(client, space, "while [ ! -e up ]; do sleep 0.1; done")[0] == 0
    shared.kill()
    launcher = Launcher(shared.data)
    os.kill(launcher.about()[1], signal.SIGKILL)
    launcher.close()
    shared.start()
    client = shared.local()
    # In the same network, too.
    look = "readlink /proc/self/ns/net"
    nets = [sh(client, space, look, place=place)[1] for place in ("dev", "agent")]
    assert nets[0] == nets[1]
    assert sh(client, space, "touch go") == (0, "")
    ended = good(client.get(f"/v1/runs/{run}/wait", params={"timeout_s": 60}))
    assert first_process(shared, space) == before
    assert ended["state"] == "exited" or ended["exit"] is not None, ended
    good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    assert podman(shared).known() == []


def test_what_a_lost_space_has_left_goes_at_the_start(shared: Daemon, tmp_path: Path) -> None:
    """A container that is ours by its label, of a space that is in no record."""
    engine, client = podman(shared), shared.local()
    # A data folder where there never was a container is not looked at.
    space = make(client, busybox_image(shared.data, user="worker"), runtime="podman")
    good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    holder = next((shared.data / "etc").resolve().glob("holder-*"))
    for name in ("dev", "proc", "sys", "etc", "run", "tmp"):
        (tmp_path / name).mkdir()
    words = ("--volume", f"{holder}:/dev/hold:ro", "--label", f"carrel.data={shared.data}")
    quiet = ("--network=none", "--cgroupns=private", "--log-driver=none", "--stop-signal=KILL")
    engine.call(
        *("run", "--detach", "--name", "de_22222222222a", *words, *quiet),
        *("--rootfs", str(tmp_path), "/dev/hold"),
    )
    assert engine.known() == ["de_22222222222a"]
    shared.stop()
    shared.start()
    good(shared.local().post("/v1/gc", json={}))
    assert engine.known() == []


def test_what_holds_the_container_is_out_of_reach(client: httpx.Client, space: str) -> None:
    """It is in the engine's control group and below the engine's filter: who could trace it would
    be without Carrel's."""
    assert sh(client, space, "id -u; test -d /proc/1 && readlink /proc/1/exe")[0] != 0
    sh(client, space, "kill -9 1; kill -19 1")
    assert sh(client, space, "test -d /proc/1 && grep State /proc/1/status")[1].split()[1] == "S"


def test_without_an_image_there_is_none(client: httpx.Client) -> None:
    bad(client.post("/v1/spaces", json={"runtime": "podman"}), 422, "image_needed")
