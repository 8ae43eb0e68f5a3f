"""Images at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carrel.environments.engines.own import PODMAN, OwnEngine
from carrel.environments.engines.place import EnginePlace
from tests.busybox import busybox_image
from tests.cli.program import Program
from tests.daemon.rig import Daemon
from tests.environments.engines.rig import FROM
from tests.environments.engines.rig import project as with_dockerfile
from tests.trees.images.layouts import file, folder, layer, oci, saved
from tests.trees.tars import entry

DEVICE = (entry("dev/null", b"3"), b"")
CONTENT = saved(layer(folder("etc"), file("etc/passwd", b"root"), DEVICE))


def test_imported_listed_and_removed(carrel: Program, tmp_path: Path) -> None:
    (tmp_path / "archive.tar").write_bytes(CONTENT)
    done = carrel("image", "import", "tools:1", "archive.tar")
    assert done.code == 0 and "devices are left out" in done.err and "dev/null" in done.err
    image = done.out.strip()
    assert carrel.good("image", "import", "same", "-", stdin=CONTENT).strip() == image
    listed = carrel.good("image", "ls")
    assert image in listed and "same, tools:1" in listed and "archive.tar" in listed
    shown = carrel.good("image", "show", "tools:1")
    assert "PATH=/bin" in shown and "made=here" in shown and "80/tcp" in shown
    assert carrel.json("image", "show", image)["names"] == ["same", "tools:1"]
    carrel.good("image", "rm", "same")
    assert carrel.json("image", "show", image)["names"] == ["tools:1"]
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/passwd").write_text("x")
    folder_image = carrel.good("image", "import", "tools:1", "root").strip()
    assert image in carrel.good("image", "prune", "--dry-run")
    carrel.good("image", "prune")
    carrel.good("image", "rm", folder_image)
    assert carrel.json("image", "ls")["images"] == []


def test_what_goes_wrong_is_said(carrel: Program, daemon: Daemon, tmp_path: Path) -> None:
    assert "No such file" in carrel.bad(1, "image", "import", "x", "missing")
    (tmp_path / "bad").write_bytes(oci(layer(file("../out"))))
    assert "leads out of the image" in carrel.bad(1, "image", "import", "x", "bad")
    assert "carrel image ls" in carrel.bad(3, "image", "show", "x")
    assert not list((daemon.data / "images").glob(".staging/*"))


def test_a_daemon_elsewhere_is_sent_the_archive(
    carrel: Program, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "archive.tar").write_bytes(CONTENT)
    (tmp_path / "folder").mkdir()
    env = {"CARREL_URL": f"http://{daemon.address}", "CARREL_TOKEN": daemon.token("admin")}
    done = carrel("image", "import", "x", "archive.tar", env=env)
    assert done.code == 0, done
    assert carrel.json("image", "show", "x")["source"] == "an upload"
    refused = carrel("image", "import", "x", "folder", env=env)
    assert refused.code == 2 and "tar -C" in refused.err
    carrel.good("image", "rm", "x")


def test_a_space_as_its_project_describes_it(carrel: Program, tmp_path: Path) -> None:
    box = busybox_image(tmp_path)
    carrel.good("image", "import", "box:1", str(box))
    project = tmp_path / "shop"
    project.mkdir()
    content = {
        "image": "box:1",
        "containerEnv": {"SAID": "word"},
        "postCreateCommand": "echo \033[31mbroken; exit 3",
        "forwardPorts": [3000],
        "privileged": True,
    }
    path = project / ".devcontainer.json"
    path.write_text(json.dumps(content))
    failed = carrel("new", str(project), "--by-devcontainer", "--name", "desk")
    assert failed.code == 1 and "broken" in failed.err and "--no-setup" in failed.err
    assert "\033[31m" not in failed.err
    done = carrel("new", str(project), "--image", "auto", "--no-setup", "--name", "desk")
    assert done.out == "desk\n" and "privileged" in done.err and "box:1" in done.err
    assert carrel.good("exec", "desk", "--", "sh", "-c", "echo $SAID") == "word\n"
    shown = carrel.good("show", "desk")
    assert "3000" in shown and "box:1" in shown and "privileged" in shown
    assert "3000" in carrel.good("ps", "desk")
    carrel.bad(None, "new", str(project), "--dockerfile", "missing")
    done = carrel("new", "--empty", "--image", "auto", "--name", "plain")
    assert "host's toolchain" in done.err and carrel.json("show", "plain")["image"]["id"] == ""
    carrel.good("rm", "--force", "desk", "plain")
    carrel.good("image", "rm", "box:1")


def test_an_image_is_built_by_default_and_not_silently(carrel: Program, tmp_path: Path) -> None:
    if not OwnEngine(PODMAN, EnginePlace(tmp_path / "engine")).probe().available:
        pytest.skip("podman does not work here")
    place = with_dockerfile(tmp_path / "built", FROM + "ENV SAID=word\n")
    done = carrel("new", str(place), "--name", "built")
    assert done.code == 0 and done.out == "built\n"
    assert "The image of Dockerfile is made first" in done.err
    assert "runs on the image that Dockerfile builds" in done.err
    assert carrel.good("exec", "built", "--", "sh", "-c", "echo $SAID") == "word\n"
    done = carrel("new", str(place), "--name", "again", "--json")
    assert done.code == 0 and "made first" not in done.err
    images = {carrel.json("show", name)["image"]["id"] for name in ("built", "again")}
    assert len(images) == 1
    done = carrel("new", str(place), "--name", "host", "--image", "none")
    assert done.code == 0 and done.err == ""
    # What fails keeps nobody out, unless it was asked for.
    (place / "Dockerfile").write_text(FROM + "COPY nothing /\n")
    done = carrel("new", str(place), "--name", "broken")
    assert done.code == 0 and "The host's toolchain is used: the image could not be" in done.err
    assert "carrel image build" in done.err and "nothing" in done.err
    assert carrel.good("exec", "broken", "--", "echo", "works") == "works\n"
    refused = carrel("new", str(place), "--image", "auto")
    assert refused.code == 1 and "carrel: The image could not be built" in refused.err
    carrel.good("rm", "--force", "built", "again", "host", "broken")
