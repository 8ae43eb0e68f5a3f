"""Who may see and make what."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import Forbidden, SpaceNotFound
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Space, SpaceQuery, SpaceRequest, SpaceState
from carrel.service import access

BLUE = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
ONE = Caller("tk_2", Scope(ScopeKind.SPACE, "sp_aaaaaaaaaaaa"))
EMPTY = Project(ProjectKind.EMPTY)


def space(space_id: str = "sp_bbbbbbbbbbbb", **labels: str) -> Space:
    return Space(space_id, "name", SpaceState.READY, EMPTY, 0.0, 0.0, 0.0, labels=labels)


def test_admins_see_all() -> None:
    assert access.may_see(LOCAL, space())


def test_a_label_is_the_whole_label() -> None:
    assert access.may_see(BLUE, space(team="blue"))
    assert not access.may_see(BLUE, space(team="blues"))
    assert not access.may_see(BLUE, space(team="red"))
    assert not access.may_see(BLUE, space())
    assert not access.may_see(BLUE, space(other="blue"))


def test_one_space_is_that_one() -> None:
    assert access.may_see(ONE, space("sp_aaaaaaaaaaaa"))
    assert not access.may_see(ONE, space("sp_aaaaaaaaaaab"))


def test_out_of_sight_is_as_if_it_were_not() -> None:
    with pytest.raises(SpaceNotFound) as unseen:
        access.check_visible(BLUE, space(), "some-name")
    assert unseen.value.args == access.not_found("some-name").args


def test_lists_are_narrowed() -> None:
    assert access.narrow(LOCAL, SpaceQuery()) == SpaceQuery()
    assert access.narrow(BLUE, SpaceQuery()).labels == {"team": "blue"}
    both = access.narrow(BLUE, SpaceQuery(labels={"a": "b"}))
    assert both.labels == {"a": "b", "team": "blue"}
    assert access.narrow(BLUE, SpaceQuery(labels={"team": "red"})).space_ids == frozenset()
    only = frozenset({"sp_aaaaaaaaaaaa"})
    assert access.narrow(ONE, SpaceQuery()).space_ids == only


def test_new_spaces_get_the_label() -> None:
    request = access.admit(BLUE, SpaceRequest(EMPTY), ())
    assert request.labels == {"team": "blue"}
    with pytest.raises(Forbidden):
        access.admit(BLUE, SpaceRequest(EMPTY, labels={"team": "red"}), ())
    with pytest.raises(Forbidden):
        access.admit(ONE, SpaceRequest(EMPTY), ())


def test_tokens_neither_go_unconfined_nor_pick_bases() -> None:
    with pytest.raises(Forbidden):
        access.admit(BLUE, SpaceRequest(EMPTY, runtime="process"), ())
    with pytest.raises(Forbidden):
        access.admit(BLUE, SpaceRequest(EMPTY, base_id="x"), ())


def test_tokens_read_only_what_was_opened(tmp_path: Path) -> None:
    """The daemon may be root: a path in a request must not be a way to read the machine."""
    root = tmp_path / "projects"
    (root / "one").mkdir(parents=True)
    (tmp_path / "projects-not").mkdir()
    (root / "out").symlink_to(tmp_path / "projects-not")

    def admit(location: Path | str, kind: ProjectKind = ProjectKind.FOLDER) -> None:
        access.admit(BLUE, SpaceRequest(Project(kind, str(location))), (root,))

    admit(root)
    admit(root / "one")
    admit("https://example.org/x.git", ProjectKind.GIT)
    for path in (tmp_path, tmp_path / "projects-not", root / "out", root / ".." / "x", "/etc"):
        for kind in (ProjectKind.FOLDER, ProjectKind.GIT, ProjectKind.ARCHIVE):
            with pytest.raises(Forbidden):
                admit(path, kind)
    for url in ("file:///etc", "ext::sh -c id", "/etc", "user@host:x", "https:/etc"):
        with pytest.raises(Forbidden):
            admit(url, ProjectKind.GIT)


def test_a_space_stays_in_reach() -> None:
    access.check_relabel(BLUE, space(team="blue"))
    with pytest.raises(Forbidden):
        access.check_relabel(BLUE, space(team="red"))
    with pytest.raises(Forbidden):
        access.require_admin(BLUE)
