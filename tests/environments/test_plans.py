"""Which plan comes of which project: the order, what is asked for, and what is not given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.domain.availability import Availability
from carrel.domain.errors import EnvironmentRefused
from carrel.domain.plans import (
    EnvironmentPlan,
    NoImages,
    PlanKind,
    PlannedMount,
    PlanRequest,
)
from carrel.environments.plans import plan_files, plan_project
from tests.environments.devcontainers import DEVCONTAINERS, Devcontainer
from tests.environments.layouts import LAYOUTS, Layout
from tests.environments.rig import Thought, think, write
from tests.sampling import examples

PLACE = ".devcontainer/devcontainer.json"
AUTO = PlanRequest()


class Engine:
    """An engine is here, and these images."""

    def __init__(self, *images: str, adds: bool = False) -> None:
        self.images = images
        self.adds = adds

    def engine(self) -> Availability:
        return Availability(True, "podman works.")

    def features(self) -> Availability:
        return Availability(self.adds, "there is no tool that adds features")

    def has(self, image: str) -> bool:
        return image in self.images or self.images == ("*",)

    def keeps(self, image: str) -> bool:
        return self.has(image)


EVERYTHING = Engine("*")


def plan(
    files: dict[str, str], request: PlanRequest = AUTO, means: Engine | NoImages = EVERYTHING
) -> EnvironmentPlan:
    encoded = {name: text.encode() for name, text in files.items()}
    return plan_files(Thought(encoded), request, means, name="app")


def test_there_are_enough() -> None:
    assert len({one.name for one in LAYOUTS}) == len(LAYOUTS) >= 80
    assert len({one.name for one in DEVCONTAINERS}) == len(DEVCONTAINERS) >= 25


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_layouts(layout: Layout) -> None:
    """What decides, and with which image; without one, the host's toolchain and the reason."""
    report = think(dict(layout.files))
    assert (report.decided.path, report.image.reference) == (layout.decided, layout.image)
    made = plan(layout.files)
    compose = report.image.compose is not None
    if layout.built:
        assert (made.kind, made.image) == (PlanKind.BUILD, layout.image)
    elif layout.decided and not compose:
        assert (made.kind, made.image) == (PlanKind.IMAGE, layout.image)
    else:
        assert made.kind is PlanKind.HOST
    bare = plan(layout.files, means=NoImages())
    assert bare.kind is PlanKind.HOST and bare.why
    assert plan(layout.files, PlanRequest("none")).kind is PlanKind.HOST


@pytest.mark.parametrize("case", DEVCONTAINERS, ids=lambda one: one.name)
def test_devcontainers(case: Devcontainer) -> None:
    files = {PLACE: case.text, **case.files}
    asked = PlanRequest(by_devcontainer=True)
    if case.refused:
        with pytest.raises(EnvironmentRefused, match=case.refused):
            plan(files, asked)
        assert plan(files).kind is PlanKind.HOST
        return
    made = plan(files, asked)
    assert (made.kind, made.path) == (PlanKind(case.kind), PLACE)
    assert len(made.dropped) == len(case.dropped)
    for one, words in zip(made.dropped, case.dropped, strict=True):
        assert words in one.what and one.why
    assert "localEnv" not in json.dumps([made.variables, made.mounts], default=str)
    if made.build is not None:
        with pytest.raises(EnvironmentRefused, match="nothing here can build"):
            plan(files, asked, NoImages())


def of(name: str) -> EnvironmentPlan:
    case = next(one for one in DEVCONTAINERS if one.name == name)
    return plan({PLACE: case.text, **case.files})


def test_what_a_dev_container_gives() -> None:
    assert of("its workspace elsewhere").folder == "/src/app"
    volumes = of("volumes for what is built")
    assert volumes.mounts == (
        PlannedMount("/workspace/node_modules", "volume", "app-node_modules"),
        PlannedMount("/scratch", "tmpfs"),
    )
    assert of("a user with the ids of the host").user == "node"
    env = of("variables by runArgs")
    assert [(one.name, one.value) for one in env.variables] == [("A", "1")]
    assert env.user == "dev"
    variables = {
        one.name: (one.value, one.resolved) for one in of("the person's variables").variables
    }
    assert variables == {
        "TOKEN": ("", True),
        "EDITOR": ("vi", True),
        "PATH": ("${containerEnv:PATH}:/opt/bin", False),
    }
    assert [one.text for one in of("all of the hooks").hooks] == [
        *("a", "b c", "npm ci", "make db", "d", "e"),
    ]
    assert [one.number for one in of("ports with names").ports] == [3000, 5432, 6379]
    built = of("a build of the project's root")
    assert built.build is not None
    assert (built.build.dockerfile, built.build.context) == ("Dockerfile.dev", ".")
    assert (built.build.target, built.user, built.image) == ("dev", "root", "python:3.12")


DOCKER = {"Dockerfile": "FROM debian:12\n"}
OTHER = {"docker/dev.Dockerfile": "FROM fedora:40\n"}
DEV = {PLACE: '{"image": "dev:1"}', ".devcontainer/b/devcontainer.json": '{"image": "dev:2"}'}


def test_arguments_that_are_the_engines_own_are_not_a_files() -> None:
    """Engines do not count them when they look for what is built already: another project with the
    same steps would get what was fetched by this one's proxy."""
    given = {
        "VERSION": "3",
        "http_proxy": "http://192.0.2.1",
        "HTTPS_PROXY": "http://192.0.2.1",
        "all_proxy=http://192.0.2.1": "",
        "BUILDKIT_SYNTAX": "elsewhere/frontend",
    }
    config = {"build": {"dockerfile": "../Dockerfile", "args": given}}
    files = {PLACE: json.dumps(config), "Dockerfile": "FROM debian\nRUN true\n"}
    made = plan(files, PlanRequest(by_devcontainer=True))
    assert made.build is not None
    assert made.build.args == {"VERSION": "3"}
    dropped = [one.what for one in made.dropped if one.what.startswith("build.args: ")]
    assert len(dropped) == len(given) - 1


