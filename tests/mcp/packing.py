"""A project that has all that `carrel mcp` and the SDK's client need, for a sandbox that sees
nothing else."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
"""What a sandbox has."""
WANTED = ("anyio", "httptools", "mcp", "msgspec", "psutil", "starlette", "uvicorn")
ASK_S = 30.0


def same_python() -> bool:
    """Whether packages of this interpreter can be used by the sandbox's."""
    script = "import sys; print(*sys.version_info[:2])"
    try:
        ran = subprocess.run(
            [PYTHON, "-c", script], capture_output=True, text=True, timeout=ASK_S, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return ran.stdout.split() == [str(part) for part in sys.version_info[:2]]


def pack(folder: Path) -> Path:
    """Makes the project."""
    site = folder / "site"
    site.mkdir(parents=True)
    for name in sorted(_needed()):
        _copy(importlib.metadata.distribution(name), site)
    shutil.copytree(ROOT / "src" / "carrel", site / "carrel")
    shutil.copy2(ROOT / "tests" / "mcp" / "driver.py", folder / "driver.py")
    return folder


def _needed() -> set[str]:
    """With all that they need themselves."""
    todo, found = [(name, "") for name in WANTED], set[tuple[str, str]]()
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found.add(one)
        for text in importlib.metadata.distribution(one[0]).requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": one[1]}):
                name = canonicalize_name(needed.name)
                todo += [(name, extra) for extra in ("", *needed.extras)]
    return {name for name, _ in found}


def _copy(package: importlib.metadata.Distribution, site: Path) -> None:
    for file in package.files or []:
        source = Path(str(file.locate()))
        if ".." in file.parts or not source.is_file():
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        # With its time: what is compiled beside it is used only when that fits.
        shutil.copy2(source, target)
