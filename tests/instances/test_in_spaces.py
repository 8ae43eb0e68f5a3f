"""Instances in a space: in its sandbox, on its tree, and gone with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from carrel.api.types.admin import NewToken
from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    Forbidden,
    InstanceFailed,
    MessageInvalid,
    StateConflict,
    TooManyInstances,
)
from carrel.domain.instances import (
    Handed,
    InstanceRequest,
    InstanceState,
    PortBy,
    Released,
    Restart,
    Server,
)
from carrel.domain.limits import Limits
from carrel.domain.spaces import Space
from carrel.service.instances import lifetime
from carrel.service.spaces import SpaceChanges
from tests.instances.installed import require
from tests.instances.rig import WAIT_S, call, serving, until
from tests.instances.small import put_small
from tests.sampling import beyond
from tests.service.rig import make, request, run

SMALL = Server("small", ("/usr/bin/python3", "-I", "{project}/small.py", "http"))
OVER = (InstanceState.ENDED, InstanceState.FAILED)


@pytest.fixture
async def space(services: Services, tmp_path: Path) -> AsyncIterator[Space]:
    """Removed afterwards: an ordinary user's launcher stays as long as it holds a tree."""
    put_small(tmp_path)
    made = await make(services, tmp_path)
    yield made
    await services.spaces.remove(LOCAL, made.space_id, force=True, grace_s=0.2)


async def begin(services: Services, space: Space, server: str | Server, **more: object) -> Handed:
    request = InstanceRequest(server=server, space_id=space.space_id, **more)  # type: ignore[arg-type]
    async with asyncio.timeout(WAIT_S):
        return await services.instances.start(LOCAL, request)


async def test_from_outside_and_from_inside(services: Services, space: Space) -> None:
    handed = await begin(services, space, SMALL)
    await call(handed, "echo", text="from outside")
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    ask = (
        "import sys, urllib.request as u; r = u.Request(sys.argv[1], sys.argv[2].encode());"
        " print(u.urlopen(r, timeout=20).read().decode())"
    )
    words = f"python3 -c '{ask}' {handed.instance.inside_url} '{json.dumps(message)}'"
    _, said = await run(services, space, words)
    assert json.loads(said)["result"]["serverInfo"]["name"] == "small"


async def test_it_works_on_the_copy(services: Services, space: Space, tmp_path: Path) -> None:
    write = "import sys; open(sys.argv[1] + '/made', 'w').write('x'); sys.exit(9)"
    wanted = Server("writes", ("/usr/bin/python3", "-I", "-c", write, "{project}"))
    with pytest.raises(Exception, match="code 9"):
        await begin(services, space, wanted)
    _, said = await run(services, space, "cat /workspace/made")
    assert said == "x"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("ends", ["stop", "remove"])
async def test_a_server_that_never_answers_does_not_keep_its_space(
    services: Services, tmp_path: Path, ends: str
) -> None:
    """Who may ask for one, or disturb it in the space, does not decide when that is stopped."""
    space = await make(services, tmp_path)
    hangs = Server("hangs", ("/bin/sleep", "3600"), ready_s=3600.0)
    beginning = asyncio.ensure_future(
        services.instances.start(LOCAL, InstanceRequest(server=hangs, space_id=space.space_id))
    )
    async with asyncio.timeout(WAIT_S):
        while not any(one.pid for one in await services.instances.list(LOCAL)):
            await asyncio.sleep(0.01)
        if ends == "stop":
            await services.spaces.stop(LOCAL, space.space_id, grace_s=0.2)
        await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
        with pytest.raises(InstanceFailed, match="ended"):
            await beginning
    assert not await services.instances.list(LOCAL)


async def test_its_release_leaves_the_space_alone(services: Services, space: Space) -> None:
    wanted = Server(
        "leaves",
        ("/bin/sh", "-c", "setsid sleep 300 & exec python3 -I {project}/small.py http"),
        port_by=PortBy.PROCESS,
    )
    other = await begin(services, space, SMALL)
    instance = (await begin(services, space, wanted)).instance
    _, before = await run(services, space, "pgrep -c sleep; ls -A ~/.instances")
    assert before.split()[0] == "1" and instance.instance_id in before
    assert await services.instances.release(LOCAL, instance.instance_id) is Released.TERMINATED
    _, after = await run(services, space, "pgrep -c sleep; ls -A ~/.instances")
    assert after.split()[0] == "0" and instance.instance_id not in after
    await call(other, "echo", text="still there")


async def test_it_ends_with_its_space(services: Services, space: Space) -> None:
    handed = await begin(services, space, SMALL, restart=Restart.ON_FAILURE)
    await services.spaces.stop(LOCAL, space.space_id)
    ended = await until(services, handed.instance.instance_id, *OVER)
    assert ended.problem is not None and ended.problem.code == "space_stopped"
    with pytest.raises(StateConflict):
        await begin(services, space, SMALL)


async def test_it_does_not_keep_its_space_busy(services: Services, space: Space) -> None:
    """It is no command: the space is idle when nobody works in it."""
    await begin(services, space, SMALL)
    assert str(services.journal.current(space.space_id).state) == "ready"


async def test_a_crash_in_a_space(services: Services, space: Space) -> None:
    handed = await begin(services, space, SMALL, restart=Restart.ON_FAILURE)
    await run(services, space, "pkill -9 -f small.py")
    await until(services, handed.instance.instance_id, InstanceState.RESTARTING)
    after = await until(services, handed.instance.instance_id, InstanceState.READY)
    assert after.port == handed.instance.port
    await call(handed, "echo", text="again")


