"""A command checks the result of a landing before the branch moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import CheckFailed, LandingRefused
from carrel.domain.landing import LandingCheck, LandingState
from carrel.domain.spaces import SpaceQuery
from carrel.service.checks import LandingChecks
from tests.review.conftest import Repository, land, work
from tests.service.rig import RUN_S, make

CHECK_S = 60.0


def check(command: str) -> LandingCheck:
    return LandingCheck(command, CHECK_S)


async def names(services: Services) -> list[str]:
    page = await services.spaces.list(LOCAL, SpaceQuery(limit=100))
    return sorted(space.name for space in page.spaces)


async def test_only_what_passes_lands(services: Services, repository: Repository) -> None:
    """The result is what would be committed: what the person had not committed is not in it, nor
    what git ignores of the space; what it ignores of the project is there."""
    lines = (repository.path / "a.txt").read_text()
    repository.write(a_txt=lines.replace("line 10", "mine 10"), mine_txt="mine\n", x_log="log\n")
    (repository.path / "old.txt").unlink()
    space = await make(services, repository.path, name="desk", env={"GREETING": "hi"})
    await work(services, space, "sed -i 's/line 3$/agent 3/' a.txt; echo n > n.log; rm src/b.py")
    repository.write(later_txt="later\n")
    repository.git("add", "later.txt")
    repository.git("commit", "-q", "-m", "moved on")
    wanted = {".gitignore", "a.txt", "later.txt", "old.txt", "x.log"}
    looks = f"""
        test "$(ls -A | grep -vx .git | sort | tr '\\n' ' ')" = "{" ".join(sorted(wanted))} "
        grep -q 'agent 3' a.txt && ! grep -q mine a.txt && test $(cat old.txt) = old
        test $GREETING = hi && echo made by the check > made
    """
    refs = repository.git("for-each-ref")
    with pytest.raises(CheckFailed, match="ended with 3") as refusal:
        await land(services, space, check=check("echo out; echo wrong >&2; exit 3"))
    assert refusal.value.details == {"exit_code": 3, "output": "out\nwrong\n"}
    assert repository.git("for-each-ref") == refs and await names(services) == ["desk"]
    landing = await land(services, space, check=check(f"set -e\n{looks}"))
    assert landing.state is LandingState.LANDED and await names(services) == ["desk"]
    changed = repository.git("diff", "--name-only", "main", "carrel/desk").split("\n")
    assert changed == ["a.txt", "src/b.py"]
    assert not (services.settings.data / "spaces" / space.space_id / "made").exists()


async def test_a_project_without_git_is_checked_too(services: Services, tmp_path: Any) -> None:
    plain = Repository(tmp_path / "plain")
    plain.write(a_txt="a\n", old_txt="old\n")
    space = await make(services, plain.path, name="desk")
    await work(services, space, "echo b > b.txt; rm old.txt; echo agent > a.txt")
    with pytest.raises(CheckFailed, match="timeout"):
        await land(services, space, check=LandingCheck("sleep 100", 0.2))
    assert not list((services.settings.data / "review").iterdir()), "nothing is kept"
    passes = 'test "$(cat a.txt b.txt)" = "$(printf "agent\\nb")" && ! test -e old.txt'
    await land(services, space, check=check(passes))
    assert (plain.path / "b.txt").read_text() == "b\n" and not (plain.path / "old.txt").exists()


async def test_a_branch_that_moves_meanwhile_is_merged_and_checked_again(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.git("branch", "topic")
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo n > n.txt")
    ran = LandingChecks.run
    moved: list[str] = []

    async def moves(checks: LandingChecks, *told: Any) -> None:
        await ran(checks, *told)
        if len(moved) < most:
            tree = repository.git("rev-parse", "topic^{tree}")
            moved.append(repository.git("commit-tree", tree, "-p", "topic", "-m", "moved"))
            repository.git("update-ref", "refs/heads/topic", moved[-1])

    monkeypatch.setattr(LandingChecks, "run", moves)
    most = 2
    landing = await land(services, space, branch="topic", check=check("test -e n.txt"))
    assert landing.before == moved[-1] and len(moved) == 2
    await services.landings.undo(LOCAL, landing.landing_id)
    most = 100
    with pytest.raises(LandingRefused, match="moved during each"):
        await land(services, space, branch="topic", check=check("true"))
    assert repository.git("rev-parse", "topic") == moved[-1] and await names(services) == ["desk"]


async def test_who_goes_ends_the_check(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await work(services, space, "echo n > n.txt")
    landing = asyncio.create_task(land(services, space, check=check("sleep 1000")))
    async with asyncio.timeout(RUN_S):
        while not services.runs.alive():
            await asyncio.sleep(0.01)
        landing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await landing
        while len(await names(services)) > 1:
            await asyncio.sleep(0.01)
    assert repository.git("branch", "--list", "carrel/*") == ""
