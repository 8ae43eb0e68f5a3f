"""The versions that a project asks for."""

from __future__ import annotations

import pytest

from carrel.environments.versions import MAX_VERSIONS
from tests.environments.rig import messages, think


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        (".python-version", "3.12.1\n", [("python", "3.12.1", 1)]),
        (
            ".python-version",
            "# two\n3.12\n3.11 # old\n",
            [("python", "3.12", 2), ("python", "3.11", 3)],
        ),
        (".python-version", "pypy3.9-7.3.11", [("python", "pypy3.9-7.3.11", 1)]),
        (".nvmrc", "v20.11.1\r\n", [("node", "20.11.1", 1)]),
        (".nvmrc", "lts/*", [("node", "lts/*", 1)]),
        (".node-version", "22", [("node", "22", 1)]),
        (".ruby-version", "ruby-3.2.1", [("ruby", "3.2.1", 1)]),
        (".java-version", "17", [("java", "17", 1)]),
        (".go-version", "go1.22.3", [("go", "1.22.3", 1)]),
        (".php-version", "8.3", [("php", "8.3", 1)]),
        (
            ".tool-versions",
            "nodejs 20.1.0 18 # two\n\ngolang 1.22\nterraform 1.5\n",
            [("node", "20.1.0", 1), ("node", "18", 1), ("go", "1.22", 3), ("terraform", "1.5", 4)],
        ),
        (
            "mise.toml",
            '[tools]\nnode = "20"\npython = ["3.12", "3.11"]\ngo = {version = "1.22"}\nbun = 1.1\n',
            [
                ("node", "20", None),
                ("python", "3.12", None),
                ("python", "3.11", None),
                ("go", "1.22", None),
                ("bun", "1.1", None),
            ],
        ),
        (
            ".sdkmanrc",
            "# sdk env\njava=21.0.2-tem\nmvn = 3.9.6\n",
            [("java", "21.0.2-tem", 2), ("maven", "3.9.6", 3)],
        ),
        ("runtime.txt", "python-3.11.4\n", [("python", "3.11.4", 1)]),
        ("rust-toolchain", "nightly-2024-01-01\n", [("rust", "nightly-2024-01-01", 1)]),
        ("rust-toolchain", '[toolchain]\nchannel = "1.75"\n', [("rust", "1.75", None)]),
        ("rust-toolchain.toml", '[toolchain]\nchannel = "stable"\n', [("rust", "stable", None)]),
        (
            "go.mod",
            "module example.org/x\n\ngo 1.22.0\n\ntoolchain go1.22.3\n",
            [("go", "1.22.3", 5), ("go", "1.22.0", 3)],
        ),
        ("go.work", "go 1.21\n", [("go", "1.21", 1)]),
        (
            "global.json",
            '{"sdk": {"version": "8.0.100"}, /* why */}',
            [("dotnet", "8.0.100", None)],
        ),
        (
            "package.json",
            '{"volta": {"node": "20.1.0"}, "engines": {"node": ">=18", "npm": ">=9"},'
            ' "packageManager": "pnpm@9.1.0+sha512.abc"}',
            [
                ("node", "20.1.0", None),
                ("node", ">=18", None),
                ("npm", ">=9", None),
                ("pnpm", "9.1.0", None),
            ],
        ),
        ("Pipfile", '[requires]\npython_version = "3.11"\n', [("python", "3.11", None)]),
        (
            "pyproject.toml",
            '[project]\nrequires-python = ">=3.11"\n[tool.poetry.dependencies]\npython = "^3.11"\n',
            [("python", ">=3.11", None), ("python", "^3.11", None)],
        ),
        ("setup.cfg", "[options]\npython_requires = >=3.8\n", [("python", ">=3.8", 2)]),
        ("setup.py", "setup(\n  python_requires='>=3.7',\n)\n", [("python", ">=3.7", 2)]),
        ("Cargo.toml", '[package]\nrust-version = "1.70"\n', [("rust", "1.70", None)]),
        (
            "Cargo.toml",
            '[workspace.package]\nrust-version = "1.71"\n',
            [("rust", "1.71", None)],
        ),
        ("Gemfile", 'source "x"\nruby "3.2.1"\n', [("ruby", "3.2.1", 2)]),
        ("Gemfile", 'ruby file: ".ruby-version"\n', []),
        ("composer.json", '{"require": {"php": ">=8.1"}}', [("php", ">=8.1", None)]),
        ("mix.exs", 'elixir: "~> 1.14",\n', [("elixir", "~> 1.14", 1)]),
        ("pom.xml", "<java.version>17</java.version>", [("java", "17", 1)]),
        (
            "pom.xml",
            "<maven.compiler.release>\n  21\n</maven.compiler.release>",
            [("java", "21", 2)],
        ),
        (
            "build.gradle.kts",
            "languageVersion.set(JavaLanguageVersion.of(17))\n",
            [("java", "17", 1)],
        ),
        ("build.gradle", "sourceCompatibility = '11'\n", [("java", "11", 1)]),
        ("build.gradle", "sourceCompatibility JavaVersion.VERSION_1_8\n", [("java", "8", 1)]),
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.20...3.28)\n",
            [("cmake", "3.20...3.28", 1)],
        ),
        ("Package.swift", "// swift-tools-version:5.9\n", [("swift", "5.9", 1)]),
    ],
)
def test_where_versions_stand(
    name: str, text: str, asked: list[tuple[str, str, int | None]]
) -> None:
    report = think({name: text})
    assert [(one.tool, one.version, one.line) for one in report.versions] == asked
    assert all(one.path == name for one in report.versions)
    assert report.notes == ()


