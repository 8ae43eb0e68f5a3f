"""The package as pip, pipx and uv install it: a program that needs nothing of this checkout."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.folders import remove_folder

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


def needed(package: str) -> set[str]:
    """Names in the folder of packages, of all that it depends on."""
    found: set[str] = set()
    known, waiting = {package}, [package]
    while waiting:
        distribution = metadata.distribution(waiting.pop())
        if distribution.name != package:
            found |= {one.parts[0] for one in distribution.files or () if one.parts[0] != ".."}
        for line in distribution.requires or ():
            wanted = Requirement(line)
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if applies and wanted.name not in known:
                known.add(wanted.name)
                waiting.append(wanted.name)
    return found


def bring(source: Path, target: Path) -> None:
    """By hard links, where both are on one file system."""
    if not target.exists():
        try:
            if source.is_dir():
                shutil.copytree(source, target, copy_function=os.link)
            else:
                os.link(source, target)
        except (OSError, shutil.Error):
            shutil.rmtree(target, ignore_errors=True)
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)


def test_the_package_alone_is_a_working_program(data: Path, tmp_path: Path) -> None:
    """Its dependencies are those of the tests: nothing is fetched."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = tmp_path / "built"
    run(*pip, "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", built, ROOT)
    [wheel] = built.iterdir()
    place = data.parent / f"{data.name}-installed"
    try:
        venv.create(place, symlinks=True)
        python = place / "bin" / "python"
        run(*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
        packages = run(python, "-c", "import site; print(site.getsitepackages()[0])").strip()
        # Not by a .pth, which would bring this environment's own, and so this checkout.
        for one in needed("carrel"):
            bring(Path(site.getsitepackages()[0], one), Path(packages, one))
        project = tmp_path / "project"
        project.mkdir()
        (project / "greeting").write_text("hello\n")
        search = f"{place}/bin:{os.environ['PATH']}"
        env = {**os.environ, "PATH": search, "CARREL_DATA": str(data), "PYTHONPATH": ""}
        said = run("sh", "-c", SESSION, cwd=project, env=env)
        assert said.startswith("carrel, version ")
    finally:
        remove_folder(place)
