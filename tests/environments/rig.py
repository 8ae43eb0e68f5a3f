"""Projects for the tests of discovery: written into a folder, or only thought of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from carrel.domain.environments import EnvironmentReport, Listing
from carrel.environments.discovery import inspect_files, inspect_project
from carrel.environments.programs import HostPrograms

NO_PROGRAMS = HostPrograms("")


class Thought:
    """A project in memory, for the many that a property looks at."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def read(self, path: str, limit: int) -> bytes | None:
        data = self._files.get(path)
        return None if data is None else data[:limit]

    def list(self, path: str) -> Listing:
        above = "" if path == "." else f"{path}/"
        below = [name.removeprefix(above) for name in self._files if name.startswith(above)]
        files = {name for name in below if "/" not in name}
        folders = {name.partition("/")[0] for name in below if "/" in name}
        return Listing(tuple(sorted(files)), tuple(sorted(folders)))


def think(files: Mapping[str, str | bytes]) -> EnvironmentReport:
    encoded = {
        path: text.encode() if isinstance(text, str) else text for path, text in files.items()
    }
    return inspect_files(Thought(encoded), NO_PROGRAMS)


def write(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def inspect_written(root: Path, files: Mapping[str, str]) -> EnvironmentReport:
    return inspect_project(write(root, files), NO_PROGRAMS)


def messages(report: EnvironmentReport) -> list[tuple[str, int | None, str]]:
    return [(note.path, note.line, note.message) for note in report.notes]
