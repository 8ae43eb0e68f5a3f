"""Servers of all kinds are found, greeted and ended; what is wrong with one is told."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    InstanceFailed,
    InstanceNotFound,
    MessageInvalid,
    ProjectError,
    ServerNotFound,
    ServerNotInstalled,
)
from carrel.domain.instances import (
    InstanceRequest,
    InstanceState,
    PortBy,
    Released,
    Server,
    ToolCall,
    Transport,
)
from carrel.domain.runtimes import Network
from carrel.domain.server_adapter import NotReady
from carrel.service.instances import beginner as starting
from tests.instances.rig import (
    PYTHON,
    SCRIPT,
    WAIT_S,
    by_port_file,
    call,
    leftovers,
    post,
    processes,
    server,
    serving,
    start,
)
from tests.sampling import EXHAUSTIVE
from tests.service.rig import make


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "kept").write_text("of the project")
    return tmp_path


KINDS = {
    "process": server("ok"),
    "log": server("ok", port_by=PortBy.LOG, port_line=r"running on http://[^:]+:(\d+)"),
    "file": by_port_file(),
    "reserved": server("ok", "--port", "{port}", port_by=PortBy.RESERVED),
    "fd": server("takes-fd", "--fd", "{fd}", port_by=PortBy.SOCKET),
    "fd with a token": server(
        "takes-fd",
        *("--fd", "{fd}", "--token-from", "SECRET"),
        port_by=PortBy.SOCKET,
        takes_token="SECRET",
    ),
    "late": server("late", "--seconds", "0.3"),
    "two listeners": server("two-listeners"),
    "stateless": server("stateless"),
    "sse": server("sse", transport=Transport.SSE, path="/sse"),
    "all interfaces": server("all-interfaces"),
    "flood": server("floods", "--bytes", "3000000"),
    "a tool": server("ok", tool_ready=ToolCall("echo", {"text": "hello"})),
}


OPEN = ("process", "file", "fd", "sse", "all interfaces")
"""Those that a sample tries without a sandbox, too: how each says where it is differs there."""
WAYS = [
    (kind, confined)
    for kind in KINDS
    for confined in (True, False)
    if EXHAUSTIVE or confined or kind in OPEN
]


@pytest.mark.parametrize(("kind", "confined"), WAYS)
async def test_every_way_to_a_server(
    data: Path, services: Services, project: Path, kind: str, confined: bool
) -> None:
    handed = await start(services, KINDS[kind], project, confined=confined)
    instance = handed.instance
    assert instance.state is InstanceState.READY
    assert instance.confined is confined
    await call(handed, "echo", text="hello")
    assert await services.instances.release(LOCAL, instance.instance_id) is Released.TERMINATED
    assert leftovers(data, instance.instance_id) == []
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", instance.port))
    again_released = await services.instances.release(LOCAL, instance.instance_id)
    assert again_released is Released.ALREADY_GONE


async def test_it_is_reached_only_through_its_door(services: Services, project: Path) -> None:
    """One that binds every interface is bound in a network of its own."""
    instance = (await start(services, server("all-interfaces"), project)).instance
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    wanted = f":{instance.port:04X}"
    rows = [row.split()[1] for row in listening if row.split()[3] == "0A"]
    assert [row for row in rows if row.endswith(wanted)] == [f"0100007F{wanted}"]
    assert instance.inside_port not in {int(row.rpartition(":")[2], 16) for row in rows} - {
        instance.port
    }


async def test_a_token_is_wanted(services: Services, project: Path) -> None:
    handed = await start(services, KINDS["fd with a token"], project)
    assert len(handed.token) > 30
    about = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert await post(handed.instance.url, about, {}) == 401
    wrong = {"Authorization": f"Bearer {handed.token[:-1]}"}
    assert await post(handed.instance.url, about, wrong) == 401
    await call(handed, "echo", text="hello")


async def test_it_sees_its_project_and_no_more(
    services: Services, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    beside = tmp_path_factory.mktemp("beside")
    (beside / "secret").write_text("not for servers")
    script = (
        f"test -r {project}/kept && ! test -e {beside}/secret && ! test -e {Path.home()}/.ssh"
        f" && touch {project}/made && exit 42"
    )
    wanted = Server("test-looks", ("/bin/sh", "-c", script))
    with pytest.raises(InstanceFailed, match="with code 42"):
        await start(services, wanted, project)
    made = (project / "made").stat()
    assert (made.st_uid, made.st_gid) == (project.stat().st_uid, project.stat().st_gid)


async def test_a_network_is_its_own(services: Services, project: Path) -> None:
    """Nothing of the host's loopback is there."""
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        wanted = Server("test-connects", ("/usr/bin/python3", "-I", "-c", connect))
        with pytest.raises(InstanceFailed, match="code 1") as caught:
            await start(services, wanted, project)
    assert "ConnectionRefusedError" in str(caught.value.details["output"])


