"""docs/environments.md: what a project asks for, what a space gets of it, and settings of package
managers, by the program and by plain HTTP."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.busybox import busybox_image
from tests.cli.program import Program
from tests.daemon.rig import ANSWER_S, Daemon, bad, fresh_daemon, good
from tests.environments.registries import TARBALL, serving
from tests.sampling import whole_only

pytestmark = pytest.mark.xdist_group("environments")

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
REPORT = "decided also image toolchain languages versions setup ports variables notes"
SECRET = "s3cr3t-of-a-registry"
NPMRC = f"""\
registry=https://ada:{SECRET}@npm.example.org/all/
@team:registry=https://team.example.org/npm/
//npm.example.org/:_authToken={SECRET}
script-shell=/bin/evil
fetch-retries=7
"""
PIP = f"""\
[global]
index-url = https://ada:{SECRET}@pip.example.org/simple
timeout = 17
cache-dir = /somewhere
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the daemon's user."""
    found = tmp_path_factory.mktemp("home")
    (found / ".config" / "pip").mkdir(parents=True)
    (found / ".config" / "pip" / "pip.conf").write_text(PIP)
    (found / ".npmrc").write_text(NPMRC)
    (found / ".netrc").write_text(f"machine npm.example.org password {SECRET}\n")
    (found / ".netrc").chmod(0o600)
    return found


@pytest.fixture(scope="module")
def daemon(home: Path) -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("HTTPS_PROXY", f"http://ada:{SECRET}@proxy.example.org:3128")
        patch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
        with fresh_daemon() as found:
            yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "shop"
    found.mkdir()
    for one in (tmp_path, found):
        one.chmod(0o755)
    return found


@pytest.fixture
def carrel(daemon: Daemon, project: Path) -> Program:
    return Program(daemon.data, project)


def test_a_report_has_what_the_page_says(carrel: Program, project: Path) -> None:
    (project / ".nvmrc").write_text("20.1\n")
    (project / "Dockerfile").write_text("FROM debian:12\nENV A=1 P=/x:$PATH\nEXPOSE 80\n")
    (project / "package.json").write_text('{"engines": {"node": ">=18"}}')
    (project / "package-lock.json").write_text("{}")
    away = {"image": "python:3.12", "initializeCommand": "touch /tmp/ran", "forwardPorts": [1]}
    (project / ".devcontainer").mkdir()
    (project / ".devcontainer" / "devcontainer.json").write_text(json.dumps(away))
    told = carrel.json("inspect", ".")
    assert {*REPORT.split()} <= {*told}
    assert told["decided"]["rule"] == "dockerfile" and told["decided"]["why"].endswith(".")
    assert [one["rule"] for one in told["also"]] == ["devcontainer", "language"]
    assert told["image"]["reference"] == "debian:12" and told["image"]["build"]
    pairs = [(one["tool"], one["version"], one["path"]) for one in told["versions"]]
    assert pairs == [("node", "20.1", ".nvmrc"), ("node", ">=18", "package.json")]
    assert [(one["name"], one["manager"]) for one in told["languages"]] == [("node", "npm")]
    assert [one["argv"] for one in told["setup"]] == [["npm", "ci"]]
    assert [one["number"] for one in told["ports"]] == [80]
    known = {one["name"]: (one["value"], one["resolved"]) for one in told["variables"]}
    assert known == {"A": ("1", True), "P": ("/x:${PATH}", False)}
    assert any("initializeCommand" in one["message"] for one in told["notes"])
    programs = {one["name"]: one for one in told["toolchain"]["programs"]}
    assert {"sh", "git", "node", "npm"} <= {*programs}
    assert all(one["found"] or one["hint"] for one in programs.values())


RULES: list[tuple[dict[str, str], str, str]] = [
    ({"Containerfile": "FROM busybox:1\n"}, "dockerfile", "busybox:1"),
    ({".devcontainer.json": '{"image": "own:1"}'}, "devcontainer", "own:1"),
    ({".devcontainer/a/devcontainer.json": '{"image": "own:2"}'}, "devcontainer", "own:2"),
    ({"go.mod": "module x\ngo 1.22\n"}, "language", "golang:1.22"),
    ({"Cargo.toml": "[package]\n", "go.mod": "module x\n"}, "language", "debian:stable"),
    ({"sub/Gemfile": "", "Makefile": ""}, "language", "ruby"),
    ({"notes.txt": "none\n"}, "default", "debian:stable"),
    # What cannot be used decides nothing.
    ({"Dockerfile": "RUN x\n", "go.mod": "module x\n"}, "language", "golang"),
    ({".devcontainer.json": "{", "notes.txt": ""}, "default", "debian:stable"),
]


@pytest.mark.parametrize(("files", "rule", "image"), RULES, ids=[str([*row[0]]) for row in RULES])
def test_the_first_rule_that_matches_decides(
    carrel: Program, project: Path, files: dict[str, str], rule: str, image: str
) -> None:
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    told = carrel.json("inspect", ".")
    assert told["decided"]["rule"] == rule and told["image"]["reference"].startswith(image)
    if "Dockerfile" in files or files.get(".devcontainer.json") == "{":
        assert told["notes"]


