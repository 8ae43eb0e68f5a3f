"""Which rule decides, and what else is said."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from carrel.domain.environments import EnvironmentReport, Rule
from tests.environments.rig import inspect_written, messages, think

DOCKER = {"Dockerfile": "FROM docker\nENV A=1\nEXPOSE 80\n"}
DEV = {".devcontainer/devcontainer.json": '{"image": "dev", "forwardPorts": [90]}'}
CODE = {"package.json": "{}", "go.mod": "go 1.22\n"}


@pytest.mark.parametrize(
    ("files", "decided", "also", "image"),
    [
        (
            DOCKER | DEV | CODE,
            "Dockerfile",
            [".devcontainer/devcontainer.json", "package.json", "go.mod"],
            "docker",
        ),
        (DEV | CODE, ".devcontainer/devcontainer.json", ["package.json", "go.mod"], "dev"),
        (CODE, "package.json", ["go.mod"], "debian:stable"),
        ({}, "", [], "debian:stable"),
        ({"README.md": "Hello"}, "", [], "debian:stable"),
    ],
)
def test_the_order(
    tmp_path: Path, files: dict[str, str], decided: str, also: list[str], image: str
) -> None:
    report = inspect_written(tmp_path, files)
    assert report.decided.path == decided
    assert [match.path for match in report.also] == also
    assert report.image.reference == image
    rules = list(Rule)
    order = [rules.index(match.rule) for match in (report.decided, *report.also)]
    assert order == sorted(order)
    assert report.notes == ()


def test_the_default() -> None:
    report = think({})
    assert report.decided.rule is Rule.DEFAULT
    assert report.decided.why == "No file of the project asks for anything."
    assert report.image.why == "debian:stable is the default."
    assert [program.name for program in report.toolchain.programs] == ["sh", "git"]
    assert (report.setup, report.versions, report.languages) == ((), (), ())


def test_ports_and_variables_are_of_the_file_that_decides() -> None:
    report = think(DOCKER | DEV)
    assert [port.number for port in report.ports] == [80]
    assert [one.name for one in report.variables] == ["A"]


def test_the_host_is_looked_at_in_any_case() -> None:
    report = think(DOCKER | CODE)
    needed = {program.name for program in report.toolchain.programs}
    assert {"node", "npm", "go"} <= needed
    assert [one.text for one in report.setup] == ["npm install", "go mod download"]
    assert [one.tool for one in report.versions] == ["go"]


@pytest.mark.parametrize(
    ("config", "commands"),
    [
        ('{"image": "a"}', ["npm install"]),
        ('{"image": "a", "postCreateCommand": "make"}', ["make"]),
        ('{"image": "a", "postStartCommand": "serve"}', ["npm install", "serve"]),
        ('{"image": "a", "postCreateCommand": ""}', ["npm install"]),
    ],
)
def test_whose_commands_set_it_up(config: str, commands: list[str]) -> None:
    report = think({".devcontainer.json": config, "package.json": "{}"})
    assert [one.text for one in report.setup] == commands


@pytest.mark.parametrize(
    ("said", "commands", "noted"),
    [
        ('run = "make deps"', ["make deps", "serve"], ""),
        ('run = ["make a", ["make", "b c"], ""]', ["make a", "make 'b c'", "serve"], ""),
        ('run = ["make a", 3]', ["make a", "serve"], "neither a string"),
        ('runs = "make"', ["npm install", "serve"], "needs run"),
        ('run = ["make"', ["npm install", "serve"], "not valid TOML"),
        (f"run = {['make'] * 60}", [*["make"] * 50, "serve"], "up to 50"),
    ],
)
def test_what_the_project_says_itself_comes_first(
    said: str, commands: list[str], noted: str
) -> None:
    container = '{"image": "a", "postStartCommand": "serve"}'
    files = {".devcontainer.json": container, "package.json": "{}"}
    report = think({**files, "carrel.toml": f"[setup]\n{said}\n"})
    assert [one.text for one in report.setup] == commands
    told = " ".join(note.message for note in report.notes if note.path == "carrel.toml")
    assert noted in told and bool(told) == bool(noted)


def test_files_that_cannot_be_used_are_passed_over() -> None:
    report = think(
        {
            "Dockerfile": "RUN true\n",
            ".devcontainer.json": "{",
            "package.json": "{,}",
            "pyproject.toml": "=",
        }
    )
    assert report.decided.path == "package.json"
    assert [one.name for one in report.languages] == ["node", "python"]
    paths = [path for path, _, _ in messages(report)]
    assert paths == [
        "Dockerfile",
        "Dockerfile",
        ".devcontainer.json",
        "package.json",
        "pyproject.toml",
    ]


def test_too_many_notes() -> None:
    report = think({"Dockerfile": "FROM a\n" + "WRONG\n" * 150})
    assert len(report.notes) == 101
    assert report.notes[-1].message == "50 further notes are left out."


def test_a_report_can_be_written_down(tmp_path: Path) -> None:
    files = {
        **DOCKER,
        **CODE,
        ".devcontainer.json": '{"build": {"dockerfile": "Dockerfile"}, "features": {"f": "1"}}',
    }
    for report in (inspect_written(tmp_path, files), think({**files, "Dockerfile": ""})):
        written = msgspec.json.encode(report)
        assert msgspec.json.decode(written, type=EnvironmentReport) == report


def test_nothing_is_written(tmp_path: Path) -> None:
    inspect_written(tmp_path, DOCKER | DEV | CODE)
    found = {
        os.path.relpath(os.path.join(folder, name), tmp_path)
        for folder, _, names in os.walk(tmp_path)
        for name in names
    }
    assert found == set(DOCKER | DEV | CODE)
