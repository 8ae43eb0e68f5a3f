"""What a change costs: a field, a verb and an error code are each made in a copy of the package, by
edits of three files at most, and then found at every door."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.etc import share_etc

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES = 3
STEP_S = 60.0
"""For one command, with the start of a daemon, on a busy machine."""

Edits = dict[str, list[tuple[str, str]]]
"""By file: what stands there, and what is put behind it."""

FIELD_OF_A_SPACE: Edits = {
    "api/types/spaces.py": [
        ("class NewSpace(Body, frozen=True, kw_only=True):\n", '    color: Word = ""\n'),
        ("class SpaceOptions(TypedDict, total=False):\n", "    color: str\n"),
        ("class SpaceInfo(Answer, frozen=True, kw_only=True):\n", '    color: str = ""\n'),
    ],
    "domain/spaces.py": [
        ('    base_id: str = ""\n    """A base that is ready: then', "@color"),
        ("    runtime: str = AUTO\n    driver: str = AUTO\n    base_id", "@color"),
    ],
    "cli/verbs/new.py": [
        ("@Verb(\n", '    Option("--color TEXT", "Give it a color.", to="color"),\n'),
    ],
}
FIELD_OF_A_REQUEST: Edits = {
    "api/types/requests.py": [
        ("class NewRequest(Body, frozen=True, kw_only=True):\n", '    urgency: Word = ""\n'),
        ("class RequestOptions(TypedDict, total=False):\n", "    urgency: str\n"),
        ("class ListedRequest(Answer, frozen=True, kw_only=True):\n", '    urgency: str = ""\n'),
    ],
    "domain/requests.py": [('    owner: str = ""\n', '    urgency: str = ""\n')],
    "cli/verbs/request_new.py": [
        ("@Verb(\n", '    Option("--urgency TEXT", "Say how urgent it is.", to="urgency"),\n'),
    ],
}
VERB: Edits = {
    "api/routes.py": [
        (
            "OPERATIONS = (\n",
            '    Operation(*("spaces.paint", "POST", "/v1/spaces/{space}/paint", "hidden"),'
            ' answer="SpaceInfo", errors=SPACE),\n',
        )
    ],
    "service/operations/spaces.py": [
        (
            "        self._views = views\n\n",
            "    async def paint(self, caller: Caller, space: str) -> types.SpaceInfo:\n"
            "        found = await self._spaces.existing(caller, space)\n"
            "        return await self._views.one(caller, found)\n\n",
        )
    ],
    "cli/commands.py": [
        ('    "Spaces": {\n', '        "": ("paint",),\n'),
        ("ROWS = {\n", '    "paint": (("space",), "spaces.paint", "Paint a space."),\n'),
    ],
}
ERROR_CODE: Edits = {
    "domain/errors.py": [
        (
            "@end",
            "\n\nclass SpaceTooBright(SpaceError):\n"
            '    """Nobody can look at it."""\n\n'
            '    code = "space_too_bright"\n    kind = CONFLICT\n',
        )
    ],
}


def changed(folder: Path, edits: Edits) -> Path:
    """A copy of the package with these edits."""
    assert len(edits) <= MOST_FILES
    site = folder / "site"
    shutil.copytree(ROOT / "src" / "carrel", site / "carrel", symlinks=True)
    for name, pairs in edits.items():
        path = site / "carrel" / name
        text = path.read_text()
        for anchor, more in pairs:
            text = _edited(text, anchor, more, name)
        path.write_text(text)
    return site


def _edited(text: str, anchor: str, more: str, name: str) -> str:
    if anchor == "@end":
        return text + more
    assert anchor in text, f"{name} has changed: {anchor!r}"
    if more == "@color":
        # Before, where it has a default as what follows it has.
        return text.replace(anchor, '    color: str = ""\n' + anchor, 1)
    head, _, rest = text.partition(anchor)
    if anchor.startswith("class ") and rest.lstrip().startswith('"""'):
        end = rest.index('"""', rest.index('"""') + 3) + 4
        return head + anchor + rest[:end] + more + rest[end:]
    return head + anchor + more + rest


class Program:
    def __init__(self, site: Path, data: Path) -> None:
        share_etc(data)
        self._env = {**os.environ, "PYTHONPATH": str(site), "CARREL_DATA": str(data)}

    def __call__(self, *words: str) -> str:
        run = [sys.executable, "-c", "from carrel.cli.main import main; main()", *words]
        return self._ran(run)

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def python(self, text: str) -> str:
        return self._ran([sys.executable, "-c", text])

    def _ran(self, words: list[str]) -> str:
        done = subprocess.run(
            words, env=self._env, cwd="/", capture_output=True, text=True, timeout=STEP_S
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def program(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> Any:
    found = Program(changed(tmp_path, request.param), data)
    yield found
    found("down")


@pytest.mark.parametrize("program", [FIELD_OF_A_SPACE], indirect=True)
def test_a_field_of_a_space(program: Program) -> None:
    made = program.json("new", "--empty", "--name", "one", "--color", "blue")
    assert made["color"] == program.json("show", "one")["color"] == "blue"
    script = "import carrel; print(carrel.Client().create(name='two', color='red').info.color)"
    assert program.python(script) == "red\n"
    assert [one["color"] for one in program.json("ls")["spaces"]] == ["red", "blue"]
    program("rm", "one", "two", "--force")


@pytest.mark.parametrize("program", [FIELD_OF_A_REQUEST], indirect=True)
def test_a_field_of_a_request(program: Program) -> None:
    program("request", "write a.txt hello", "--agent", "scripted", "--urgency", "high")
    (listed,) = program.json("request", "ls")["requests"]
    assert listed["urgency"] == "high"


@pytest.mark.parametrize("program", [VERB], indirect=True)
def test_a_verb(program: Program) -> None:
    program("new", "--empty", "--name", "one")
    assert program.json("paint", "one")["name"] == "one"
    assert "Paint a space" in program("--help")
    script = "from carrel.interfaces.http.openapi import document; print(*document('0')['paths'])"
    assert "/v1/spaces/{space}/paint" in program.python(script).split()
    program("rm", "one", "--force")


@pytest.mark.parametrize("program", [ERROR_CODE], indirect=True)
def test_an_error_code(program: Program) -> None:
    script = (
        "from carrel.domain.errors import error_class; found = error_class('space_too_bright');"
        "print(found.__name__, found.kind.status, found.kind.exit, found.kind.again)"
    )
    assert program.python(script) == "SpaceTooBright 409 4 False\n"
