"""Where the host's programs are found, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.domain.environments import ProgramNeeded
from carrel.environments import languages
from carrel.environments.discovery import inspect_project
from carrel.environments.language_table import LANGUAGES
from carrel.environments.programs import PROGRAMS, PYTHON_VENV, HostPrograms, look_up


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "usr" / "bin"
    folder.mkdir(parents=True)
    return folder


def put(folder: Path, *names: str) -> None:
    """Programs that tell when they are run."""
    for name in names:
        program = folder / name
        program.write_text(f"#!/bin/sh\ntouch {folder}/was-run\n")
        program.chmod(0o755)


def test_found_and_missing(tmp_path: Path, bin_folder: Path) -> None:
    put(bin_folder, "sh", "git", "node")
    (bin_folder / "npm").write_text("not executable")
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text('{"engines": {"node": ">=20"}}')
    report = inspect_project(project, HostPrograms(str(bin_folder)))
    assert report.toolchain.search_path == str(bin_folder)
    programs = {program.name: program for program in report.toolchain.programs}
    assert programs["node"].found == str(bin_folder / "node")
    assert (programs["node"].asked, programs["node"].hint) == (">=20", "")
    assert report.toolchain.missing == (
        ProgramNeeded("npm", ("Node.js",), package="npm", hint="apt-get install npm"),
    )
    assert report.toolchain.packages == ("npm",)
    assert not (bin_folder / "was-run").exists()


def test_the_first_of_the_path(tmp_path: Path, bin_folder: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    put(bin_folder, "go")
    put(local, "go")
    host = HostPrograms(f"{local}:{bin_folder}:{tmp_path}/nowhere")
    assert host.find("go") == str(local / "go")
    assert HostPrograms("").find("go") is None


def test_what_sandboxes_do_not_see(tmp_path: Path, bin_folder: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    put(home, "node")
    put(bin_folder, "npm")
    (bin_folder / "node").symlink_to(home / "node")
    (bin_folder / "npx").symlink_to("npm")
    host = HostPrograms(str(bin_folder), (str(tmp_path / "usr"), str(tmp_path / "not-there")))
    needed = dict.fromkeys(("node", "npm"), ("Node.js",))
    node, npm = look_up(host, needed, {}).programs
    assert node.found == ""
    assert node.hint == (
        f"{bin_folder}/node is {home}/node, which sandboxes do not see. apt-get install nodejs"
    )
    assert npm.found == str(bin_folder / "npm")
    assert host.sees(str(bin_folder / "npx"))
    assert not HostPrograms("", (f"{tmp_path}/us",)).sees(str(bin_folder / "npm"))


def test_pythons_module_for_environments(tmp_path: Path, bin_folder: Path) -> None:
    host = HostPrograms(f"{tmp_path}/nowhere:{bin_folder}")
    assert host.find(PYTHON_VENV) is None
    module = tmp_path / "usr" / "lib" / "python3.11" / "ensurepip" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.touch()
    assert host.find(PYTHON_VENV) == str(module)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cc", "apt-get install gcc"),
        ("pnpm", "npm install --global pnpm"),
        ("uv", "Debian has no package of it. Put uv into /usr/local/bin."),
    ],
)
def test_what_to_do_about_a_missing_one(name: str, hint: str) -> None:
    (program,) = look_up(HostPrograms(""), {name: ("x",)}, {}).programs
    assert program.hint == hint


def test_the_tables_agree() -> None:
    needed = set(languages.BASIC_PROGRAMS)
    for language in LANGUAGES:
        needed |= set(language.programs)
        for manager in language.managers:
            needed |= set(manager.programs)
            for argv in manager.setup:
                own = argv[0].startswith(("./", ".venv/"))
                assert own or argv[0] in manager.programs, (language.name, argv)
    assert needed == set(PROGRAMS)
