"""What is copied of a project into a server's own folder: nothing that a link leads to."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.instances.inside import furnish


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Whose folder above another may write in."""
    notes = tmp_path / "above" / "project" / ".notes"
    notes.mkdir(parents=True)
    (notes / "one").write_text("mine")
    return notes.parent


def copied(project: Path, state: Path) -> list[str]:
    state.mkdir()
    furnish.Furnisher(str(state)).copy(str(project), {".notes": "notes"})
    return sorted(path.read_text() for path in state.rglob("*") if path.is_file())


def test_copies_come_from_the_project_itself(tmp_path: Path, project: Path) -> None:
    assert copied(project, tmp_path / "first") == ["mine"]
    for number, step in enumerate((project / ".notes", project, project.parent)):
        step.rename(tmp_path / "elsewhere")
        step.symlink_to(tmp_path / "elsewhere")
        assert (project / ".notes" / "one").read_text() == "mine"
        assert copied(project, tmp_path / str(number)) == []
        step.unlink()
        (tmp_path / "elsewhere").rename(step)


def test_a_project_that_is_too_deep(tmp_path: Path, project: Path) -> None:
    (project / ".notes" / "/".join(["deep"] * 600)).mkdir(parents=True)
    with pytest.raises(furnish.FolderTooLarge, match="too deep"):
        copied(project, tmp_path / "state")


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("languages: [python, 'go']\n", "languages: [python_jedi, 'go']\n"),
        ('languages:\n- go\n\n# or python\n  - "Python"  # python\n', None),
        (
            "languages: [\n  python,\n]\nname: python\n",
            "languages: [\n  python_jedi,\n]\nname: python\n",
        ),
        ("language: python\r\nnote: x\r\n", "language: python_jedi\r\nnote: x\r\n"),
        ("name: python\n- python\nlanguages: [python_ty]\nxlanguages: [python]\n", ""),
        (" languages: [python]\n", ""),
    ],
)
def test_a_word_of_a_list_is_swapped(text: str, changed: str | None) -> None:
    """And nothing else; empty: nothing at all."""
    if changed is None:
        changed = text.replace('"Python"', '"python_jedi"')
    found = furnish.swapped(text, ["languages", "language"], "python", "python_jedi")
    assert found == (changed or text)


def test_in_a_sandbox_the_path_may_have_links(tmp_path: Path, project: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    order = {"state": str(tmp_path / "state"), "project": str(tmp_path / "link")}
    furnish.fill({**order, "files": {}, "copies": {".notes": "notes"}, "swaps": []})
    assert (tmp_path / "state" / "notes" / "one").read_text() == "mine"
