"""Which project somebody means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.client.projects import describe


def test_nothing_is_an_empty_tree() -> None:
    assert describe(None) == {"kind": "empty"}


def test_folders_and_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.tar.gz").touch()
    monkeypatch.chdir(tmp_path)
    assert describe("folder") == {"kind": "folder", "location": f"{tmp_path}/folder"}
    assert describe(Path("folder"), "main") == {
        "kind": "git",
        "location": f"{tmp_path}/folder",
        "ref": "main",
    }
    assert describe("a.tar.gz") == {"kind": "archive", "location": f"{tmp_path}/a.tar.gz"}
    assert describe("missing")["kind"] == "folder"
    assert describe("~/x")["location"] == os.path.expanduser("~/x")


@pytest.mark.parametrize(
    "place",
    [
        "https://example.org/x.git",
        "ssh://git@example.org/x",
        "git@example.org:x/y.git",
        "example.org:x",
    ],
)
def test_repositories_elsewhere(place: str) -> None:
    assert describe(place, "v1") == {"kind": "git", "location": place, "ref": "v1"}


def test_a_file_with_a_colon_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert describe("a:b")["kind"] == "folder"
    assert describe("./x:y")["kind"] == "folder"