@pytest.mark.parametrize(
    ("request_", "kind", "image"),
    [
        (AUTO, "build", "debian:12"),
        (PlanRequest("none"), "host", ""),
        (PlanRequest("ubuntu:24.04"), "image", "ubuntu:24.04"),
        (PlanRequest(dockerfile="docker/dev.Dockerfile"), "build", "fedora:40"),
        (PlanRequest(by_devcontainer=True), "image", "dev:1"),
        (PlanRequest(devcontainer=".devcontainer/b"), "image", "dev:2"),
        (PlanRequest(devcontainer=".devcontainer/b/devcontainer.json"), "image", "dev:2"),
    ],
)
def test_what_is_asked_for_decides(request_: PlanRequest, kind: str, image: str) -> None:
    made = plan(DOCKER | OTHER | DEV, request_)
    assert (made.kind, made.image) == (PlanKind(kind), image)


@pytest.mark.parametrize(
    "request_",
    [
        PlanRequest("debian", dockerfile="Dockerfile"),
        PlanRequest(dockerfile="Dockerfile", by_devcontainer=True),
        PlanRequest(dockerfile="none"),
        PlanRequest(dockerfile="../Dockerfile"),
        PlanRequest(dockerfile="/etc/passwd"),
        PlanRequest(devcontainer="none"),
        PlanRequest("./missing.tar"),
        PlanRequest("/nowhere/at/all"),
    ],
)
def test_what_cannot_be_is_refused(request_: PlanRequest) -> None:
    with pytest.raises(EnvironmentRefused) as caught:
        plan(DOCKER | DEV, request_)
    assert caught.value.hint


def test_archives_and_folders(tmp_path: Path) -> None:
    archive, folder = tmp_path / "image.tar", tmp_path / "root"
    archive.touch()
    folder.mkdir()
    assert plan({}, PlanRequest(str(archive))).kind is PlanKind.ARCHIVE
    assert plan({}, PlanRequest(str(folder))).kind is PlanKind.FOLDER


def test_an_image_that_is_not_here_is_not_fetched_unasked() -> None:
    made = plan(DEV, means=Engine())
    assert made.kind is PlanKind.HOST and "carrel image pull dev:1" in made.why
    assert not made.may_pull
    assert plan(DEV, PlanRequest(by_devcontainer=True), Engine()).may_pull
    assert plan({}, PlanRequest("dev:1"), Engine()).may_pull


def test_features_are_added_where_that_can_be_done() -> None:
    text = json.dumps(
        {
            "image": "dev:1",
            "features": {
                "./mine": {"a": "b"},
                "example.org/f/node:1": {},
                "../outside": {},
                "http://127.0.0.1/f.tgz": {},
            },
        }
    )
    made = plan({PLACE: text}, means=Engine("*", adds=True))
    assert made.kind is PlanKind.BUILD and made.build is None
    assert [one.reference for one in made.features] == ["./mine", "example.org/f/node:1"]
    assert [one.what for one in made.dropped] == [
        "features: ../outside",
        "features: http://127.0.0.1/f.tgz",
    ]
    bare = plan({PLACE: text})
    assert (bare.kind, bare.features, len(bare.dropped)) == (PlanKind.IMAGE, (), 4)


def test_a_project_on_disk(tmp_path: Path) -> None:
    """Its folder's name is that of the project; links that lead out are not followed."""
    root = write(
        tmp_path / "shop",
        {PLACE: '{"image": "a", "workspaceFolder": "/w/${localWorkspaceFolderBasename}"}'},
    )
    assert plan_project(root, AUTO, EVERYTHING).folder == "/w/shop"
    (root / "Dockerfile").symlink_to("/etc/passwd")
    with pytest.raises(EnvironmentRefused):
        plan_project(root, PlanRequest(dockerfile="Dockerfile"), EVERYTHING)


KEYS = st.sampled_from(
    [
        "image",
        "build",
        "dockerFile",
        "features",
        "mounts",
        "runArgs",
        "remoteEnv",
        "containerEnv",
        "workspaceFolder",
        "workspaceMount",
        "forwardPorts",
        "remoteUser",
        "postCreateCommand",
        "privileged",
        "hostRequirements",
        "dockerComposeFile",
        "service",
        "portsAttributes",
    ]
)
WORDS = st.sampled_from(
    [
        "",
        "a",
        "/",
        "..",
        "-v",
        "--env",
        "=",
        "${localEnv:",
        "${localEnv:A}",
        "${}",
        "}",
        "type=bind",
        "source=/,target=/x",
        "--mount",
        "\x00",
        "${containerWorkspaceFolder}",
        ":",
        "${a",
        "é",
        "-e",
    ]
)
TEXTS = st.lists(WORDS, max_size=4).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 70_000) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(60, exhaustive=2000), deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.lists(WORDS, max_size=30).map("\n".join))
def test_any_file_gives_a_plan_or_a_reason(config: dict[str, object], dockerfile: str) -> None:
    files = {PLACE: json.dumps(config), ".devcontainer/a": dockerfile, "Dockerfile": dockerfile}
    assert plan(files).why
    for request in (PlanRequest(by_devcontainer=True), PlanRequest(dockerfile="Dockerfile")):
        try:
            made = plan(files, request)
        except EnvironmentRefused as error:
            assert error.message and error.hint
        else:
            assert made.kind in (PlanKind.IMAGE, PlanKind.BUILD)
            assert not any("localEnv:" in one.value for one in made.variables)
