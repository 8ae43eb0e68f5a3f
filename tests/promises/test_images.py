"""docs/images.md and docs/services.md: images, spaces that have one as their system, and services
beside them, by plain HTTP."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.busybox import busybox_image
from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, Daemon, bad, good
from tests.sampling import whole_only

pytestmark = pytest.mark.xdist_group("images")

INFO = {
    *("id", "names", "size_bytes", "entries", "created_at", "used_at", "made", "config", "source"),
    *("folder", "spaces", "notes"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system."""
    folder = tmp_path_factory.mktemp("images")
    for one in (folder, folder.parent):
        one.chmod(0o755)
    return busybox_image(folder, "ada")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
        with daemon_with({}) as found:
            yield found


@pytest.fixture(scope="module")
def box(daemon: Daemon, root: Path) -> str:
    """The id of an image that stays."""
    with daemon.local() as client:
        return str(taken(client, "box:1", root)["id"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "shop"
    found.mkdir()
    for one in (tmp_path, found):
        one.chmod(0o755)
    (found / "a.txt").write_text("a\n")
    return found


def taken(client: httpx.Client, name: str, path: Path, **more: str) -> dict[str, Any]:
    asked = {"name": name, "path": str(path), **more}
    return dict(good(client.post("/v1/images", json=asked)))


def archive(*names: str, text: bytes = b"x") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            found = tarfile.TarInfo(name)
            found.size = len(text)
            tar.addfile(found, io.BytesIO(text))
    return packed.getvalue()


def make(client: httpx.Client, **asked: Any) -> str:
    """Its path."""
    return f"/v1/spaces/{good(client.post('/v1/spaces', json=asked))['id']}"


def run(client: httpx.Client, space: str, script: str, **more: Any) -> str:
    asked = {"argv": ["sh", "-c", script], "timeout_s": ANSWER_S, **more}
    return str(good(client.post(f"{space}/exec", json=asked))["stdout"])


def remove(client: httpx.Client, space: str) -> None:
    good(client.delete(space, params={"force": "true"}))


# Images


def test_taken_in_listed_and_removed(daemon: Daemon, owner: httpx.Client, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "name").write_text("one\n")
    made = taken(owner, "mine:1", root)
    assert {*made} == INFO and made["names"] == ["mine:1"] and made["source"] == str(root)
    # Kept once, whatever its times and its name are; one name goes, and then all of it.
    os.utime(root / "etc" / "name", (1, 1))
    assert taken(owner, "same", root)["id"] == made["id"]
    assert {*good(owner.get(f"/v1/images/{made['id']}"))["names"]} == {"mine:1", "same"}
    good(owner.delete("/v1/images/same"))
    assert good(owner.get("/v1/images/mine:1"))["id"] == made["id"]
    with daemon.tcp(daemon.token("label:team=blue")) as client:
        (seen,) = (
            one for one in good(client.get("/v1/images"))["images"] if one["id"] == made["id"]
        )
        assert seen["size_bytes"] == made["size_bytes"] and not seen["source"]
        assert not seen["folder"] and not seen["config"]["env"] and not seen["config"]["labels"]
        bad(client.post("/v1/images", json={"name": "x", "path": str(root)}), 403, "forbidden")
        bad(client.delete("/v1/images/mine:1"), 403, "forbidden")
    good(owner.delete(f"/v1/images/{made['id']}"))
    bad(owner.get("/v1/images/mine:1"), 404, "image_not_found")
    assert made["id"] not in owner.get("/v1/images").text


def test_sent_as_an_archive_and_pruned(owner: httpx.Client, box: str) -> None:
    sent = good(owner.put("/v1/images?name=sent", content=archive("etc/name")))
    assert sent["names"] == ["sent"] and sent["entries"] >= 1
    # An image that has lost its name goes; what has one stays.
    other = good(owner.put("/v1/images?name=sent", content=archive("etc/other")))
    found = good(owner.post("/v1/images/prune", json={"dry_run": True}))["images"]
    assert [one["id"] for one in found] == [sent["id"]]
    assert sent["id"] in owner.get("/v1/images").text
    good(owner.post("/v1/images/prune", json={}))
    listed = [one["id"] for one in good(owner.get("/v1/images"))["images"]]
    assert sent["id"] not in listed and {other["id"], box} <= {*listed}
    good(owner.delete("/v1/images/sent"))


def test_the_steps_are_told(owner: httpx.Client, root: Path, tmp_path: Path) -> None:
    headers = {"Accept": "text/event-stream"}
    for path, last in ((root, "image"), (tmp_path / "none", "problem")):
        asked = {"name": "told", "path": str(path)}
        with owner.stream("POST", "/v1/images", json=asked, headers=headers) as answer:
            lines = answer.read().decode().splitlines()
        events = [line.partition(": ")[2] for line in lines if line.startswith("event:")]
        assert events[-1] == last and {*events[:-1]} <= {"progress"}, events
    good(owner.delete("/v1/images/told"))


@pytest.mark.parametrize(
    "content", [b"", b"no archive", archive("../out"), archive("a/../../out")], ids=range(4)
)
def test_what_is_damaged_or_hostile_leaves_nothing(
    daemon: Daemon, owner: httpx.Client, content: bytes
) -> None:
    before = owner.get("/v1/images").text
    told = owner.put("/v1/images?name=hostile", content=content)
    assert bad(told, 422, "image_invalid")["hint"]
    assert owner.get("/v1/images").text == before
    assert not [*(daemon.data / "images").glob(".staging/*")]


def test_what_is_left_out_is_said(owner: httpx.Client) -> None:
    """Devices are; what a link names is never followed; what has no place in a layer is refused."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind, link in (
            ("dev/null", tarfile.CHRTYPE, ""),
            ("etc/out", tarfile.SYMTYPE, "/"),
            ("etc/out/tmp/through", tarfile.REGTYPE, ""),
        ):
            found = tarfile.TarInfo(name)
            found.type, found.linkname = kind, link
            tar.addfile(found)
    made = good(owner.put("/v1/images?name=odd", content=packed.getvalue()))
    assert "dev/null" in json.dumps(made["notes"]) and not Path("/tmp/through").exists()
    good(owner.delete("/v1/images/odd"))


# Engines


@whole_only
@pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed")
def test_an_image_is_built_once_or_says_why_not(owner: httpx.Client, project: Path) -> None:
    (project / "Dockerfile").write_text("FROM scratch\nCOPY a.txt /etc/a\n")
    asked = {"project": str(project), "engine": "buildah", "name": "built"}
    first = good(owner.post("/v1/images/build", json=asked))
    assert "built" in first["names"] and first["entries"] >= 1
    assert good(owner.post("/v1/images/build", json=asked))["id"] == first["id"]
    (project / "a.txt").write_text("b\n")
    assert good(owner.post("/v1/images/build", json=asked))["id"] != first["id"]
    (project / "Dockerfile").write_text('FROM scratch\nCOPY a.txt /\nRUN ["/no-such-program"]\n')
    told = bad(owner.post("/v1/images/build", json=asked), 422, "image_build_failed")
    assert "no-such-program" in json.dumps(told)


# Spaces


def test_commands_have_the_image_and_the_agent_the_host(
    owner: httpx.Client, box: str, project: Path
) -> None:
    asked = {"project": {"kind": "folder", "location": str(project)}, "agent": "scripted"}
    space = make(owner, **asked, image="box:1")
    found = good(owner.get(space))
    assert found["image"]["id"] == box and found["runtime"] == "bubblewrap"
    assert run(owner, space, "cat /etc/passwd; pwd; id -u").startswith("root:x:0:0:root:/root")
    assert run(owner, space, "pwd; cat a.txt") == "/workspace\na\n"
    # Its system is its own; the tree, /tmp and the network are shared.
    run(owner, space, "echo x > /etc/own; echo y > b.txt; echo z > /tmp/shared")
    seen = run(owner, space, "cat b.txt /tmp/shared; ls /etc/own || echo no", place="agent")
    assert seen == "y\nz\nno\n"
    system = good(owner.get(f"{space}/changes", params={"system": "true"}))
    assert [one["path"] for one in system["changes"]] == ["/etc/own"]
    assert [one["path"] for one in good(owner.get(f"{space}/changes"))["changes"]] == ["b.txt"]
    # What its agent runs by its shell runs in the image.
    turn = owner.post(
        f"{space}/turns", json={"prompt": "run cat /etc/own > c.txt; sh -c 'cat /etc/own' > d.txt"}
    )
    good(owner.get(f"/v1/turns/{good(turn)['id']}", params={"wait_s": 60}))
    assert run(owner, space, "cat c.txt d.txt") == "x\nx\n"
    proof = good(owner.post(f"{space}/verify"))
    assert proof["holds"]
    told = bad(owner.delete(f"/v1/images/{box}"), 409, "image_in_use")
    assert told["spaces"] and told["hint"]
    other = make(owner, image="box:1")
    assert run(owner, other, "ls /etc/own 2>/dev/null || echo none") == "none\n"
    for one in (space, other):
        remove(owner, one)


def test_a_system_is_forked_rewound_and_restored(owner: httpx.Client, box: str) -> None:
    space = make(owner, image=box)
    run(owner, space, "echo one > /etc/own; echo one > a")
    kept = good(owner.post(f"{space}/checkpoints", json={}))["id"]
    run(owner, space, "echo two > /etc/own; echo two > a")
    (fork,) = good(owner.post(f"{space}/fork", json={"checkpoint": kept}))["spaces"]
    at = f"/v1/spaces/{fork['id']}"
    assert run(owner, at, "cat /etc/own a") == "one\none\n" and fork["image"]["id"] == box
    remove(owner, at)
    good(owner.post(f"{space}/rewind", json={"checkpoint": kept}))
    assert run(owner, space, "cat /etc/own a") == "one\none\n"
    remove(owner, space)
    back = good(owner.post(f"/v1/trash/{space.rpartition('/')[2]}/restore"))
    assert run(owner, f"/v1/spaces/{back['id']}", "cat /etc/own a") == "one\none\n"
    # What was installed alone asks for no force.
    installed = make(owner, image=box)
    run(owner, installed, "echo x > /etc/own")
    good(owner.delete(installed))
    remove(owner, f"/v1/spaces/{back['id']}")


def test_a_space_keeps_its_image_when_the_name_goes_on(
    owner: httpx.Client, root: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    (copy / "etc" / "version").write_text("1\n")
    taken(owner, "moving", copy)
    space = make(owner, image="moving")
    (copy / "etc" / "version").write_text("2\n")
    taken(owner, "moving", copy)
    later = make(owner, image="moving")
    assert [run(owner, one, "cat /etc/version") for one in (space, later)] == ["1\n", "2\n"]
    for one in (space, later):
        remove(owner, one)


def test_a_container_of_an_engine_that_is_not_there(owner: httpx.Client, box: str) -> None:
    told = owner.post("/v1/spaces", json={"runtime": "docker", "image": box})
    assert bad(told, 503, "container_unavailable")["hint"]


# Services


def compose(project: Path, **services: Any) -> dict[str, Any]:
    """A space that is asked for with them."""
    named = {name: {"image": "box:1", **one} for name, one in services.items()}
    volumes: dict[str, Any] = {"volumes": {"data": {}}}
    (project / "compose.yaml").write_text(json.dumps({"services": named, **volumes}))
    where = {"kind": "folder", "location": str(project)}
    return {"project": where, "services": "auto", "env": {"WORD": "given"}}


def phases(client: httpx.Client, space: str) -> dict[str, Any]:
    return {one["name"]: one for one in good(client.get(f"{space}/services"))["services"]}


ECHO = "while true; do echo hello | nc -l -p 8080; done"


def test_services_run_beside_a_space(owner: httpx.Client, box: str, project: Path) -> None:
    asked = compose(
        project,
        web={
            "command": ["sh", "-c", f"echo $WORD $$OWN > /data/said; {ECHO}"],
            **{"environment": {"OWN": "3", "WORD": "${WORD:-none}"}, "ports": ["8080:8080"]},
            "depends_on": {"job": {"condition": "service_completed_successfully"}},
            **{"volumes": ["data:/data"], "privileged": True},
            "healthcheck": {"test": ["CMD", "cat", "/data/said"], "interval": "1s"},
        },
        job={"command": ["sh", "-c", "echo first > /data/job"], "volumes": ["data:/data"]},
        never={"command": ["sleep", "600"], "profiles": ["other"]},
    )
    space = make(owner, **asked)
    found = good(owner.get(space))
    assert found["state"] == "ready" and "privileged" in json.dumps(found)
    now = phases(owner, space)
    assert {*now} == {"web", "job"}
    web, job = now["web"], now["job"]
    assert (web["state"], web["health"], web["ports"]) == ("running", "healthy", [8080])
    assert (job["state"], job["code"]) == ("exited", 0) and web["restarts"] == 0
    # They find each other by name; both see the volume, and neither the tree.
    assert run(owner, space, "nc web 8080 2>/dev/null", place="web") == "hello\n"
    looked = "cat /data/job /data/said; ls /workspace 2>/dev/null; echo"
    assert run(owner, space, looked, place="web") == "first\ngiven 3\n\n"
    assert "Hello" not in run(owner, space, "cat a.txt")
    ran = good(owner.get(f"/v1/runs/{web['run']}"))
    assert ran["service"] == "web" and ran["state"] == "running"
    again = good(owner.post(f"{space}/services/web/restart"))
    assert again["state"] == "running" and again["run"] != web["run"]
    told = owner.post(f"{space}/services/nobody/restart")
    assert bad(told, 422, "command_invalid")["hint"]
    # On the same data, when it is stopped and started, and in a fork.
    run(owner, space, "echo more > /data/more", place="web")
    good(owner.post(f"{space}/stop"))
    assert phases(owner, space)["web"]["state"] == "stopped"
    good(owner.post(f"{space}/start"))
    assert run(owner, space, "cat /data/more", place="web") == "more\n"
    (fork,) = good(owner.post(f"{space}/fork", json={}))["spaces"]
    at = f"/v1/spaces/{fork['id']}"
    assert run(owner, at, "cat /data/more", place="web") == "more\n"
    for one in (space, at):
        remove(owner, one)


def test_what_a_service_is_given_of_its_project(
    owner: httpx.Client, box: str, project: Path
) -> None:
    """The space's tree, and not the project's; memory; and files that are secrets."""
    (project / "conf").mkdir()
    (project / "conf" / "a").write_text("as it was\n")
    (project / ".env").write_text("TAG=1\n")
    asked = compose(
        project,
        app={
            "image": "box:${TAG:-7}",
            **{"command": ["sleep", "600"], "tmpfs": ["/fast"], "secrets": ["own"]},
            "volumes": ["./conf:/etc/app", "/etc:/host", "./data:/var/own"],
            **{"hostname": "app.local", "user": "0", "working_dir": "/etc"},
        },
    )
    text = json.loads((project / "compose.yaml").read_text())
    secrets = {"secrets": {"own": {"file": "./conf/a"}}}
    (project / "compose.yaml").write_text(json.dumps({**text, **secrets}))
    space = make(owner, **asked)
    assert owner.put(f"{space}/files?path=conf/a", content=b"of the space\n").is_success
    looked = "cat /etc/app/a; ls /host 2>/dev/null; ls -d /fast /var/own; cat /run/secrets/own; pwd"
    lines = run(owner, space, looked, place="app").splitlines()
    assert lines[0] == "of the space" and lines[1:3] == ["/fast", "/var/own"], lines
    assert "of the space" in lines[3] or "as it was" in lines[3], lines
    assert (project / "conf" / "a").read_text() == "as it was\n"
    assert "/etc" in json.dumps(good(owner.get(space)))
    remove(owner, space)


def test_a_service_that_fails_leaves_no_space(owner: httpx.Client, box: str, project: Path) -> None:
    asked = compose(project, broken={"command": ["sh", "-c", "echo its words; exit 3"]})
    told = bad(owner.post("/v1/spaces", json={**asked, "name": "served"}), 422, "service_failed")
    assert "its words" in json.dumps(told) and "3" in told["detail"]
    assert not good(owner.get("/v1/spaces", params={"name": "served"}))["spaces"]
    good(owner.delete(make(owner, **{**asked, "services": "none"})))


@pytest.mark.parametrize(
    ("text", "more", "code"),
    [
        ("services: [", {}, "environment_refused"),
        ("services: {a: {image: nobodys.example/none}}", {}, "environment_refused"),
        ("a: &a [x]\nservices: {a: !!python/object:os.system {}}", {}, "environment_refused"),
        ("services: {a: {image: 'box:1'}}", {"runtime": "landlock"}, "space_invalid"),
        ("services: {a: {image: 'box:1'}}", {"services": "none.yaml"}, "environment_refused"),
    ],
)
def test_a_file_that_cannot_be_used(
    owner: httpx.Client, box: str, project: Path, text: str, more: dict[str, str], code: str
) -> None:
    (project / "compose.yaml").write_text(text)
    where = {"project": {"kind": "folder", "location": str(project)}, "services": "auto"}
    assert bad(owner.post("/v1/spaces", json={**where, **more}), 422, code)["hint"]
