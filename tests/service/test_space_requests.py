"""What may be asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.domain.errors import SpaceInvalid
from carrel.domain.ids import new_id
from carrel.domain.limits import Limits
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Retention
from carrel.service import space_requests


@pytest.mark.parametrize("name", ["a", "a-b", "x.y_z", "9", "a" * 63])
def test_names(name: str) -> None:
    space_requests.check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "A", "-a", "a-", ".", "..", "a/b", "a b", "a\n", "é", "a" * 64, "sp_abc", "ru_x", "tk_x"],
)
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(SpaceInvalid):
        space_requests.check_name(name)


@given(st.text(), st.sampled_from(ProjectKind))
def test_a_made_up_name_is_always_one(location: str, kind: ProjectKind) -> None:
    space_requests.check_name(space_requests.name_from(Project(kind, location), new_id("sp")))


def test_names_come_from_the_project() -> None:
    def name(location: str) -> str:
        return space_requests.name_from(Project(ProjectKind.GIT, location), "sp_abcdefghijkl")

    assert name("/home/ada/My Project/") == "my-project-ghijkl"
    assert name("https://example.org/x/tool.git") == "tool-ghijkl"
    assert name("git@example.org:x/tool.git") == "tool-ghijkl"
    assert name("") == "space-ghijkl"


def test_labels() -> None:
    space_requests.check_labels({"team": "blue", "a/b.c-d_e": ""}, {})
    bad: list[dict[str, str]] = [
        {"": "x"},
        {"a b": "x"},
        {"a=b": "x"},
        {"a": "x\n"},
        {"a": "x" * 257},
        {str(number): "" for number in range(65)},
    ]
    for labels in bad:
        with pytest.raises(SpaceInvalid):
            space_requests.check_labels(labels, {})


def test_labels_of_carrels_own() -> None:
    """By such a label a space would be taken for what it is not."""
    own = {"carrel.request": "rq_1"}
    space_requests.check_labels({**own, "more": "x"}, own)
    space_requests.check_labels({}, own)
    for before in ({}, {"carrel.request": "rq_2"}):
        with pytest.raises(SpaceInvalid, match="Carrel's own"):
            space_requests.check_labels(own, before)


def test_environment() -> None:
    space_requests.check_environment({"A_1": "x\ny", "_": ""})
    for env in ({"": "x"}, {"1A": "x"}, {"A=B": "x"}, {"A": "x\0"}, {"A": "x" * 200_000}):
        with pytest.raises(SpaceInvalid):
            space_requests.check_environment(env)
    with pytest.raises(SpaceInvalid):
        space_requests.check_environment({"A": "\ud800"})


def test_limits_stand_on_their_tier() -> None:
    found = space_requests.resolve_limits("minimal", Limits(cpus=3.0, strict=True))
    assert found == Limits(cpus=3.0, memory_bytes=1 << 30, disk_bytes=2 << 30, strict=True)
    assert space_requests.resolve_limits("", Limits()) == Limits()
    with pytest.raises(SpaceInvalid, match="tier"):
        space_requests.resolve_limits("huge", Limits())
    for bad in (Limits(memory_bytes=0), Limits(cpus=-1.0), Limits(pids=1 << 63)):
        with pytest.raises(SpaceInvalid):
            space_requests.resolve_limits("", bad)


def test_retention() -> None:
    space_requests.check_retention(Retention(ttl_s=0, idle_s=3.5))
    for bad in (-1.0, float("inf"), float("nan")):
        with pytest.raises(SpaceInvalid):
            space_requests.check_retention(Retention(keep_s=bad))


def test_projects() -> None:
    space_requests.check_project(Project(ProjectKind.EMPTY))
    for project in (
        Project(ProjectKind.FOLDER),
        Project(ProjectKind.FOLDER, "/a\0b"),
        Project(ProjectKind.GIT, "/x", ref="a\0"),
        Project(ProjectKind.FOLDER, "/" + "x" * 5000),
    ):
        with pytest.raises(SpaceInvalid):
            space_requests.check_project(project)
