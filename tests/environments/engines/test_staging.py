"""The copy that an image is built from: no link is followed, and nothing else is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError, EnvironmentRefused, RequestCancelled
from carrel.environments.engines import staging
from carrel.environments.engines.staging import stage_project


def go_on() -> None:
    pass


def test_a_copy_has_files_folders_and_links(tmp_path: Path) -> None:
    project, copy = tmp_path / "project", tmp_path / "copy"
    (project / "a/b").mkdir(parents=True)
    (project / "a/b/script").write_bytes(b"x" * 100_000)
    (project / "a/b/script").chmod(0o755)
    (project / "empty").touch()
    (project / "inside").symlink_to("a/b/script")
    (project / "out").symlink_to("/etc")
    os.mkfifo(project / "pipe")
    stage_project(project, copy, go_on)
    assert (copy / "a/b/script").read_bytes() == b"x" * 100_000
    assert (copy / "a/b/script").stat().st_mode & 0o777 == 0o755
    assert (copy / "inside").readlink() == Path("a/b/script")
    assert (copy / "out").is_symlink()
    assert sorted(one.name for one in copy.iterdir()) == ["a", "empty", "inside", "out"]


def test_what_is_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_bytes(b"x" * 1000)
    (project / "b").touch()
    monkeypatch.setattr(staging, "MOST_BYTES", 999)
    with pytest.raises(EnvironmentRefused):
        stage_project(project, tmp_path / "one", go_on)
    monkeypatch.setattr(staging, "MOST_BYTES", 1000)
    monkeypatch.setattr(staging, "MOST_FILES", 1)
    with pytest.raises(EnvironmentRefused):
        stage_project(project, tmp_path / "two", go_on)


@pytest.mark.parametrize("name", ["none", "file"])
def test_what_is_no_project(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CarrelError):
        stage_project(tmp_path / name, tmp_path / "copy", go_on)


def test_who_waits_may_give_up(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").touch()

    def check() -> None:
        raise RequestCancelled("Enough.")

    with pytest.raises(RequestCancelled):
        stage_project(project, tmp_path / "copy", check)
