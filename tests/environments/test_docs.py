"""What the documentation says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carrel.environments import home_tools, language_table, versions

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "environments.md").read_text()


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mix.exs").touch()
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(example, "docs/environments.md", "exec"), {})
    assert "mix.exs is there, so the project is written in Elixir" in capsys.readouterr().out


def test_every_language_is_listed() -> None:
    for title in {language.title for language in language_table.LANGUAGES}:
        rows = [language for language in language_table.LANGUAGES if language.title == title]
        markers = dict.fromkeys(f"`{name}`" for row in rows for name in row.markers)
        managers = dict.fromkeys(one.name for row in rows for one in row.managers)
        assert f"| {title} | {', '.join(markers)} | {', '.join(managers)} |" in TEXT


def test_every_toolchain_of_a_home_is_listed() -> None:
    text = (ROOT / "docs" / "sandboxes.md").read_text()
    listed = text[text.index("## Toolchains in your home") :].splitlines()
    for row in home_tools.TABLE:
        rows = [line for line in listed if line.startswith("| `")]
        (line,) = [line for line in rows if f"`{row.name}`" in line.split("|")[1]]
        words = [*row.folders, row.variable, *row.env]
        assert [word for word in words if word and f"`{word}`" not in line] == [], row.name


def test_every_source_of_versions_is_listed() -> None:
    listed = TEXT[TEXT.index("## Versions") :]
    places = [listed.index(f"`{name}`") for name in versions.SOURCES]
    assert places == sorted(places)


def test_every_module_is_listed() -> None:
    room = ROOT / "src" / "carrel" / "environments"
    listed = (room / "README.md").read_text()
    modules = {path.name for path in room.glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if f"`{name}`" not in listed} == set()
