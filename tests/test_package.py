"""The package as pip, pipx and uv install it: a program that needs nothing of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.accounts import Account
from tests.folders import remove_folder
from tests.sampling import EXHAUSTIVE, beyond
from tests.trees.again import run_again

ROOT = Path(__file__).resolve().parent.parent
STEP_S = 120.0
SESSION = """
set -e
test "$(carrel new . --name x)" = x
test "$(carrel exec x -- cat greeting)" = hello
carrel exec x -- carrel --version
carrel rm x
carrel down
"""


def run(*words: str | Path, **options: object) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=STEP_S, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def needed(package: str) -> dict[str, metadata.Distribution]:
    """All that it depends on, as it is installed for the tests."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(package)]
    while waiting:
        one = waiting.pop()
        for line in metadata.distribution(one.name).requires or ():
            wanted, extras = Requirement(line), one.extras or {""}
            marker = wanted.marker
            applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
            if applies and (wanted.name not in found or wanted.extras):
                found[wanted.name] = metadata.distribution(wanted.name)
                waiting.append(wanted)
    return found


def wheel_again(distribution: metadata.Distribution, folder: Path) -> None:
    """The wheel from which it was installed, or nearly so."""
    about = distribution.read_text("WHEEL") or ""
    tag = next(line.split()[1] for line in about.splitlines() if line.startswith("Tag:"))
    name = distribution.name.replace("-", "_").replace(".", "_")
    with zipfile.ZipFile(folder / f"{name}-{distribution.version}-{tag}.whl", "w") as wheel:
        for file in distribution.files or ():
            if file.parts[0] != ".." and "__pycache__" not in file.parts:
                wheel.write(str(file.locate()), str(file))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the package, and of all that it needs: nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheels")
    words = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", "-q", *words, "-w", folder, ROOT)
    for distribution in needed("carrel").values():
        wheel_again(distribution, folder)
    return folder


def by_pip(place: Path, env: dict[str, str]) -> None:
    venv.create(place, symlinks=True)
    python = ("--python", str(place / "bin" / "python"))
    run(sys.executable, "-m", "pip", *python, "install", "-q", "carrel", env=env)


def by_pipx(place: Path, env: dict[str, str]) -> None:
    own = {"PIPX_HOME": f"{place}/pipx", "PIPX_BIN_DIR": f"{place}/bin"}
    own |= {"PIPX_MAN_DIR": f"{place}/man", "UV_CACHE_DIR": f"{place}/cache"}
    # Its own pip would have to be a newer one; uv is not looked for elsewhere.
    given = ("--backend=uv", f"--pip-args=--no-index --find-links={env['PIP_FIND_LINKS']}")
    run(sys.executable, "-m", "pipx", "install", *given, "carrel", env={**env, **own})


def by_uv(place: Path, env: dict[str, str]) -> None:
    own = {"UV_TOOL_DIR": f"{place}/tools", "UV_TOOL_BIN_DIR": f"{place}/bin"}
    own |= {"UV_CACHE_DIR": f"{place}/cache", "UV_FIND_LINKS": env["PIP_FIND_LINKS"]}
    uv = Path(sys.executable).with_name("uv")
    run(
        uv, "tool", "install", "-q", "--no-index", "carrel", env={**env, **own, "UV_NO_CONFIG": "1"}
    )


# In a sample root installs in one way, and the ordinary user below in another. pipx uses uv.
SAMPLE = by_uv if os.geteuid() else by_pip
REST = (way for way in (by_pip, by_pipx, by_uv) if way is not SAMPLE)


@pytest.mark.parametrize("install", [SAMPLE, *beyond(*REST)])
def test_the_package_alone_is_a_working_program(
    install: Callable[[Path, dict[str, str]], None], wheels: Path, data: Path, tmp_path: Path
) -> None:
    """As the README says that it is installed; also in its spaces."""
    place = data.parent / f"{data.name}-installed"
    env = {**os.environ, "PYTHONPATH": "", "HOME": str(tmp_path)}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        place.mkdir()
        install(place, env)
        project = tmp_path / "project"
        project.mkdir()
        (project / "greeting").write_text("hello\n")
        env |= {"PATH": f"{place}/bin:{os.environ['PATH']}", "CARREL_DATA": str(data)}
        said = run("sh", "-c", SESSION, cwd=project, env=env)
        assert said.startswith("carrel, version ")
    finally:
        remove_folder(place)


@pytest.mark.timeout(300)
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    which = "working_program" if EXHAUSTIVE else "by_uv"
    run_again(__file__, ordinary_user, data, "-k", which, timeout_s=280)