def test_each_language_of_the_page_is_known(carrel: Program, project: Path) -> None:
    """By the first of its files, all in one project."""
    table = PAGE.read_text().split("| language | files | package managers |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+) \| `([^`]+)`", table, re.M)
    assert len(rows) > 20
    for number, (_, name) in enumerate(rows):
        (project / f"d{number}").mkdir()
        (project / f"d{number}" / name.replace("*", "x")).write_text("")
    missing = []
    for number, (title, _) in enumerate(rows):
        told = carrel.json("inspect", f"d{number}")
        if title not in [one["title"] for one in told["languages"]]:
            missing.append(title)
    assert not missing


def folder(project: Path) -> dict[str, Any]:
    return {"project": {"kind": "folder", "location": str(project)}}


def make(client: httpx.Client, **asked: Any) -> str:
    return f"/v1/spaces/{good(client.post('/v1/spaces', json=asked))['id']}"


def sh(client: httpx.Client, space: str, script: str, **more: Any) -> str:
    asked = {"argv": ["sh", "-c", script], "timeout_s": ANSWER_S, **more}
    return str(good(client.post(f"{space}/exec", json=asked))["stdout"])


# What a devcontainer.json gives


@pytest.fixture
def box(owner: httpx.Client, tmp_path: Path) -> str:
    """An image that is here, by its name."""
    root = busybox_image(tmp_path, "ada")
    good(owner.post("/v1/images", json={"name": "box:1", "path": str(root)}))
    return "box:1"


def container(project: Path, **more: Any) -> None:
    said = {"image": "box:1", **more}
    (project / ".devcontainer.json").write_text(json.dumps(said))


@pytest.mark.usefixtures("box")
def test_a_space_is_as_its_project_describes_it(owner: httpx.Client, project: Path) -> None:
    ada = {"remoteUser": "ada"} if os.geteuid() == 0 else {}
    container(
        project,
        **{"containerEnv": {"WORD": "theirs", "OWN": "1"}, **ada},
        **{"postCreateCommand": "echo created >> made", "forwardPorts": [3000]},
        **{"postStartCommand": ["sh", "-c", "echo started >> made"]},
        **{"initializeCommand": "touch made-outside", "privileged": True},
        mounts=["source=/etc,target=/host,type=bind"],
    )
    space = make(owner, **folder(project), env={"WORD": "mine"})
    found = good(owner.get(space))
    assert "box:1" in json.dumps(found["image"]) and "privileged" in json.dumps(found)
    said = sh(owner, space, "cat made; echo $WORD $OWN; ls -d /host 2>/dev/null; whoami; id -un")
    lines = said.split("\n")
    assert lines[:3] == ["created", "started", "mine 1"] and "/host" not in said
    if ada:
        assert "ada" in lines
    assert sh(owner, space, "echo ${OWN:-none}", place="agent") == "none\n"
    assert not (project / "made-outside").exists()
    # Again at each start.
    good(owner.post(f"{space}/restart"))
    assert sh(owner, space, "cat made") == "created\nstarted\nstarted\n"
    good(owner.delete(space, params={"force": "true"}))
    without = make(owner, **folder(project), image="none")
    assert not good(owner.get(without)).get("image")
    assert "created" not in sh(owner, without, "cat made 2>/dev/null; true")
    good(owner.delete(without, params={"force": "true"}))


@pytest.mark.usefixtures("box")
def test_what_nobody_asked_for_keeps_nobody_from_working(
    owner: httpx.Client, project: Path
) -> None:
    """A command of the project that fails, or an image that lacks its user."""
    container(project, onCreateCommand="echo why; exit 3", postCreateCommand="touch after")
    asked = {**folder(project), "name": "described"}
    space = make(owner, **asked)
    assert "after" not in sh(owner, space, "ls")
    assert "why" in json.dumps(good(owner.get(space)))
    good(owner.delete(space, params={"force": "true"}))
    told = owner.post("/v1/spaces", json={**asked, "by_devcontainer": True})
    problem = bad(told, 422, "setup_failed")
    assert "why" in json.dumps(problem) and "3" in problem["detail"]
    assert not good(owner.get("/v1/spaces", params={"name": "described"}))["spaces"]
    good(owner.delete(make(owner, **asked, by_devcontainer=True, run_setup=False)))
    container(project, remoteUser="nobody-there")
    default = make(owner, **asked)
    assert sh(owner, default, "ls /usr/bin/env") == "/usr/bin/env\n"
    good(owner.delete(default))
    told = owner.post("/v1/spaces", json={**asked, "devcontainer": ".devcontainer.json"})
    bad(told, 422, "image_invalid")


