"""One client's life with its spaces: made, used in every way, looked after, removed.

Everything that the daemon acknowledges is noted, and compared with what it says later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from carrel.client import AsyncClient, AsyncRunHandle, AsyncSpace
from carrel.client.exchange import STDERR, STDOUT
from carrel.domain.errors import PathNotFound, SpaceNotFound, UnexportedChanges
from carrel.domain.spaces import SpaceState
from tests.load.ledger import Held, Ledger, Outcome
from tests.load.patience import Calls
from tests.load.requests import request

RUN_S = 60.0
"""The commands take a fraction of a second; a loaded machine may need more."""
MOST_DEEDS = 12
MOST_BYTES = 200_000
MOST_LINES = 300
PROJECT_FILE, PROJECT_TEXT = "read.me", b"hello\n"
UNFINISHED = ".carrel-"
_SCRIPT = """
i=0
while [ $i -lt {lines} ]; do echo {tag} $i; i=$((i+1)); done
echo {tag} >&2
exit {code}
"""

Gate = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Surroundings:
    """What all clients share. Each life, and each deed in it, goes through a gate, by which
    others can have everybody at rest."""

    ledger: Ledger
    calls: Calls
    project: Path
    life: Gate
    deed: Gate
    requests: bool = False
    """Clients also have things made, in workspaces that are not theirs to look after."""


class LoadClient:
    def __init__(self, name: str, client: AsyncClient, seed: int, around: Surroundings) -> None:
        self.name = name
        self._client = client
        self._chance = random.Random(seed)
        self._ledger = around.ledger
        self._surely = around.calls.surely
        self._once = around.calls.once
        self._around = around
        self._number = 0

    async def live(self) -> None:
        """One space, from its first to its last moment."""
        async with self._around.life():
            async with self._around.deed():
                held = await self._create()
            deeds = (*self._deeds, *((LoadClient._request,) if self._around.requests else ()))
            for _ in range(self._chance.randint(2, MOST_DEEDS)):
                deed = self._chance.choice(deeds)
                async with self._around.deed():
                    self._ledger.counts[deed.__name__.strip("_")] += 1
                    await deed(self, held)
            async with self._around.deed():
                await self._end(held)

    # Beginning

    async def _create(self) -> Held:
        """Made again with the same key when the daemon goes away, which gives one space."""
        project = self._around.project if self._chance.random() < 0.5 else None
        labels = {"client": self.name}
        space = await self._surely(lambda: self._client.create(project, labels=labels))
        assert space.info.state is SpaceState.READY
        self._ledger.counts["create"] += 1
        held = self._ledger.made(space)
        if project is not None:
            held.files[PROJECT_FILE] = PROJECT_TEXT
        return held

    # Commands

    async def _exec(self, held: Held) -> None:
        tag, lines, code = self._next("x"), self._chance.randint(0, MOST_LINES), self._code()
        script = _SCRIPT.format(tag=tag, lines=lines, code=code)
        result = await self._once(lambda: held.space.run(["sh", "-c", script], timeout_s=RUN_S))
        if result is None:
            return
        expected = Outcome(code, _lines(tag, lines), f"{tag}\n".encode())
        found = Outcome(result.code, result.stdout_bytes, result.stderr_bytes)
        _check(result.run.id, found, expected)
        self._ledger.ended(held, result.run.id, expected)

    async def _input(self, held: Held) -> None:
        """In doubt whether all of it arrived, the client says so."""
        data = self._chance.randbytes(self._chance.randint(0, MOST_BYTES))
        result = await self._once(lambda: held.space.run(["cat"], stdin=data, timeout_s=RUN_S))
        if result is not None:
            _check(result.run.id, Outcome(result.code, result.stdout_bytes), Outcome(0, data))
            self._ledger.ended(held, result.run.id, Outcome(0, data))

    async def _detach(self, held: Held) -> None:
        """Started, and attached to afterwards: from the beginning, and from the middle."""
        tag, lines, code = self._next("d"), self._chance.randint(1, MOST_LINES), self._code()
        script = "sleep 0.1\n" + _SCRIPT.format(tag=tag, lines=lines, code=code)
        argv = ["sh", "-c", script]
        run = await self._once(lambda: held.space.start_run(argv, timeout_s=RUN_S))
        if run is None:
            return
        self._ledger.runs.add(run.id)
        expected = Outcome(code, _lines(tag, lines), f"{tag}\n".encode())
        middle = self._chance.randint(0, len(expected.stdout))
        _check(run.id, await self._surely(lambda: _attached(run, 0)), expected)
        rest = dataclasses.replace(expected, stdout=expected.stdout[middle:])
        _check(run.id, await self._surely(lambda: _attached(run, middle)), rest)
        self._ledger.ended(held, run.id, expected)

    # Files

    async def _write(self, held: Held) -> None:
        """The old content or the new, never a mixture, until it is acknowledged."""
        path = f"file-{self._chance.randint(0, 4)}"
        data = self._chance.randbytes(self._chance.randint(0, MOST_BYTES))
        written = await self._once(lambda: _done(held.space.files.write(path, data)))
        if written is None:
            found = await self._content(held, path)
            assert found in (held.files.get(path), data), f"{held.space}: a mixture in {path}"
            await self._surely(lambda: held.space.files.write(path, data))
        held.files[path] = data

    async def _read(self, held: Held) -> None:
        for path, data in held.files.items():
            intact = await self._content(held, path) == data
            assert intact, f"{held.space}: {path} was lost"

    async def _content(self, held: Held, path: str) -> bytes | None:
        try:
            return await self._surely(lambda: held.space.files.read(path))
        except PathNotFound:
            return None

    async def _files(self, held: Held) -> None:
        """Everything that was written is listed, and nothing else; read from inside too."""
        found = {file.name for file in await self._surely(held.space.files.list)}
        # What a daemon was writing when it was killed: tests/faults/test_kill_in_write.py.
        found = {name for name in found if not name.startswith(UNFINISHED)}
        assert found == set(held.files), (held.space, found)
        if held.stopped or not held.files:
            return
        path = self._chance.choice(sorted(held.files))
        result = await self._once(lambda: held.space.run(["cat", path], timeout_s=RUN_S))
        if result is not None:
            expected = Outcome(0, held.files[path])
            _check(result.run.id, Outcome(result.code, result.stdout_bytes), expected)
            self._ledger.ended(held, result.run.id, expected)

    # Its life

    async def _restart(self, held: Held) -> None:
        stopped = await self._surely(lambda: held.space.stop(grace_s=0.2))
        assert stopped.state is SpaceState.STOPPED
        held.stopped = True
        await self._read(held)
        started = await self._surely(held.space.start)
        assert started.state in (SpaceState.READY, SpaceState.RUNNING)
        held.stopped = False

    async def _look(self, held: Held) -> None:
        """The list has all of ours, and the space has all its commands, with their ends."""

        async def listed() -> set[str]:
            found = self._client.spaces(labels={"client": self.name})
            return {space.id async for space in found}

        assert held.id in await self._surely(listed)
        runs = {run.id: run for run in await self._surely(held.space.runs)}
        for run_id, outcome in held.runs.items():
            info = runs[run_id].info
            assert info.exit is not None and info.exit.code == outcome.code, info
            intact = await self._surely(runs[run_id].read) == outcome.stdout
            assert intact, f"{run_id}: output was lost"

    async def _undelete(self, held: Held) -> None:
        """Removed with its changes, and back again as another."""
        if not any(path != PROJECT_FILE for path in held.files):
            return
        await self._remove(held)
        space = await self._once(lambda: self._client.undelete(held.id))
        if space is None:
            space = await self._surely(lambda: self._restored(held.id))
        self._ledger.restored(held, space)
        await self._read(held)

    async def _restored(self, old: str) -> AsyncSpace:
        """It was carried out, or is to be asked for again."""
        async for space in self._client.spaces():
            if space.info.restored_from == old:
                return space
        return await self._client.undelete(old)

    async def _request(self, _: Held) -> None:
        """Beside its space."""
        space_id = await request(self._client, self._next("q"), self._chance)
        self._ledger.workspaces.add(space_id)

    # Ending

    async def _end(self, held: Held) -> None:
        await self._read(held)
        await self._look(held)
        if any(path != PROJECT_FILE for path in held.files):
            await self._refused(held)
        await self._remove(held)

    async def _refused(self, held: Held) -> None:
        """Without force nothing is removed that has changes."""
        try:
            await self._surely(lambda: held.space.remove())
        except UnexportedChanges:
            return
        raise AssertionError(f"{held.space} was removed with its changes")

    async def _remove(self, held: Held) -> None:
        # Not found: the answer to an earlier request was lost.
        with contextlib.suppress(SpaceNotFound):
            await self._surely(lambda: held.space.remove(force=True))
        self._ledger.gone(held)
        self._ledger.counts["remove"] += 1
        info = await self._surely(held.space.refresh)
        assert info.state is SpaceState.REMOVED, info

    def _next(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self.name}-{self._number}"

    def _code(self) -> int:
        return self._chance.choice((0, 0, 0, 1, 7, 200))

    _deeds: tuple[Callable[[LoadClient, Held], Awaitable[None]], ...] = (
        _exec,
        _exec,
        _input,
        _detach,
        _write,
        _write,
        _read,
        _files,
        _restart,
        _look,
        _undelete,
    )


def _check(run_id: str, found: Outcome, expected: Outcome) -> None:
    """Says in short what differs: the output is long."""
    same = found == expected
    assert same, f"{run_id}: {found} instead of {expected}"


async def _done(work: Awaitable[None]) -> bool:
    await work
    return True


async def _attached(run: AsyncRunHandle, stdout: int) -> Outcome:
    pieces: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
    async for output in run.output(stdout=stdout):
        assert not output.dropped, run
        pieces[output.stream].append(output.data)
    ended = run.info.exit
    assert ended is not None and ended.code is not None, run.info
    return Outcome(ended.code, b"".join(pieces[STDOUT]), b"".join(pieces[STDERR]))


def _lines(tag: str, count: int) -> bytes:
    return b"".join(b"%s %d\n" % (tag.encode(), number) for number in range(count))
