"""Services of a space, as people ask for them."""

from __future__ import annotations

import json
from pathlib import Path

from carrel import Client
from tests.busybox import busybox_image
from tests.cli.program import Program
from tests.daemon.rig import Daemon

SERVER = "echo listening on 8080; while true; do echo hello | nc -l -p 8080; done"


def test_services_of_a_compose_file(carrel: Program, daemon: Daemon, tmp_path: Path) -> None:
    carrel.good("image", "import", "box:1", str(busybox_image(tmp_path)))
    project = tmp_path / "shop"
    project.mkdir()
    web = {"image": "box:1", "command": ["sh", "-c", SERVER], "ports": ["8080:8080"]}
    job = {"image": "box:1", "command": ["echo", "\033[31mdone"], "privileged": True}
    services = {"web": web, "job": job}
    (project / "compose.yaml").write_text(json.dumps({"services": services}))

    done = carrel("new", str(project), "--services", "auto", "--name", "desk")
    assert done.out == "desk\n"
    assert "Services of compose.yaml: web, job." in done.err
    assert "job: privileged was left out" in done.err
    listed = carrel.good("services", "desk")
    assert "web" in listed and "running" in listed and "8080" in listed and "exited" in listed
    assert "web  running  8080" in carrel.good("ps", "desk")
    shown = carrel.good("show", "desk")
    assert "services" in shown and "web, job" in shown
    assert carrel.good("logs", "--in", "web", "desk") == "listening on 8080\n"
    assert carrel.good("exec", "--in", "web", "desk", "--", "nc", "web", "8080") == "hello\n"
    assert "no service 'nobody'" in carrel.bad(125, "exec", "--in", "nobody", "desk", "true")
    assert "`carrel services`" in carrel.bad(2, "logs", "--in", "nobody", "desk")
    before = carrel.json("services", "desk", "web")["services"][0]["run"]
    carrel.good("services", "desk", "web", "--restart")
    assert carrel.json("services", "desk", "web")["services"][0]["run"] != before

    with Client(data=daemon.data) as client:
        space = client.get("desk")
        assert [one.name for one in space.services().services] == ["web", "job"]
        assert space.restart_service("web").state == "running"
        assert space.run(["pwd"], place="web").stdout in ("/\n", b"/\n")
    carrel.good("stop", "desk")
    assert "stopped" in carrel.good("services", "desk")
    carrel.good("rm", "--force", "desk")

    job["command"] = ["sh", "-c", "echo \033[31mbroken; exit 3"]
    (project / "compose.yaml").write_text(json.dumps({"services": services}))
    failed = carrel("new", str(project), "--services", "auto", "--name", "desk")
    assert failed.code == 1 and "The service job ended with 3" in failed.err
    assert "broken" in failed.err and "\033[31m" not in failed.err
    # The daemon is other tests' too.
    assert "desk" not in [one["name"] for one in carrel.json("ls")["spaces"]]
    plan = carrel.good("inspect", str(project), "--services", "none")
    assert "services" not in plan
