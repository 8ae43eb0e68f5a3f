"""A git project as the source of a base, from request to folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.domain.errors import (
    CarrelError,
    ProjectInvalid,
    ProjectNotFound,
    ProjectTooLarge,
    RefNotFound,
)
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.trees.sources.git import GitProducer
from tests.trees.git.repositories import commit, digest, git, head, make_repository


def source(tmp_path: Path, location: Path, ref: str | None = None, **limits: int) -> GitProducer:
    project = Project(ProjectKind.GIT, str(location), ref)
    request = BaseRequest(project, git_timeout_s=60, **limits)  # type: ignore[arg-type]
    return GitProducer(request, tmp_path / "data")


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "origin")


def test_the_same_commit_is_the_same_state(origin: Path, tmp_path: Path) -> None:
    first = source(tmp_path, origin).resolved
    git(origin, "branch", "another")
    assert source(tmp_path, origin).resolved == first
    assert source(tmp_path, origin, "another").resolved != first
    commit(origin, "third")
    assert source(tmp_path, origin).resolved != first


def test_export_and_what_came_since(origin: Path, tmp_path: Path) -> None:
    before = digest(origin)
    first = source(tmp_path, origin)
    old = first.state()
    base, part = tmp_path / "base", tmp_path / "part"
    base.mkdir()
    part.mkdir()
    assert first.produce(base) == ()
    assert digest(origin) == before
    (origin / "src/b.txt").write_text("changed\n")
    commit(origin, "third")
    second = source(tmp_path, origin)

    def find(path: bytes) -> Path | None:
        found = base / os.fsdecode(path)
        return found if found.exists() else None

    delta = second.update(old, find, part)
    assert delta is not None
    assert b"src/b.txt" in delta.changed and b"a.txt" not in delta.changed
    assert (part / "src/b.txt").read_text() == "changed\n"
    elsewhere = make_repository(tmp_path / "elsewhere")
    other = source(tmp_path, elsewhere)
    assert other.update(old, find, tmp_path) is None


def test_limits_are_checked_before_anything_is_written(origin: Path, tmp_path: Path) -> None:
    assert source(tmp_path, origin, max_files=2, max_bytes=8).resolved.commit == head(origin)
    with pytest.raises(ProjectTooLarge, match="2 files; 1 are allowed"):
        source(tmp_path, origin, max_files=1).state()
    with pytest.raises(ProjectTooLarge, match="8 bytes"):
        source(tmp_path, origin, max_bytes=7).state()


@pytest.mark.parametrize(
    ("location", "ref", "error"),
    [
        ("missing", None, ProjectNotFound),
        ("plain", None, ProjectInvalid),
        ("origin", "no-such-branch", RefNotFound),
        ("origin", "--exec=x", RefNotFound),
    ],
)
def test_bad_requests_leave_nothing(
    origin: Path, tmp_path: Path, location: str, ref: str | None, error: type[CarrelError]
) -> None:
    (tmp_path / "plain").mkdir()
    before = digest(origin)
    with pytest.raises(error) as failure:
        source(tmp_path, tmp_path / location, ref).state()
    assert failure.value.code == error.code
    assert digest(origin) == before
    mirrors = tmp_path / "data" / "mirrors"
    assert not mirrors.exists() or os.listdir(mirrors) == []
