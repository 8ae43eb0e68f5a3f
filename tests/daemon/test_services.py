"""Services of spaces, when the daemon is killed while they start and while they run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.busybox import busybox_image
from tests.daemon.rig import Daemon, fresh_daemon, good

WAIT_S = 60.0


@contextlib.contextmanager
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with fresh_daemon() as own:
        box = busybox_image(tmp_path)
        good(own.local().post("/v1/images", json={"name": "box:1", "path": str(box)}))
        yield own


def project(folder: Path, **services: object) -> dict[str, Any]:
    place = folder / "shop"
    place.mkdir()
    (place / "compose.yaml").write_text(json.dumps({"services": services}))
    return {"project": {"kind": "folder", "location": str(place)}, "services": "auto"}


def service(script: str, **more: object) -> dict[str, object]:
    return {"image": "box:1", "command": ["sh", "-c", script], **more}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline


def services(client: httpx.Client, space: str) -> dict[str, dict[str, Any]]:
    found = good(client.get(f"/v1/spaces/{space}/services"))["services"]
    return {one["name"]: one for one in found}


def test_a_daemon_that_is_killed_while_services_start_leaves_nothing(tmp_path: Path) -> None:
    never = {"test": ["CMD", "false"], "interval": "1s", "retries": 1000}
    body = project(
        tmp_path,
        slow=service("touch /kept/begun; sleep 1000", healthcheck=never, volumes=["/kept"]),
    )
    with daemon(tmp_path) as own:
        client = own.local()

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                client.post("/v1/spaces", json=body)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: bool(list((own.data / "spaces").glob("*/volumes/*/begun"))))
        own.kill()
        asking.join()
        own.start()
        until(lambda: good(own.local().get("/v1/spaces"))["spaces"] == [])
        assert list((own.data / "spaces").iterdir()) == []
        assert not [name for name in _commands() if "kept/begun" in name]


def test_services_go_on_when_the_daemon_is_killed(tmp_path: Path) -> None:
    body = project(
        tmp_path,
        steady=service("echo begun >> /kept/log; exec sleep 1000", volumes=["/kept"]),
        again=service("exec sleep 1001", restart="always"),
        once=service("exec sleep 1002"),
    )
    with daemon(tmp_path) as own:
        space = good(own.local().post("/v1/spaces", json=body))["id"]
        before = services(own.local(), space)
        assert {one["state"] for one in before.values()} == {"running"}
        runs = {name: one["run"] for name, one in before.items()}
        pids = {name: good(own.local().get(f"/v1/runs/{run}"))["pid"] for name, run in runs.items()}
        own.kill()
        os.kill(pids["again"], signal.SIGKILL)
        os.kill(pids["once"], signal.SIGKILL)
        own.start()
        client = own.local()
        until(lambda: services(client, space)["again"]["state"] == "running")
        until(lambda: services(client, space)["steady"]["state"] == "running")
        after = services(client, space)
        assert after["steady"]["run"] == runs["steady"]
        assert after["again"]["run"] != runs["again"]
        assert (after["once"]["state"], after["once"]["run"]) == ("exited", runs["once"])
        argv = {"argv": ["cat", "/kept/log"], "place": "steady"}
        said = good(client.post(f"/v1/spaces/{space}/exec", json=argv))
        assert said["stdout"] == "begun\n"
        shown = good(client.get(f"/v1/spaces/{space}/ps"))
        assert [one["name"] for one in shown["services"]] == ["steady", "again", "once"]
        good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
        assert list((own.data / "spaces").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="root sees the volume from outside")
def test_a_daemon_that_is_killed_while_a_space_starts_again_leaves_it_stopped(
    tmp_path: Path,
) -> None:
    script = "test -e /kept/slow && sleep 1000; touch /kept/slow; touch /well; exec sleep 1000"
    check = {"test": "test -e /well", "interval": "1s", "retries": 1000}
    body = project(
        tmp_path,
        slow=service(f"rm -f /well; {script}", healthcheck=check, volumes=["/kept"]),
    )
    with daemon(tmp_path) as own:
        client = own.local()
        space = good(client.post("/v1/spaces", json=body))["id"]
        good(client.post(f"/v1/spaces/{space}/stop"))

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                client.post(f"/v1/spaces/{space}/start")

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: any("rm -f /well" in name for name in _commands()))
        own.kill()
        asking.join()
        own.start()
        client = own.local()
        assert good(client.get(f"/v1/spaces/{space}"))["state"] == "stopped"
        until(lambda: not any("rm -f /well" in name for name in _commands()))
        assert services(client, space)["slow"]["state"] == "stopped"


def _commands() -> list[str]:
    """Of all processes here."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode("utf-8", "replace"))
    return found
