"""Who may see and make what."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
from pathlib import Path
from typing import cast

import pytest

from carrel.api.types.admin import NewToken
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind, TokenRecord
from carrel.domain.errors import AuthenticationFailed, Forbidden, SpaceNotFound, StateConflict
from carrel.domain.projects import GitReach, Project, ProjectKind
from carrel.domain.requests import WORKSPACE
from carrel.domain.spaces import Space, SpaceQuery, SpaceRequest, SpaceState
from carrel.domain.store import Store
from carrel.service import access
from carrel.service.journal import Journal
from carrel.service.space_requests import reach_of
from carrel.service.tokens import USED_EVERY_S, Tokens

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


def test_tokens_neither_choose_weaker_walls_nor_pick_bases() -> None:
    for runtime in ("process", "landlock"):
        with pytest.raises(Forbidden):
            access.admit(BLUE, SpaceRequest(EMPTY, runtime=runtime), ())
    assert access.admit(BLUE, SpaceRequest(EMPTY, runtime="bubblewrap"), ()).guest
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


def test_what_was_looked_at_is_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else puts a link in the place of a folder above the project meanwhile."""
    for name in ("roots/up/project", "secret/project"):
        (tmp_path / name).mkdir(parents=True)
    up, roots = tmp_path / "roots/up", (tmp_path / "roots",)
    real = os.path.realpath

    def look(path: str, **how: bool) -> str:
        found = real(path, **how)
        if not up.is_symlink():
            up.rename(tmp_path / "roots/away")
            up.symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr("os.path.realpath", look)
    asked = SpaceRequest(Project(ProjectKind.FOLDER, f"{up}/project"))
    assert access.admit(BLUE, asked, roots).project.location == f"{up}/project"
    with pytest.raises(Forbidden):
        access.admit(BLUE, asked, roots)

    def moved(path: str, **how: bool) -> str:
        raise OSError(errno.EINVAL, "moved meanwhile", path)

    monkeypatch.setattr("os.path.realpath", moved)
    with pytest.raises(Forbidden):
        access.admit(BLUE, asked, roots)


def test_a_space_stays_in_reach() -> None:
    own = dataclasses.replace(space(team="blue"), account="team=blue")
    access.check_relabel(BLUE, own, space(team="blue", more="x"))
    with pytest.raises(Forbidden):
        access.check_relabel(BLUE, own, space(team="red"))
    # What the owner made, a label does not give on.
    with pytest.raises(Forbidden, match="Only who made"):
        access.check_relabel(BLUE, space(team="blue"), space(team="blue", crew="red"))
    # Who has one space neither takes it from its label nor puts it into another's hands.
    for team in ("blue", "red"):
        with pytest.raises(Forbidden):
            access.check_relabel(ONE, space(team="blue"), space(team=team))
    with pytest.raises(Forbidden):
        access.require_admin(BLUE)


def test_the_workspace_of_a_request_stays_its_callers() -> None:
    """Who asked for it has it by the request, and removes it with that."""
    labels = {"team": "blue", WORKSPACE: "rq_1"}
    before = dataclasses.replace(space(**labels), transient=True)
    access.check_relabel(LOCAL, before, space(**labels, more="x"))
    for after in ({"team": "red", WORKSPACE: "rq_1"}, {"team": "blue"}, {}):
        with pytest.raises(StateConflict, match="workspace of a request"):
            access.check_relabel(LOCAL, before, space(**after))


def test_what_is_read_for_a_token_has_nothing_of_the_owners(tmp_path: Path) -> None:
    root = tmp_path / "projects"
    (root / "one").mkdir(parents=True)
    (root / "link").symlink_to(root / "one")
    asked = SpaceRequest(Project(ProjectKind.FOLDER, str(root / "link")))
    admitted = access.admit(BLUE, asked, (root,))
    assert admitted.guest and admitted.project.location == str(root / "one")
    assert reach_of(admitted) is GitReach.NONE
    # Also when the daemon works on it later, in its own name; and it is looked at again.
    assert access.admit(LOCAL, admitted, (root,)).guest
    with pytest.raises(Forbidden):
        access.admit(LOCAL, admitted, ())
    with pytest.raises(Forbidden):
        access.admit(BLUE, dataclasses.replace(asked, follow_git=True), (root,))
    assert reach_of(access.admit(LOCAL, asked, ())) is GitReach.AGREED
    followed = dataclasses.replace(asked, follow_git=True)
    assert reach_of(access.admit(LOCAL, followed, ())) is GitReach.AGREE


@pytest.mark.parametrize("url", ["ssh://example.org/x", "git://example.org/x"])
def test_tokens_clone_by_http_only(url: str) -> None:
    request = SpaceRequest(Project(ProjectKind.GIT, url))
    with pytest.raises(Forbidden, match="http"):
        access.admit(BLUE, request, ())
    assert access.admit(LOCAL, request, ()) == request


class SlowJournal:
    """Writes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.go_on = asyncio.Event()
        self.written: list[TokenRecord] = []

    def clock(self) -> float:
        return self.now

    async def write(self, token: TokenRecord) -> None:
        await self.go_on.wait()
        self.written.append(token)

    async def tokens(self) -> list[TokenRecord]:
        return self.written


async def test_a_token_that_is_used_while_it_is_revoked_stays_revoked() -> None:
    """That it was used is written down too, and not after it as it was before."""
    journal = SlowJournal()
    journal.go_on.set()
    tokens = Tokens(cast(Store, journal), cast(Journal, journal))
    made = await tokens.create(LOCAL, NewToken(name="guest", scope="label:a=b"))
    journal.go_on.clear()
    journal.now += 2 * USED_EVERY_S
    revoking = asyncio.create_task(tokens.revoke(LOCAL, "guest"))
    await asyncio.sleep(0)
    using = asyncio.create_task(tokens.caller(made.secret))
    await asyncio.sleep(0)
    journal.go_on.set()
    await revoking
    with pytest.raises(AuthenticationFailed):
        await using
    with pytest.raises(AuthenticationFailed):
        await tokens.caller(made.secret)
    assert journal.written[-1].revoked_at is not None
