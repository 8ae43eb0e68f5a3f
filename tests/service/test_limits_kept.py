"""A space's limits under a daemon that has other control groups than the one that made it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from carrel.app import rooms
from carrel.app.hub import SpaceSockets
from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.errors import LimitsUnavailable
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.spaces import Space
from carrel.domain.trees import Owner
from carrel.interfaces.hub.sockets import Enter, HubListener
from carrel.runtimes.limits.cgroups import Cgroups, Survey
from tests.etc import share_etc
from tests.launchers import forked_launchers
from tests.load.clearing import end_everything
from tests.service.rig import make, run

LIMIT = 64 << 20
HOG = "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c"
"""`tail` keeps all of that in memory; of one that is killed for it nothing is counted."""
REFUSAL = "/sys/fs/cgroup/user.slice/session-1.scope/cgroup.procs: Permission denied."


def plain_login() -> Cgroups:
    """As it is below `session-N.scope`, where nothing was delegated."""
    return Cgroups(lambda: Survey((), (REFUSAL,)))


@contextlib.asynccontextmanager
async def daemon(data: Path, *, delegated: bool = True) -> AsyncIterator[Services]:
    with pytest.MonkeyPatch.context() as patch:
        if not delegated:
            patch.setattr(rooms, "Cgroups", plain_login)
        async with open_service(Settings(data=data)) as services:
            yield services


@pytest.fixture
async def shared_data(data: Path) -> AsyncIterator[Path]:
    if not any(one.enforced for one in Cgroups().support()):
        pytest.skip("no limits can be enforced here by control groups")
    share_etc(data)
    try:
        with forked_launchers():
            yield data
    finally:
        await asyncio.to_thread(end_everything, data)


def holds(space: Space) -> bool:
    """Whether its memory limit is said to be enforced."""
    (memory,) = (one for one in space.enforced if one.kind is LimitKind.MEMORY)
    return memory.enforced


@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock"])
async def test_limits_are_told_as_they_are_now(shared_data: Path, runtime: str) -> None:
    async with daemon(shared_data) as services:
        space = await make(services, runtime=runtime, limits=Limits(memory_bytes=LIMIT))
        assert holds(space)
        space_id = space.space_id
    async with daemon(shared_data, delegated=False) as services:
        space = await services.spaces.existing(LOCAL, space_id)
        record, _ = await run(services, space, "true")
        (reason,) = services.runs.unenforced(record)
        assert reason.startswith("memory: ") and "Permission denied" in reason
        space = await services.spaces.existing(LOCAL, space_id)
        assert not holds(space)
    async with daemon(shared_data) as services:
        # What was written down says so too, until somebody can hold it again.
        space = await services.spaces.existing(LOCAL, space_id)
        assert not holds(space)
        record, said = await run(services, space, HOG)
        assert services.runs.unenforced(record) == []
        assert said.split()[0] == "0"
        await services.spaces.remove(LOCAL, space_id, force=True)


@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock"])
async def test_a_strict_space_does_not_run_without_its_limits(
    shared_data: Path, runtime: str
) -> None:
    strict = Limits(memory_bytes=LIMIT, strict=True)
    async with daemon(shared_data) as services:
        space = await make(services, runtime=runtime, limits=strict)
        await run(services, space, "true")
    async with daemon(shared_data, delegated=False) as services:
        with pytest.raises(LimitsUnavailable):
            await run(services, space, "true")
        await services.spaces.stop(LOCAL, space.space_id)
        with pytest.raises(LimitsUnavailable):
            await services.spaces.start(LOCAL, space.space_id)
        await services.spaces.remove(LOCAL, space.space_id, force=True)


@pytest.mark.parametrize("uid", [0, 1000])
async def test_sessions_of_mcp_have_the_limits_too(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    """Whoever the daemon runs as, where it holds limits at all."""
    found: dict[str, Sequence[str]] = {}

    class Opened(HubListener):
        def open_space(
            self,
            folder: Path,
            space_id: str,
            owner: Owner,
            account: str = "",
            groups: Callable[[], Sequence[str]] = tuple,
            shell: Enter | None = None,
        ) -> None:
            monkeypatch.setattr(os, "geteuid", lambda: uid)
            found[space_id] = groups()
            monkeypatch.undo()

    async with daemon(shared_data) as services:
        space = await make(services, limits=Limits(memory_bytes=LIMIT))
        await run(services, space, "true")
        cgroups = services.app.enforcement.cgroups
        listening = Opened(services.hub, services.mcp)
        SpaceSockets(listening, cgroups, services.open_spaces, services.journal).open_all()
        group = cgroups.load(space.space_id)
        await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert group is not None and found == {space.space_id: group.procs}
