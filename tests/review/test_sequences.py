"""Work, checkpoints, rewinds, forks, removals and undos in any order, against what was seen: no
byte is lost, and what is taken back is as it was.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from carrel.api.types.landings import UndoBody
from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.checkpoints import START
from carrel.domain.errors import NotUndoable
from carrel.domain.spaces import Space
from carrel.service.checkpoints import ForkRequest
from carrel.service.operations.landings import LandingOperations
from tests.review.conftest import work
from tests.sampling import EXHAUSTIVE, beyond, examples
from tests.service.rig import make, run

STEPS = 14
MOST_SPACES = 4
WORK = (
    "echo {0} > a",
    "echo {0} >> d/a",
    "echo {0} > new{1}; chmod 755 new{1}",
    "rm -rf d; mkdir d; echo {0} > d/only{1}",
    "rm -f a; ln -sfn to{0} a",
    "mkdir -p x/y{1}; echo {0} > x/y{1}/f; ln -f x/y{1}/f x/twin",
    "rm -rf x; echo {0} > x",
    "rm -f b d/b",
    "echo {0} > .t; mv .t b",
)
LOOK = (
    r"find . -mindepth 1 -printf '%y %m %P %l\n' | sort;"
    " find . -type f -exec md5sum {} + | sort -k 2"
)


@dataclass
class Sequence:
    """What was done, and what there has to be by now."""

    services: Services
    project: Path
    chance: random.Random
    spaces: dict[str, Space] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    kept: list[tuple[str, str, str]] = field(default_factory=list)
    """The name of a space, a checkpoint, and the state."""
    done: list[tuple[str, str, str]] = field(default_factory=list)
    """What can be taken back: its kind, the name of the space, and the state before."""
    number: int = 0
    began: str = ""

    async def play(self) -> None:
        await self._enter(await make(self.services, self.project, name=self._name()))
        self.began = next(iter(self.states.values()))
        acts: list[tuple[Callable[[], Awaitable[None]], int]] = [
            *((self.work, 6), (self.keep, 3), (self.rewind, 3)),
            *((self.fork, 2), (self.remove, 1), (self.undo, 3)),
        ]
        for _ in range(STEPS):
            [act] = self.chance.choices([one for one, _ in acts], [one for _, one in acts])
            await act()
        await self._check_all()

    def _name(self) -> str:
        self.number += 1
        return f"s{self.number}"

    def _any(self) -> str:
        return self.chance.choice(sorted(self.spaces))

    async def _look(self, name: str) -> str:
        return (await run(self.services, self.spaces[name], LOOK))[1]

    async def _enter(self, space: Space) -> None:
        self.spaces[space.name] = space
        self.states[space.name] = await self._look(space.name)

    async def _expect(self, name: str, state: str) -> None:
        assert await self._look(name) == state
        self.states[name] = state

    async def work(self) -> None:
        name = self._any()
        said = (self.chance.choice(WORK) for _ in range(self.chance.randint(1, 3)))
        script = "; ".join(
            one.format(self.chance.random(), self.chance.randint(1, 3)) for one in said
        )
        await work(self.services, self.spaces[name], f"mkdir -p d; {script}; :")
        self.states[name] = await self._look(name)

    async def keep(self) -> None:
        name = self._any()
        taken = await self.services.checkpoints.take(LOCAL, name, "")
        self.kept.append((name, taken.checkpoint_id, self.states[name]))

    async def rewind(self) -> None:
        name = self._any()
        mine = [(one, state) for space, one, state in self.kept if space == name]
        to, state = self.chance.choice([(START, self.began), *mine])
        before = await self.services.checkpoints.rewind(LOCAL, name, to)
        self.kept.append((name, before.checkpoint_id, self.states[name]))
        self.done.append(("rewind", name, self.states[name]))
        await self._expect(name, state)

    async def fork(self) -> None:
        if len(self.spaces) >= MOST_SPACES:
            return
        name, new = self._any(), self._name()
        mine = [(one, state) for space, one, state in self.kept if space == name]
        word, state = self.chance.choice([("", self.states[name]), *mine])
        made = await self.services.checkpoints.fork(LOCAL, name, ForkRequest(1, word, new))
        if not word:
            self.kept.append((name, made.checkpoint, state))
        await self._enter(made.spaces[0])
        await self._expect(new, state)

    async def remove(self) -> None:
        if len(self.spaces) < 2:
            return
        name = self._any()
        removal = await self.services.spaces.remove(LOCAL, name, force=True)
        self.kept = [one for one in self.kept if one[0] != name]
        self.done = [one for one in self.done if one[1] != name]
        assert (removal.kept is not None) == (self.states[name] != self.began)
        if removal.kept is not None:
            self.done.append(("removal", name, self.states[name]))
        del self.spaces[name], self.states[name]

    async def undo(self) -> None:
        services = self.services
        ways = (services.landings, services.takes, services.checkpoints, services.spaces)
        asked = LandingOperations(*ways).undo(LOCAL, UndoBody())
        if not self.done:
            with pytest.raises(NotUndoable):
                await asked
            return
        kind, name, state = self.done.pop()
        told = await asked
        assert (told.kind, told.name) == (kind, name)
        if kind == "removal":
            await self._enter(await services.spaces.get(LOCAL, told.space))
        else:
            # What was done since the rewind is kept too.
            newest = (await services.checkpoints.list(LOCAL, name))[0]
            self.kept.append((name, newest.checkpoint_id, self.states[name]))
        await self._expect(name, state)

    async def _check_all(self) -> None:
        for name, state in self.states.items():
            await self._expect(name, state)
        for name, checkpoint, state in self.kept:
            await self.services.checkpoints.rewind(LOCAL, name, checkpoint)
            await self._expect(name, state)
        for space in self.spaces.values():
            await self.services.spaces.remove(LOCAL, space.space_id, force=True)
        for entry in await self.services.spaces.trashed(LOCAL):
            await self.services.spaces.purge(entry)


@pytest.mark.timeout(3600 if EXHAUSTIVE else 300)
@pytest.mark.parametrize("part", (0, *beyond(*range(1, 10))))
async def test_no_byte_is_lost_in_any_order(services: Services, tmp_path: Path, part: int) -> None:
    project = tmp_path / "plain"
    (project / "d").mkdir(parents=True)
    for name in ("a", "b", "d/a", "d/b"):
        (project / name).write_text(f"{name}\n")
    for seed in range(part * 100, part * 100 + examples(3, exhaustive=100)):
        try:
            await Sequence(services, project, random.Random(seed)).play()
        except Exception as error:
            error.add_note(f"in the sequence {seed}")
            raise