async def test_what_a_space_decides(services: Services, space: Space) -> None:
    for more in ({"limits": Limits(memory_bytes=1 << 30)}, {"confined": False}):
        with pytest.raises(MessageInvalid):
            await begin(services, space, SMALL, **more)


@pytest.mark.parametrize("name", ["everything", *beyond("serena")])
async def test_real_ones(services: Services, space: Space, name: str) -> None:
    require(name)
    handed = await begin(services, space, name)
    assert handed.instance.inside_port
    assert await services.instances.release(LOCAL, handed.instance.instance_id) == "terminated"


async def test_the_port_of_another_is_not_its_own(services: Services, space: Space) -> None:
    """All servers of a space are in one network."""
    await begin(services, space, SMALL)
    with pytest.raises(InstanceFailed, match="did not answer"):
        await begin(services, space, Server("deaf", ("/bin/sleep", "60")), ready_s=0.5)


async def test_a_key_of_the_owner_is_not_for_guests(data: Path, tmp_path: Path) -> None:
    """What runs in a space can read it; and who sets a variable has the process that has it."""
    put_small(tmp_path)
    keyed = {"command": list(SMALL.command), "env": {"SERVICE_TOKEN": "operators"}}
    plain = {"command": list(SMALL.command), "env": {"MODE": "fast"}}
    kinds = {"keyed": keyed, "plain": plain}
    guest = Caller("tk_guest", Scope(ScopeKind.LABEL, "team=blue"))
    blue = {"team": "blue"}
    async with serving(data, servers=kinds, project_roots=[str(tmp_path)]) as services:
        own = await make(services, tmp_path, labels=blue)
        given = await make(services, tmp_path, labels=blue, mcp=("keyed",))
        wanted = request(tmp_path, mcp=("keyed",))
        theirs = await services.spaces.create(guest, wanted)
        for space in (own, theirs):
            ask = InstanceRequest(server="keyed", space_id=space.space_id)
            with pytest.raises(Forbidden):
                await services.instances.start(guest, ask)
        without = await services.space_servers.given(theirs.space_id)
        assert "key of the daemon's user" in without.notes[0]
        found = await services.space_servers.given(given.space_id)
        assert [one.name for one in found.servers] == ["keyed"]
        # On the folder itself it could write hooks and build files of its owner.
        path = InstanceRequest(server="plain", project_path=str(tmp_path))
        with pytest.raises(Forbidden, match="folder itself"):
            await services.instances.start(guest, path)
        ask = InstanceRequest(server="plain", space_id=own.space_id, env={"LANG": "C"})
        async with asyncio.timeout(WAIT_S):
            await services.instances.start(guest, ask)
        for space in (own, given, theirs):
            await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)


async def test_what_a_token_may_not_have_any_more_ends(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the address and the secret of a server that reads and writes in the space."""
    monkeypatch.setattr(lifetime, "REACH_S", 0.05)
    put_small(tmp_path)
    async with serving(data, servers={"small": {"command": list(SMALL.command)}}) as services:
        space = await make(services, tmp_path, labels={"team": "blue"})
        token = await services.tokens.create(LOCAL, NewToken(scope="label:team=blue"))
        blue = await services.tokens.caller(token.secret)
        ask = InstanceRequest(server="small", space_id=space.space_id)
        async with asyncio.timeout(WAIT_S):
            theirs = (await services.instances.start(blue, ask)).instance
            own = (await services.instances.start(LOCAL, ask)).instance
        assert (await services.instances.get(blue, theirs.instance_id)).state not in OVER
        # The space stays what it was: blue had it, and knows the secrets of what runs in it.
        for labels in ({"team": "red"}, {}):
            with pytest.raises(StateConflict, match="by the label team=blue"):
                await services.spaces.update(LOCAL, space.space_id, SpaceChanges(labels=labels))
        await services.tokens.revoke(LOCAL, token.id)
        with pytest.raises(StateConflict):
            await services.spaces.update(LOCAL, space.space_id, SpaceChanges(labels={}))
        more = SpaceChanges(labels={"team": "blue", "more": "x"})
        await services.spaces.update(LOCAL, space.space_id, more)
        ended = await until(services, theirs.instance_id, *OVER)
        assert ended.problem is not None and ended.problem.code == "out_of_reach"
        assert (await services.instances.get(LOCAL, own.instance_id)).state not in OVER
        await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)


async def test_more_spaces_of_a_token_are_no_larger_share(data: Path, tmp_path: Path) -> None:
    """Their servers count as that token's own, and those of the owner's spaces do not."""
    put_small(tmp_path)
    guest = Caller("tk_guest", Scope(ScopeKind.LABEL, "team=blue"))
    kinds = {"small": {"command": list(SMALL.command)}}
    more: dict[str, Any] = {"project_roots": [str(tmp_path)], "instances_per_caller": 1}
    async with serving(data, servers=kinds, **more) as services:
        wanted = request(tmp_path, mcp=("small",))
        theirs = [await services.spaces.create(guest, wanted) for _ in range(2)]
        given = [await services.space_servers.given(one.space_id) for one in theirs]
        own = await make(services, tmp_path, mcp=("small",))
        assert len((await services.space_servers.given(own.space_id)).servers) == 1
        assert sorted(len(one.servers) for one in given) == [0, 1], given
        with pytest.raises(TooManyInstances):
            ask = InstanceRequest(server="small", space_id=theirs[0].space_id)
            await services.instances.start(guest, ask)
        for space in (*theirs, own):
            await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
