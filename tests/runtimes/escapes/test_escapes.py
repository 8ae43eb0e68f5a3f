"""Every named attempt to get out of a bubblewrap sandbox is refused, and where it is safe to
show, the same attempt works without the sandbox."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.runtimes.escapes.inside import Escape
from tests.runtimes.escapes.outside import run_outside, why_not_at_all, why_not_here
from tests.runtimes.escapes.scripts import Outcome, attempts, module_of, outcomes, script
from tests.runtimes.escapes.world import World

LEAST_ATTEMPTS = 60
LEAST_SHOWN = 25
CATEGORIES = {
    "paths", "symlinks", "hardlinks", "renames", "proc", "mounts", "namespaces", "ptrace",
    "memory", "signals", "processes", "sockets", "keyrings", "ioctl", "setuid",
    "capabilities", "devices", "kernel", "cgroups", "sys", "ipc", "environment",
}  # fmt: skip

ALL = attempts()
SHOWN = tuple(one for one in ALL if one.outside is not None)

Results = dict[str, Outcome]


def _name(one: Escape) -> str:
    return one.name


class Batches:
    """Attempts of one file of the catalogue share an interpreter; each has its own process."""

    def __init__(self, world: World, run_in_sandbox: Callable[[str], str]) -> None:
        self._world = world
        self._run_in_sandbox = run_in_sandbox
        self._inside: dict[str, Results] = {}
        self._outside: dict[tuple[str, str], Results] = {}

    def inside(self, one: Escape) -> Outcome:
        module = module_of(one)
        if module not in self._inside:
            names = [other.name for other in ALL if module_of(other) == module]
            program = script(module, names, self._world.targets)
            self._inside[module] = outcomes(self._run_in_sandbox(program))
            self._world.assert_untouched()
        return self._inside[module][one.name]

    def outside(self, one: Escape) -> Outcome:
        module, mode = module_of(one), one.outside or ""
        if (module, mode) not in self._outside:
            alike = [
                other for other in SHOWN if (module_of(other), other.outside) == (module, mode)
            ]
            names = [other.name for other in alike if not why_not_here(other)]
            self._outside[module, mode] = run_outside(self._world, module, names, mode)
        return self._outside[module, mode][one.name]


@pytest.fixture(scope="session")
def batches(world: World, run_in_sandbox: Callable[[str], str]) -> Batches:
    return Batches(world, run_in_sandbox)


@pytest.mark.parametrize("one", ALL, ids=_name)
def test_the_sandbox_refuses(one: Escape, batches: Batches) -> None:
    outcome = batches.inside(one)
    assert outcome.refused, f"{one.name} got through: {outcome.detail}"


@pytest.mark.parametrize("one", SHOWN, ids=_name)
def test_it_works_without_the_sandbox(one: Escape, batches: Batches) -> None:
    if reason := why_not_here(one):
        pytest.skip(reason)
    outcome = batches.outside(one)
    if reason := why_not_at_all(one, outcome):
        pytest.skip(reason)
    assert not outcome.refused, f"{one.name} is refused outside too: {outcome.detail}"


def test_there_are_enough_of_all_kinds() -> None:
    names = [one.name for one in ALL]
    assert len(names) == len(set(names)) >= LEAST_ATTEMPTS
    assert {one.category for one in ALL} == CATEGORIES


def test_enough_are_shown_to_work_without_the_sandbox(batches: Batches) -> None:
    possible = [one for one in SHOWN if not why_not_here(one)]
    assert sum(not batches.outside(one).refused for one in possible) >= LEAST_SHOWN
