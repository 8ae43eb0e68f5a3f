"""Small Python projects for servers that read code, and what a server finds in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODULE = "shop.py"
PROJECT_SETTINGS = """\
project_name: {name}
language_servers: [python_jedi]
"""
CODE = '''\
"""A shop."""


class {symbol}:
    def total(self) -> int:
        return {number}


def checkout(basket: {symbol}) -> int:
    return basket.total()
'''


@dataclass(frozen=True)
class Project:
    path: Path
    symbol: str
    """The class that only this one has."""

    def everything(self) -> dict[str, bytes]:
        """What is there, to be compared with later."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in files}


def make_project(path: Path, symbol: str = "Basket", number: int = 3) -> Project:
    """Nothing of Serena's is in it."""
    path.mkdir(parents=True)
    (path / MODULE).write_text(CODE.format(symbol=symbol, number=number))
    return Project(path, symbol)


def add_memory(project: Project, memory: str, text: str) -> None:
    """As somebody has it who works with Serena in that folder."""
    folder = project.path / ".serena" / "memories"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{memory}.md").write_text(text)


def add_settings(project: Project) -> None:
    folder = project.path / ".serena"
    folder.mkdir(exist_ok=True)
    (folder / "project.yml").write_text(PROJECT_SETTINGS.format(name=project.path.name))
