"""Languages, their managers and their images."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.domain.environments import EnvironmentReport, Rule
from carrel.environments.language_table import LANGUAGES
from carrel.environments.versions import image_tag
from tests.environments.rig import inspect_written, messages, think

WITH_CONTENT = {
    "package.json": "{}",
    "composer.json": "{}",
    "global.json": "{}",
    "environment.yml": "dependencies:\n  - python\n",
    "environment.yaml": "dependencies:\n  - python\n",
}
"""What a marker must hold to be taken for one."""
MARKERS = [(language.name, marker) for language in LANGUAGES for marker in language.markers]


def setup(report: EnvironmentReport) -> list[str]:
    return [command.text for command in report.setup]


def programs(report: EnvironmentReport) -> list[str]:
    return [program.name for program in report.toolchain.programs]


@pytest.mark.parametrize(("language", "marker"), MARKERS)
def test_every_marker_is_recognised(tmp_path: Path, language: str, marker: str) -> None:
    name = marker.replace("*", "some")
    report = inspect_written(tmp_path, {name: WITH_CONTENT.get(name, "")})
    assert report.decided.rule is Rule.LANGUAGE
    assert report.decided.path == name
    assert [found.name for found in report.languages] == [language]
    assert len(programs(report)) > 2
    assert report.image.reference
    assert report.notes == ()


@pytest.mark.parametrize(
    ("files", "manager", "commands"),
    [
        ({"package.json": "{}"}, "npm", ["npm install"]),
        ({"package.json": "{}", "package-lock.json": ""}, "npm", ["npm ci"]),
        ({"package.json": "{}", "npm-shrinkwrap.json": ""}, "npm", ["npm ci"]),
        (
            {"package.json": "{}", "pnpm-lock.yaml": ""},
            "pnpm",
            ["pnpm install --frozen-lockfile"],
        ),
        ({"package.json": "{}", "yarn.lock": ""}, "yarn", ["yarn install --frozen-lockfile"]),
        (
            {"package.json": "{}", "yarn.lock": "", ".yarnrc.yml": ""},
            "yarn",
            ["yarn install --immutable"],
        ),
        ({"package.json": "{}", "bun.lockb": ""}, "bun", ["bun install --frozen-lockfile"]),
        ({"package.json": "{}", "bun.lock": ""}, "bun", ["bun install --frozen-lockfile"]),
        (
            {"package.json": '{"packageManager": "pnpm@9.1.0+sha1.abc"}'},
            "pnpm",
            ["pnpm install --frozen-lockfile"],
        ),
        (
            {"package.json": '{"packageManager": "npm@10"}', "package-lock.json": ""},
            "npm",
            ["npm ci"],
        ),
        ({"package.json": '{"packageManager": "strange@1"}'}, "npm", ["npm install"]),
        ({"package.json": '{"packageManager": 1}'}, "npm", ["npm install"]),
        ({"pyproject.toml": "", "uv.lock": ""}, "uv", ["uv sync"]),
        ({"pyproject.toml": "[tool.poetry]\n"}, "poetry", ["poetry install"]),
        ({"pyproject.toml": "", "poetry.lock": ""}, "poetry", ["poetry install"]),
        ({"pyproject.toml": "[tool.pdm.dev-dependencies]\n"}, "pdm", ["pdm install"]),
        ({"Pipfile": "", "Pipfile.lock": ""}, "pipenv", ["pipenv sync --dev"]),
        ({"Pipfile": ""}, "pipenv", ["pipenv install --dev"]),
        (
            {"requirements.txt": "", "setup.py": ""},
            "pip",
            ["python3 -m venv .venv", ".venv/bin/pip install -r requirements.txt"],
        ),
        (
            {"pyproject.toml": '[project]\nname = "x"\n'},
            "pip",
            ["python3 -m venv .venv", ".venv/bin/pip install -e ."],
        ),
        ({"pyproject.toml": "[tool.ruff]\n"}, "", []),
        (
            {"environment.yaml": "name: x\ndependencies:\n- numpy\n"},
            "conda",
            ["conda env create --file environment.yaml"],
        ),
        (
            {"setup.py": "", "environment.yml": "dependencies: []\n"},
            "conda",
            ["conda env create --file environment.yml"],
        ),
        ({"Cargo.toml": ""}, "cargo", ["cargo fetch"]),
        ({"Cargo.toml": "", "Cargo.lock": ""}, "cargo", ["cargo fetch --locked"]),
        ({"go.mod": ""}, "go", ["go mod download"]),
        ({"pom.xml": ""}, "maven", ["mvn -B dependency:go-offline"]),
        ({"pom.xml": "", "mvnw": ""}, "maven", ["./mvnw -B dependency:go-offline"]),
        ({"build.gradle.kts": ""}, "gradle", ["gradle --no-daemon dependencies"]),
        ({"build.gradle": "", "gradlew": ""}, "gradle", ["./gradlew --no-daemon dependencies"]),
        ({"Gemfile": ""}, "bundler", ["bundle install"]),
        ({"composer.json": "{}"}, "composer", ["composer install"]),
        (
            {"mix.exs": ""},
            "mix",
            ["mix local.hex --force --if-missing", "mix deps.get"],
        ),
        ({"app.csproj": ""}, "dotnet", ["dotnet restore"]),
        ({"global.json": "{}"}, "", []),
        ({"CMakeLists.txt": ""}, "cmake", ["cmake -S . -B build"]),
        ({"meson.build": ""}, "meson", ["meson setup build"]),
        ({"deno.json": "{}"}, "", []),
    ],
)
def test_managers(files: dict[str, str], manager: str, commands: list[str]) -> None:
    report = think(files)
    (found,) = report.languages
    assert found.manager == manager
    assert setup(report) == commands
    assert report.notes == ()


def test_two_locks_contradict_each_other() -> None:
    report = think({"package.json": "{}", "package-lock.json": "", "yarn.lock": ""})
    assert setup(report) == ["yarn install --frozen-lockfile"]
    assert messages(report) == [
        ("package-lock.json", None, "It pins the packages too, but yarn.lock decides.")
    ]


def test_several_languages_at_once() -> None:
    files = {"package.json": "{}", "pyproject.toml": "[project]\n", "Makefile": ""}
    report = think(files)
    assert [found.name for found in report.languages] == ["node", "python", "make"]
    assert (report.decided.path, report.decided.why) == (
        "package.json",
        "package.json is there, so the project is written in Node.js, with npm.",
    )
    assert [(match.rule, match.path) for match in report.also] == [
        (Rule.LANGUAGE, "pyproject.toml"),
        (Rule.LANGUAGE, "Makefile"),
    ]
    assert report.also[1].why == "Makefile is there, so the project uses Make."
    assert setup(report) == [
        "npm install",
        "python3 -m venv .venv",
        ".venv/bin/pip install -e .",
    ]
    assert report.image.reference == "debian:stable"
    assert report.image.why == (
        "No one image is known for Node.js and Python: the default, without their programs."
    )


def test_one_program_for_two_languages() -> None:
    report = think({"Cargo.toml": "", "CMakeLists.txt": ""})
    compiler = next(one for one in report.toolchain.programs if one.name == "cc")
    assert compiler.needed_by == ("Rust", "C or C++")


def test_folders_are_looked_into_when_the_root_tells_nothing() -> None:
    files = {
        "Makefile": "",
        "back/pyproject.toml": "[project]\n",
        "back/.python-version": "3.12",
        "front/package.json": "{}",
        "front/Makefile": "",
        "front/deep/go.mod": "",
        "node_modules/Gemfile": "",
        ".hidden/Gemfile": "",
    }
    report = think(files)
    assert [(one.name, one.folder, one.path) for one in report.languages] == [
        ("make", ".", "Makefile"),
        ("python", "back", "back/pyproject.toml"),
        ("node", "front", "front/package.json"),
    ]
    assert [(one.folder, one.text) for one in report.setup] == [
        ("back", "python3 -m venv .venv"),
        ("back", ".venv/bin/pip install -e ."),
        ("front", "npm install"),
    ]
    assert [(one.tool, one.path) for one in report.versions] == [("python", "back/.python-version")]
    below = think({**files, "Cargo.toml": ""})
    assert [one.name for one in below.languages] == ["rust", "make"]


def test_too_many_folders() -> None:
    report = think({f"f{n:03}/go.mod": "" for n in range(100)})
    assert len(report.languages) == 64
    assert [note.path for note in report.notes] == ["."]


def test_a_helper_alone() -> None:
    report = think({"Makefile": "all:\n"})
    assert report.decided.rule is Rule.LANGUAGE
    assert report.image.reference == "debian:stable"
    assert programs(report) == ["sh", "git", "make"]


def test_an_environment_file_of_something_else() -> None:
    assert think({"environment.yml": "production:\n  dependencies: x\n"}).languages == ()


@pytest.mark.parametrize(
    ("files", "reference"),
    [
        ({"package.json": "{}"}, "node:lts"),
        ({"package.json": "{}", ".nvmrc": "v20.11.1"}, "node:20.11.1"),
        ({"package.json": '{"engines": {"node": "^18.2"}}'}, "node:18"),
        ({"package.json": '{"engines": {"node": ">=18"}}'}, "node:lts"),
        ({"pyproject.toml": '[project]\nrequires-python = "~=3.11"\n'}, "python:3.11"),
        ({"setup.py": "", ".python-version": "3.12\n"}, "python:3.12"),
        ({"Cargo.toml": "", "rust-toolchain": "stable"}, "rust:1"),
        ({"Cargo.toml": "", "rust-toolchain": "1.75.0"}, "rust:1.75.0"),
        ({"pom.xml": "", ".sdkmanrc": "java=17.0.9-tem"}, "eclipse-temurin:17-jdk"),
        ({"pom.xml": ""}, "eclipse-temurin:21-jdk"),
        ({"composer.json": '{"require": {"php": "8.2.*"}}'}, "php:8.2-cli"),
        ({"deno.json": "{}"}, "debian:stable"),
    ],
)
def test_images(files: dict[str, str], reference: str) -> None:
    report = think(files)
    assert report.image.reference == reference
    assert reference in report.image.why or "default" in report.image.why


@pytest.mark.parametrize(
    ("tool", "version", "tag"),
    [
        ("python", "3.12", "3.12"),
        ("python", "==3.11.4", "3.11.4"),
        ("python", "==3.11.*", "3.11"),
        ("python", ">=3.9,<4", ""),
        ("node", "v20", "20"),
        ("node", "20.x", "20"),
        ("node", "18.x.x", "18"),
        ("node", "~18.2.0", "18.2"),
        ("node", "^18 || ^20", ""),
        ("node", "lts/iron", ""),
        ("ruby", "~> 3.2.1", "3.2"),
        ("java", "temurin-21.0.1+12", "21"),
        ("java", "21.0.2-tem", "21"),
        ("java", "openjdk64-17.0.2", "17"),
        ("java", "1.8", "8"),
        ("java", "1.8.0_392", "8"),
        ("java", "lts", ""),
        ("go", "", ""),
    ],
)
def test_tags(tool: str, version: str, tag: str) -> None:
    assert image_tag(tool, version) == tag
