"""Which project a word names, at every door."""

from __future__ import annotations

import pytest

from carrel.client.projects import describe
from carrel.domain.projects import Project, ProjectKind, project_named


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("https://example.org/x.git", ProjectKind.GIT),
        ("file:///srv/x.git", ProjectKind.GIT),
        ("git@example.org:x/y.git", ProjectKind.GIT),
        ("example.org:x", ProjectKind.GIT),
        ("/srv/x", ProjectKind.FOLDER),
        ("/srv/a:b", ProjectKind.FOLDER),
        ("/srv/x://y", ProjectKind.FOLDER),
    ],
)
def test_clients_and_the_service_mean_the_same(text: str, kind: ProjectKind) -> None:
    assert project_named(text) == Project(kind, text)
    assert describe(text)["kind"] == kind


def test_nothing_is_named() -> None:
    assert project_named("") == Project(ProjectKind.EMPTY)