@pytest.mark.usefixtures("box")
def test_who_else_has_the_hosts_toolchain(
    daemon: Daemon, owner: httpx.Client, project: Path
) -> None:
    container(project)
    base = good(owner.post("/v1/bases", json=folder(project)))["id"]
    for asked in ({}, {"base": base}):
        space = make(owner, **asked)
        assert not good(owner.get(space)).get("image")
        good(owner.delete(space))
    key = good(owner.post("/v1/requests", json={"instructions": "say x", "project": str(project)}))
    path = f"/v1/requests/{key['request_id']}"
    made = good(owner.get(path, params={"wait": 60}))
    assert made["state"] == "done"
    absent = {**folder(project), "image": "nobodys:1"}
    bad(owner.post("/v1/spaces", json=absent), 404, "image_not_found")


# Set-up


def test_set_up_commands_make_a_base(owner: httpx.Client, project: Path) -> None:
    """Once for a state of the project; one that fails leaves nothing; and of nobody's token."""
    (project / "input").write_text("1\n")
    (project / "carrel.toml").write_text(
        '[setup]\nrun = ["date +%N > made; echo $HOME > home", ["cp", "input", "copied"]]\n'
    )
    first, second = (make(owner, **folder(project)) for _ in range(2))
    same = [sh(owner, one, "cat made copied") for one in (first, second)]
    assert same[0] == same[1] and same[0].endswith("1\n")
    assert good(owner.get(first))["setup"] and good(owner.get(f"{first}/changes"))["total"] == 0
    (project / "input").write_text("2\n")
    third = make(owner, **folder(project))
    assert sh(owner, third, "cat copied") == "2\n"
    for one in (first, second, third):
        good(owner.delete(one))
    (project / "carrel.toml").write_text('[setup]\nrun = ["echo its words; exit 4"]\n')
    told = bad(owner.post("/v1/spaces", json={**folder(project), "name": "s"}), 422, "setup_failed")
    assert "its words" in json.dumps(told) and "4" in told["detail"]
    assert not good(owner.get("/v1/spaces", params={"name": "s"}))["spaces"]
    (project / "carrel.toml").unlink()
    said_nothing = owner.post("/v1/spaces", json={**folder(project), "run_setup": True})
    bad(said_nothing, 422, "space_invalid")
    (project / "carrel.toml").write_text('[setup]\nrun = ["true"]\n')
    other = {**folder(project), "runtime": "landlock", "run_setup": True}
    assert owner.post("/v1/spaces", json=other).status_code == 422


# Package managers


def test_settings_of_package_managers(daemon: Daemon, owner: httpx.Client, project: Path) -> None:
    """Addresses are passed; credentials and commands are not, unless that is said."""
    space = make(owner, **folder(project), network="open")
    read = "cat ~/.npmrc ~/.config/pip/pip.conf; env; cat ~/.netrc 2>/dev/null; true"
    seen = sh(owner, space, read)
    for there in ("https://npm.example.org/all/", "https://team.example.org/npm/"):
        assert there in seen
    for there in (
        "fetch-retries",
        "https://pip.example.org/simple",
        "timeout",
        "proxy.example.org",
    ):
        assert there in seen
    for away in (SECRET, "script-shell", "cache-dir", "ada:"):
        assert away not in seen, away
    found = good(owner.get(space))
    assert "~/.npmrc" in found["packages"] and found["withheld"]
    assert "npm //npm.example.org/:_authToken" in found["withheld"] and SECRET not in str(found)
    assert SECRET not in owner.get("/v1/doctor").text
    trusted = make(owner, **folder(project), with_credentials=True)
    assert SECRET in sh(owner, trusted, read) and "script-shell" not in sh(owner, trusted, read)
    assert not good(owner.get(trusted))["withheld"]
    own = make(owner, **folder(project), env={"HTTPS_PROXY": "http://own.example.org"})
    assert "own.example.org" in sh(owner, own, "echo $HTTPS_PROXY")
    # Those of a token have none of it.
    with daemon.tcp(daemon.token("label:team=blue")) as client:
        theirs = make(client)
        assert "example.org" not in sh(client, theirs, read)
        bad(client.post("/v1/spaces", json={"with_credentials": True}), 403, "forbidden")
    for one in (space, trusted, own, theirs):
        good(owner.delete(one, params={"force": "true"}))


@whole_only
def test_what_was_fetched_is_there_for_the_next(owner: httpx.Client, project: Path) -> None:
    """Of the same project, with an open network; read-only, and not when that is said."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    quiet = "--no-audit --no-fund --no-update-notifier"
    fetch = f"npm install {quiet} hello && node -p 'require(\"hello\")'"
    with serving() as registry:
        env = {"npm_config_registry": registry.npm, "NO_PROXY": "127.0.0.1"}
        asked = {**folder(project), "network": "open", "env": env}
        counts = []
        for more in ({}, {}, {"share_downloads": False}):
            space = make(owner, **asked, **more)
            assert "hi" in sh(owner, space, fetch)
            counts.append(sum(TARBALL in one for one in registry.asked))
            seen = "ls /run/carrel-downloads >/dev/null && touch /run/carrel-downloads/x; echo $?"
            assert sh(owner, space, seen).strip() != "0"
            good(owner.delete(space, params={"force": "true"}))
    assert counts == [1, 1, 2]
