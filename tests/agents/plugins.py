"""A package that brings a frontend along, as pip would have installed it."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "shell_frontend"


def install(folder: Path, example: Path = EXAMPLE) -> None:
    """Into a folder for PYTHONPATH: its modules, and what its pyproject says of it."""
    with (example / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    name = project["name"].replace("-", "_")
    about = folder / f"{name}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    for module in example.glob("*.py"):
        shutil.copy(module, folder)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(head)
    groups = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text("\n".join(groups))