FAILING = {
    "exits": (server("exits"), "with code 3"),
    "never binds": (server("never-binds", ready_s=1.0), "did not answer within 1 s"),
    "silent": (server("silent", ready_s=1.0), "did not answer within 1 s"),
    "wrong port": (
        server(
            "wrong-port",
            port_by=PortBy.LOG,
            port_line=r"running on http://[^:]+:(\d+)",
            ready_s=1.0,
        ),
        "did not answer",
    ),
    "forks away": (server("forks-away"), "with code 0 before it answered"),
    "killed": (Server("test-killed", ("/bin/sh", "-c", "kill -9 $$")), "by signal 9"),
    "no such tool": (
        server("ok", tool_ready=ToolCall("none")),
        "answers, but the call cannot work",
    ),
}


@pytest.mark.parametrize("kind", FAILING)
async def test_what_fails_is_told_and_leaves_nothing(
    data: Path, services: Services, project: Path, kind: str
) -> None:
    wanted, said = FAILING[kind]
    with pytest.raises(InstanceFailed, match=said):
        await start(services, wanted, project)
    assert await services.instances.list(LOCAL) == []
    ended = await services.instances.list(LOCAL, ended=True)
    assert [one.state for one in ended] == [InstanceState.FAILED]
    assert ended[0].problem is not None
    assert leftovers(data, ended[0].instance_id) == []


async def test_its_last_words_are_told(services: Services, project: Path) -> None:
    with pytest.raises(InstanceFailed) as caught:
        await start(services, server("exits"), project)
    output = str(caught.value.details["output"])
    assert output.strip().splitlines()[-1] in str(caught.value)
    assert caught.value.details["exit_code"] == 3


