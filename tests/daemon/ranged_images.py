"""Images of an ordinary user with a range of ids: files have the owners that the image says,
packages can be installed, and the daemon, who is none of these users, copes with all of it.

`test_ranges.py` has them run by such a user."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from carrel.trees.images.store import ImageStore
from carrel.trees.ranged.calls import MODULE
from tests.busybox import busybox_image
from tests.daemon.rig import Daemon, bad, fresh_daemon, good
from tests.daemon.test_images import make, sh
from tests.daemon.test_services import until
from tests.ranges import FIRST_GROUP, FIRST_USER
from tests.service_images import dpkg_image
from tests.trees.images.layouts import file, layer, saved, take


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def client(shared: Daemon) -> httpx.Client:
    return shared.local()


def archive(place: Path) -> Path:
    """Busybox and files of several users."""
    box = busybox_image(place, user="worker")
    members = [
        file("secret", b"of 33", 0o600, 33),
        file("setid", b"#!/bin/sh\n", 0o4755, 7),
        file("mine", b"of worker", 0o640, 1234),
    ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(box, ".", filter=_of_root)
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        home = tarfile.TarInfo("home/worker")
        home.type, home.mode, home.uid, home.gid = tarfile.DIRTYPE, 0o700, 1234, 1234
        tar.addfile(home)
    path = place / "box.tar"
    path.write_bytes(packed.getvalue())
    return path


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    return info


def ran(client: httpx.Client, space: str, script: str) -> str:
    code, said = sh(client, space, f"set -e; {script}", timeout_s=60)
    assert code == 0, said
    return said


def folder(project: Path) -> dict[str, str]:
    return {"kind": "folder", "location": str(project)}


def take_in(client: httpx.Client, path: Path, name: str = "box") -> str:
    return str(good(client.post("/v1/images", json={"name": name, "path": str(path)}))["id"])


def test_files_have_the_owners_that_the_image_says(
    client: httpx.Client, shared: Daemon, tmp_path: Path
) -> None:
    image = take_in(client, archive(tmp_path))
    space = make(client, "box")
    assert good(client.get(f"/v1/spaces/{space}"))["image"]["notes"] == []
    seen = ran(client, space, "stat -c '%n %u:%g %a' /secret /setid /mine /bin /home/worker")
    assert seen.splitlines() == [
        "/secret 33:33 600",
        "/setid 7:7 4755",
        "/mine 1234:1234 640",
        "/bin 0:0 755",
        "/home/worker 1234:1234 700",
    ]
    root = shared.data / "images" / image / f"root-{FIRST_USER}-0-0"
    status = (root / "secret").stat()
    assert (status.st_uid, status.st_gid) == (FIRST_USER + 33, FIRST_GROUP + 33)
    with pytest.raises(PermissionError):
        (root / "secret").read_bytes()
    # A daemon's user, and what root does to others' files and to the kernel's.
    script = "busybox su worker -c 'id -u; touch /home/worker/made; cat /mine; "
    script += "! cat /secret 2> /dev/null'"
    assert ran(client, space, script).split() == ["1234", "of", "worker"]
    script = "chown 5:6 /mine; chmod 2700 /mine; stat -c '%u:%g %a' /mine; cat /secret"
    assert ran(client, space, script) == "5:6 2700\nof 33"
    assert sh(client, space, "busybox mount -t tmpfs x /home")[0] != 0
    assert sh(client, space, "echo 1 > /proc/sys/kernel/hostname")[0] != 0
    assert int(ran(client, space, "cat /proc/self/uid_map").split()[2]) == 1


def test_another_user_of_the_image_is_the_one_of_the_tree(
    client: httpx.Client, shared: Daemon, tmp_path: Path
) -> None:
    """Everything else is as the image says, so that a copy of it is made, once."""
    image = take_in(client, archive(tmp_path))
    project = tmp_path / "project"
    (project / ".devcontainer").mkdir(parents=True)
    (project / "file").write_text("of the project")
    asked = '{"image": "box", "remoteUser": "worker"}'
    (project / ".devcontainer/devcontainer.json").write_text(asked)
    body = {"project": folder(project), "by_devcontainer": True}
    for _ in range(2):
        space = str(good(client.post("/v1/spaces", json=body))["id"])
        script = "id -u; touch ~/made made; stat -c %u /secret /bin ~ ~/made made file"
        assert ran(client, space, script).split() == ["1234", "33", "0", *["1234"] * 4]
        assert sh(client, space, "touch /etc/made")[0] != 0
        kept = good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))["id"]
        ran(client, space, "rm -r ~/made made")
        good(client.post(f"/v1/spaces/{space}/rewind", json={"checkpoint": kept}))
        assert ran(client, space, "stat -c '%u' ~/made made").split() == ["1234", "1234"]
    names = {one.name for one in (shared.data / "images" / image).iterdir() if one.is_dir()}
    assert names == {f"root-{FIRST_USER}-0-0", f"root-{FIRST_USER}-1234-1234"}


def test_a_package_is_installed(client: httpx.Client, tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "opt").mkdir()
    (package / "opt/tool").write_text("tool")
    control = (
        "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b.c>\nDescription: x\n"
    )
    (package / "DEBIAN/control").write_text(control)
    script = "#!/bin/sh\nset -e\nchown 101:102 /opt/tool\nchmod 4750 /opt/tool\n"
    (package / "DEBIAN/postinst").write_text(script)
    (package / "DEBIAN/postinst").chmod(0o755)
    root = shutil.copytree(dpkg_image(tmp_path), tmp_path / "root", symlinks=True)
    command = ["dpkg-deb", "--root-owner-group", "-b", str(package), str(root / "tool.deb")]
    subprocess.run(command, check=True, capture_output=True)
    space = make(client, root)
    ran(
        client,
        space,
        "/usr/bin/dpkg -i /tool.deb; grep 'Status: install ok installed' /var/lib/dpkg/status",
    )
    assert ran(client, space, "stat -c '%u:%g %a' /opt/tool") == "101:102 4750\n"
    found = good(client.get(f"/v1/spaces/{space}/changes", params={"system": True}))["changes"]
    assert "/opt/tool" in {one["path"] for one in found}
    fork = good(client.post(f"/v1/spaces/{space}/fork", json={}))["spaces"][0]["id"]
    assert ran(client, fork, "stat -c '%u:%g %a' /opt/tool") == "101:102 4750\n"
    ran(client, fork, "/usr/bin/dpkg -r tool; test ! -e /opt/tool")
    assert ran(client, space, "cat /opt/tool") == "tool"


def test_what_is_given_away_in_the_tree_can_be_read(client: httpx.Client, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "kept").write_text("one\n")
    take_in(client, archive(tmp_path))
    space = make(client, "box", project=folder(project))
    give = "mkdir -p d/e; echo two > d/e/f; echo more >> kept; chmod 600 kept d/e/f; "
    give += "chmod 700 d d/e; chown -R 5:6 d; chown 7 kept; ln -sf x link; chown -h 9 link"
    ran(client, space, give)
    listed = good(client.get(f"/v1/spaces/{space}/changes"))["changes"]
    assert {one["path"] for one in listed} == {"kept", "d/e/f", "link"}
    assert ran(client, space, "stat -c %u:%g d d/e d/e/f kept link").split() == ["0:0"] * 5
    ran(client, space, give)
    read = client.get(f"/v1/spaces/{space}/files", params={"path": "d/e/f"})
    assert (read.status_code, read.text) == (200, "two\n"), read.text
    ran(client, space, give)
    good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))
    removal = good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    assert removal["kept"]["changes"] == 3


def test_nothing_is_left(tmp_path: Path) -> None:
    with fresh_daemon() as own:
        client = own.local()
        take_in(client, archive(tmp_path))
        space = make(client, "box")
        hide = "mkdir -p {0}/a/b; echo x > {0}/a/b/c; chown -R 44:44 {0}/a; chmod 000 {0}/a/b {0}/a"
        for place in ("/opt", "/tmp", "/workspace"):
            ran(client, space, hide.format(place))
        ran(
            client,
            space,
            "rm -r /root /home; busybox head -c 3000000 /dev/zero > /big; chown 3 /big",
        )
        good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))
        fork = good(client.post(f"/v1/spaces/{space}/fork", json={}))["spaces"][0]["id"]
        assert ran(client, fork, "stat -c %u /opt/a; cat /opt/a/b/c").split() == ["44", "x"]
        used = good(client.get(f"/v1/spaces/{space}/usage", params={"disk": True}))
        assert used["disk_bytes"] > 3_000_000, used
        own.kill()
        own.start()
        client = own.local()
        assert ran(client, space, "stat -c %u /opt/a /big").split() == ["44", "3"]
        for one in (space, fork):
            good(client.delete(f"/v1/spaces/{one}", params={"force": "true"}))
        good(client.delete("/v1/images/box"))
        for name in ("spaces", "layers", "images/.staging", "images/holders"):
            left = [one for one in (own.data / name).iterdir() if one.name != ".lock"]
            assert left == [], name


def test_who_dies_at_work_leaves_nothing(tmp_path: Path) -> None:
    """The process with all the ids, then the daemon: while it takes an image in."""
    whole = archive(tmp_path)
    with fresh_daemon() as own:
        staging = own.data / "images/.staging"
        for victim in ("worker", "daemon"):
            with _begun_upload(own, whole) as begun:
                until(lambda: any(staging.glob("*/archive")))
                (worker,) = _workers(own)
                if victim == "worker":
                    os.kill(worker, signal.SIGKILL)
                else:
                    own.kill()
                    until(partial(_is_gone, worker))
                assert begun.stdin is not None
                begun.stdin.close()
                assert begun.wait(60) != 0
            if victim == "daemon":
                own.start()
            client = own.local()
            assert list(staging.iterdir()) == []
            assert good(client.get("/v1/images"))["images"] == []
        take_in(client, whole)
        space = make(client, "box")
        assert ran(client, space, "cat /secret") == "of 33"
        # One that waits for work is no loss, and goes with its daemon.
        for one in _workers(own):
            os.kill(one, signal.SIGKILL)
        good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))
        (waiting,) = _workers(own)
        good(client.post(f"/v1/spaces/{space}/checkpoints", json={}))
        assert _workers(own) == [waiting]
        own.kill()
        until(partial(_is_gone, waiting))
        own.start()


def packed() -> bytes:
    return saved(layer(file("etc/passwd", b"root:x:0:0::/:/bin/sh\napp:x:7:7::/:/x\n")))


def _begun_upload(daemon: Daemon, path: Path) -> subprocess.Popen[bytes]:
    """Half of it comes; the rest never does."""
    return subprocess.Popen([PYTHON, "-c", _UPLOAD, daemon.socket, path], stdin=subprocess.PIPE)


PYTHON = sys.executable
_UPLOAD = """
import httpx, sys
uds, path = sys.argv[1:]
def half():
    content = open(path, "rb").read()
    yield content[:len(content) // 2]
    sys.stdin.read()
    raise SystemExit(1)
client = httpx.Client(transport=httpx.HTTPTransport(uds=uds), timeout=60)
try:
    done = client.put("http://carrel/v1/images", params={"name": "x"}, content=half())
except httpx.HTTPError:
    sys.exit(1)
sys.exit(not done.is_success)
"""


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def _workers(daemon: Daemon) -> list[int]:
    children = psutil.Process(daemon.pid).children()
    return [one.pid for one in children if MODULE in one.cmdline()]


def test_an_image_from_before_has_lost_its_owners(tmp_path: Path) -> None:
    with fresh_daemon() as own:
        client = own.local()
        before = take(ImageStore(own.data), packed(), "old")
        held = make(client, before.image_id)
        notes = good(client.get(f"/v1/spaces/{held}"))["image"]["notes"]
        assert any("before you had a range" in one for one in notes), notes
        (tmp_path / "again.tar").write_bytes(packed())
        assert take_in(client, tmp_path / "again.tar") == before.image_id
        now = make(client, before.image_id)
        assert good(client.get(f"/v1/spaces/{now}"))["image"]["notes"] == []
        for one in (held, now):
            good(client.delete(f"/v1/spaces/{one}"))
        good(client.delete(f"/v1/images/{before.image_id}"))


def test_doctor_knows_of_the_range(client: httpx.Client) -> None:
    found = good(client.get("/v1/doctor"))["findings"]
    (finding,) = [one for one in found if (one["area"], one["name"]) == ("image", "ids")]
    assert finding["grade"] == "good"
    problem = client.post("/v1/images", json={"name": "x", "path": "/nowhere"})
    bad(problem, 422, "image_invalid")
