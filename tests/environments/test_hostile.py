"""Files that were written to break us: never a crash, never an endless read."""

from __future__ import annotations

import dataclasses
import json
import string
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carrel.environments.files import MAX_BYTES, MAX_NOTES
from carrel.environments.language_table import LANGUAGES
from tests.environments.rig import think
from tests.sampling import examples

CPU_S = 10.0
"""The worst of these takes half a second; what grows with the square takes minutes."""

MARKERS = {marker.replace("*", "x") for language in LANGUAGES for marker in language.markers}
NAMES = sorted(
    MARKERS
    | {"Dockerfile", "Containerfile", ".devcontainer.json", ".devcontainer/devcontainer.json"}
    | {".devcontainer/a/devcontainer.json", ".devcontainer/Dockerfile", "sub/package.json"}
    | {".python-version", ".nvmrc", ".tool-versions", "mise.toml", ".sdkmanrc"}
    | {"rust-toolchain", "rust-toolchain.toml", "runtime.txt", "yarn.lock"}
)

DOCKER_WORDS = st.sampled_from(
    [
        "FROM ",
        "ENV ",
        "ARG ",
        "EXPOSE ",
        "RUN ",
        "USER ",
        "WORKDIR ",
        "ONBUILD ",
        "AS ",
        "a",
        "b",
        "$a",
        "${a}",
        "${b:-",
        "}",
        "'",
        '"',
        "\\",
        "\\\n",
        "\n",
        "\n",
        "=",
        " ",
        "#",
        "80",
        "-90",
        "/udp",
        "<<E",
        "E\n",
        "`",
        "# escape=`\n",
        "--platform=x ",
        "\x00",
        "\u2028",
        "\r",
        "\t",
    ]
)
DEV_KEYS = st.sampled_from(
    [
        "image",
        "build",
        "dockerFile",
        "dockerfile",
        "context",
        "target",
        "args",
        "features",
        "postCreateCommand",
        "onCreateCommand",
        "postStartCommand",
        "initializeCommand",
        "service",
        "forwardPorts",
        "appPort",
        "portsAttributes",
        "80",
        "label",
        "containerEnv",
        "remoteEnv",
        "remoteUser",
        "dockerComposeFile",
        "workspaceFolder",
        "engines",
        "node",
        "packageManager",
        "volta",
        "sdk",
        "version",
        "require",
        "php",
        "config",
        "platform",
    ]
)
DEV_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 70_000)
    | st.text(max_size=8)
    | st.sampled_from(["Dockerfile", "../Dockerfile", "../../x", "/x", "db:80", "1:2", "pnpm@1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(DEV_KEYS, inner, max_size=4),
    max_leaves=12,
)
TOML_WORDS = st.sampled_from(
    [
        "[tool.poetry]",
        "[project]",
        "[[x]]",
        "[tools]",
        "[toolchain]",
        "[requires]",
        "\n",
        "\n",
        "requires-python",
        "python",
        "channel",
        "node",
        "=",
        " = ",
        "'1'",
        '"3.12"',
        "1",
        "1.5",
        "[",
        "]",
        "{",
        "}",
        ",",
        ".",
        "#",
        "'''",
        '"',
        "\\",
        "inf",
        "1979-05-27",
        "true",
        "\x00",
    ]
)

TEXTS = (
    st.lists(DOCKER_WORDS, max_size=40).map("".join)
    | st.dictionaries(DEV_KEYS, DEV_VALUES, max_size=8).map(json.dumps)
    | st.lists(TOML_WORDS, max_size=30).map("".join)
    | st.text(string.printable, max_size=200)
    | st.text(max_size=100)
)
CONTENTS = TEXTS.map(lambda text: text.encode(errors="replace")) | st.binary(max_size=200)


def check(files: dict[str, bytes]) -> None:
    report = think(files)
    # Serializable as UTF-8, whatever was in the files.
    assert json.dumps(dataclasses.asdict(report), ensure_ascii=False).encode()
    assert len(report.notes) <= MAX_NOTES + 1
    assert all(note.line is None or note.line > 0 for note in report.notes)
    assert all("\0" not in word for command in report.setup for word in command.argv)
    assert all(one.name and "\0" not in one.name + one.value for one in report.variables)
    assert all(0 < port.number < 1 << 16 for port in report.ports)
    assert all(one.version.isprintable() for one in report.versions)
    assert think(files) == report


@settings(
    max_examples=examples(100, exhaustive=300),
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)
@given(st.dictionaries(st.sampled_from(NAMES), CONTENTS, max_size=6))
def test_any_project(files: dict[str, bytes]) -> None:
    check(files)


@settings(max_examples=examples(100, exhaustive=300), deadline=None)
@given(st.lists(DOCKER_WORDS, max_size=60).map("".join))
def test_any_dockerfile(text: str) -> None:
    check({"Dockerfile": b"FROM a\n" + text.encode(), "Containerfile": text.encode()})


@settings(max_examples=examples(100, exhaustive=300), deadline=None)
@given(st.dictionaries(DEV_KEYS, DEV_VALUES, max_size=8))
def test_any_devcontainer(config: dict[str, object]) -> None:
    text = json.dumps(config).encode()
    check({".devcontainer/devcontainer.json": text, "package.json": text, "Dockerfile": text})


@settings(max_examples=examples(100, exhaustive=300), deadline=None)
@given(st.lists(TOML_WORDS, max_size=40).map("".join))
def test_any_toml(text: str) -> None:
    names = ("pyproject.toml", "mise.toml", "Cargo.toml", "rust-toolchain", "Pipfile")
    check(dict.fromkeys(names, text.encode()))


def _filled(unit: str, before: str = "", after: str = "") -> str:
    """As much of it as is read."""
    return before + unit * ((MAX_BYTES - len(before) - len(after)) // len(unit)) + after


MANY_VARIABLES = "FROM a AS a\n" + "".join(f"ENV A{n}=1\n" for n in range(900))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", _filled("a.", after="a=1")),
        ("pyproject.toml", _filled("[", "a=")),
        ("pyproject.toml", _filled("{a=", "a=")),
        ("pyproject.toml", _filled("b=1\n", "[" + "a." * 500 + "a]\n")),
        ("pyproject.toml", _filled("[" + "a." * 300 + "a]\n")),
        ("pyproject.toml", _filled("9", "a=")),
        ("pyproject.toml", _filled("[[a]]\n")),
        ("pyproject.toml", _filled("[tool.poetr\n")),
        (".devcontainer.json", _filled("[")),
        (".devcontainer.json", _filled('\\"', '{"')),
        (".devcontainer.json", _filled("/")),
        (".devcontainer.json", _filled("/*")),
        (".devcontainer.json", _filled(",    ")),
        (".devcontainer.json", _filled("1,", '{"forwardPorts": [', "1]}")),
        ("package.json", _filled("9")),
        ("Dockerfile", _filled("ENV A=$A$A\n", "FROM a\nENV A=xx\n")),
        ("Dockerfile", _filled("ENV B=$A\n", "FROM a\nENV A=" + "x" * 100_000 + "\n")),
        ("Dockerfile", _filled("ARG A=$A$A\n", "ARG A=xx\n", "FROM $A\n")),
        ("Dockerfile", _filled("FROM a AS a\n", MANY_VARIABLES)),
        ("Dockerfile", _filled("EXPOSE 1-90 100-190 200-290\n", MANY_VARIABLES)),
        ("Dockerfile", _filled("WORKDIR a\n", "FROM a\n")),
        ("Dockerfile", _filled("${A:-", "FROM ")),
        ("Dockerfile", _filled("\\\n", "FROM a")),
        ("Dockerfile", _filled("<<E ", "FROM a\nRUN ")),
        ("Dockerfile", _filled("'", "FROM a\nENV A=")),
        ("Dockerfile", _filled("WRONG\n")),
        ("build.gradle", _filled(" ", "sourceCompatibility")),
        ("Gemfile", _filled(" ", "ruby")),
        ("CMakeLists.txt", _filled(" ", "cmake_minimum_required(")),
        ("CMakeLists.txt", _filled("cmake_minimum_required( ")),
        ("setup.cfg", _filled(" ")),
        ("pom.xml", _filled("<java.version> ")),
        ("carrel.toml", _filled("'',", "[setup]\nrun=[", "]")),
        (".tool-versions", _filled("a ")),
    ],
)
def test_work_is_bounded(name: str, text: str) -> None:
    start = time.process_time()
    think({name: text})
    assert time.process_time() - start < CPU_S