async def test_a_port_that_is_taken(services: Services, project: Path) -> None:
    """In a network of its own no port is; on the host's it is told."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = server("clash", "--port", str(taken.getsockname()[1]))
        handed = await start(services, wanted, project)
        await call(handed, "echo", text="hello")
        with pytest.raises(InstanceFailed, match="with code 98"):
            await start(services, wanted, project, confined=False)


async def test_children_that_went_away_go_too(
    data: Path, services: Services, project: Path
) -> None:
    handed = await start(services, server("leaks-children", "--count", "6"), project)
    instance_id = handed.instance.instance_id
    assert len(processes(instance_id)) >= 7
    await services.instances.release(LOCAL, instance_id)
    assert leftovers(data, instance_id) == []


async def test_one_that_does_not_want_to_end(data: Path, services: Services, project: Path) -> None:
    handed = await start(services, server("deaf"), project)
    assert await services.instances.release(LOCAL, handed.instance.instance_id) == "terminated"
    assert leftovers(data, handed.instance.instance_id) == []


async def test_in_the_middle_of_a_call(data: Path, services: Services, project: Path) -> None:
    handed = await start(services, server("ok"), project)
    hanging = asyncio.create_task(call(handed, "hang"))
    async with asyncio.timeout(30):
        while not _open(handed.instance.port):
            await asyncio.sleep(0.01)
    await services.instances.release(LOCAL, handed.instance.instance_id)
    assert leftovers(data, handed.instance.instance_id) == []
    with pytest.raises(NotReady):
        await hanging


def _open(port: int) -> bool:
    rows = Path("/proc/net/tcp").read_text()
    return f":{port:04X} " in rows and " 01 " in rows


async def test_bad_requests(services: Services, project: Path, tmp_path: Path) -> None:
    def asked(**fields: object) -> InstanceRequest:
        return InstanceRequest(**{"server": "everything", **fields})  # type: ignore[arg-type]

    cases: list[tuple[InstanceRequest, type[Exception]]] = [
        (asked(), MessageInvalid),
        (asked(project_path=str(project), space_id="sp_x"), MessageInvalid),
        (asked(project_path="relative"), ProjectError),
        (asked(project_path=str(project / "nowhere")), ProjectError),
        (asked(project_path=str(project / "kept")), ProjectError),
        (asked(project_path="/"), ProjectError),
        (asked(project_path=os.path.expanduser("~")), ProjectError),
        (asked(project_path=str(project), ttl_s=0.0), MessageInvalid),
        (asked(project_path=str(project), owner_pid=2**22 + 1), MessageInvalid),
        (asked(project_path=str(project), hub_client="cl_none"), MessageInvalid),
        (asked(project_path=str(project), server="unheard-of"), ServerNotFound),
        (asked(project_path=str(project), server=Server("gone", ("no-such",))), ServerNotInstalled),
    ]
    for request, error in cases:
        with pytest.raises(error):
            await services.instances.start(LOCAL, request)
    for act in (services.instances.get, services.instances.release, services.instances.heartbeat):
        with pytest.raises(InstanceNotFound):
            await act(LOCAL, "in_aaaaaaaaaaaa")
    assert await services.instances.list(LOCAL, ended=True) == []


async def test_the_data_folder_is_no_project(data: Path, services: Services) -> None:
    from carrel.domain.errors import Forbidden

    for path in (data, data / "spaces"):
        with pytest.raises(Forbidden):
            await start(services, "everything", path)


async def test_an_open_network_is_said(services: Services, project: Path) -> None:
    instance = (await start(services, server("ok"), project, network=Network.OPEN)).instance
    assert any("every user of this machine" in note for note in instance.notes)


def _settled(mode: str) -> dict[str, Any]:
    return {"command": [PYTHON, "-I", "-S", SCRIPT, mode], "binds": [SCRIPT], "ready_s": 3600.0}


@pytest.mark.parametrize("turns", [1, 2])
async def test_starts_that_never_end_keep_nobody_else_out(
    data: Path, project: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Their caller has a share of the turns; and where there is but one, it is given back."""
    if turns == 1:
        monkeypatch.setattr(starting, "TURN_S", 0.5)
    guest = Caller("tk_guest", Scope(ScopeKind.LABEL, "team=blue"))
    settings: dict[str, Any] = {"instances_starting": turns}
    async with serving(data, servers={"hangs": _settled("never-binds")}, **settings) as services:
        space = await make(services, project, labels={"team": "blue"})
        wanted = InstanceRequest(server="hangs", space_id=space.space_id)
        hanging = [asyncio.ensure_future(services.instances.start(guest, wanted)) for _ in range(3)]
        try:
            async with asyncio.timeout(WAIT_S):
                while not any(one.pid for one in await services.instances.list(guest)):
                    await asyncio.sleep(0.01)
            await start(services, server("ok"), project)
            assert not any(one.done() for one in hanging)
        finally:
            for one in hanging:
                one.cancel()
            await asyncio.wait(hanging, timeout=WAIT_S)
            await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