def test_what_pins_comes_before_what_gives_a_range() -> None:
    files = {
        "pyproject.toml": '[project]\nrequires-python = ">=3.9"\n',
        ".tool-versions": "python 3.11.4\n",
        ".python-version": "3.12\n",
    }
    report = think(files)
    assert [one.version for one in report.versions] == ["3.12", "3.11.4", ">=3.9"]
    python = next(one for one in report.toolchain.programs if one.name == "python3")
    assert python.asked == "3.12"


@pytest.mark.parametrize(
    ("name", "text", "line", "message"),
    [
        (".nvmrc", "x" * 200, 1, "What it asks for of 'node' is no version."),
        (".nvmrc", "20\n\x1b[31m", 2, "What it asks for of 'node' is no version."),
        (".tool-versions", "python 3.12\nruby\n", 2, "A tool has no version."),
        (".sdkmanrc", "java\n", 1, "A line is not TOOL=VERSION."),
        (
            "mise.toml",
            "[tools\n",
            1,
            "It is not valid TOML: Expected ']' at the end of a table declaration.",
        ),
        ("Cargo.toml", "a = 1\nb = [1,,]\n", 2, "It is not valid TOML: Invalid value."),
        ("Cargo.toml", "a = " + "[" * 100_000, None, "It is nested too deeply."),
        ("Cargo.toml", ".".join("a" * 10_000) + " = 1", None, "Its keys are too long."),
        (
            "package.json",
            "{\n\n",
            3,
            "It is not valid JSON: Expecting property name enclosed in double quotes.",
        ),
        (
            ".tool-versions",
            "a 1\n" * (MAX_VERSIONS + 1),
            None,
            "More than 200 versions are asked for.",
        ),
    ],
)
def test_what_is_malformed(name: str, text: str, line: int | None, message: str) -> None:
    assert messages(think({name: text})) == [(name, line, message)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("package.json", '{"engines": [], "volta": {"node": 1}, "packageManager": 3}'),
        ("pyproject.toml", "project = 1\n"),
        ("mise.toml", "tools = 3\n"),
        ("mise.toml", "[tools]\nnode = true\npython = {path = 'x'}\n"),
        ("rust-toolchain.toml", "toolchain = []\n"),
        (".nvmrc", ""),
        (".nvmrc", "# nothing\n\n"),
    ],
)
def test_values_of_another_kind_ask_for_nothing(name: str, text: str) -> None:
    assert think({name: text}).versions == ()
