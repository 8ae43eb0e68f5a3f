"""Who reaches an instance, and what an instance reaches."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import InstanceFailed
from carrel.domain.instances import Handed, InstanceState, PortBy, Restart, Transport
from carrel.domain.runtimes import Network
from tests.accounts import Account, run_as
from tests.instances import probing
from tests.instances.rig import call, server, start, until
from tests.service.rig import make, run

two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

DIRECT = server(
    "takes-fd",
    *("--fd", "{fd}", "--token-from", "SECRET"),
    port_by=PortBy.SOCKET,
    takes_token="SECRET",
)
ASK = """
import http.client, json, sys
port, token = int(sys.argv[1]), sys.argv[2]
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
headers = {"Authorization": "Bearer " + token} if token else {}
message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
try:
    connection.request("POST", "/mcp", message, headers)
    print(connection.getresponse().status)
except OSError as error:
    print(type(error).__name__)
"""
OVER = (InstanceState.ENDED, InstanceState.FAILED)
REFUSED = ("ConnectionResetError", "RemoteDisconnected", "BrokenPipeError")


async def ask_as(account: Account, handed: Handed, token: str = "") -> str:
    """What that user is answered."""
    words = ("/usr/bin/python3", "-I", "-c", ASK, str(handed.instance.port), token)
    done = await asyncio.to_thread(run_as, account, words)
    return done.stdout.strip() + done.stderr


@two_users
async def test_a_gate_lets_the_owner_in_who_shows_the_token(
    services: Services, tmp_path: Path, ordinary_user: Account
) -> None:
    """Whose the project is; and us, whose the daemon is."""
    os.chown(tmp_path, ordinary_user.uid, ordinary_user.gid)
    handed = await start(services, server("ok"), tmp_path)
    stranger = Account(ordinary_user.uid + 1, ordinary_user.gid + 1)
    assert await ask_as(ordinary_user, handed) == "401"
    assert await ask_as(ordinary_user, handed, handed.token) == "200"
    assert await ask_as(stranger, handed, handed.token) in REFUSED
    owner = handed.instance.owner
    assert owner is not None
    assert await ask_as(Account(owner.uid, owner.gid), handed, handed.token) in REFUSED
    await call(handed, "echo", text="hello")


@two_users
async def test_a_token_is_asked_of_everybody(
    services: Services, tmp_path: Path, ordinary_user: Account
) -> None:
    handed = await start(services, DIRECT, tmp_path)
    assert await ask_as(ordinary_user, handed) == "401"
    assert await ask_as(ordinary_user, handed, "guessed") == "401"
    assert await ask_as(Account(0, 0), handed) == "401"
    assert await ask_as(ordinary_user, handed, handed.token) == "200"


@pytest.fixture
def host() -> Iterator[socket.socket]:
    """A service on the loopback of the machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


async def test_a_socket_is_no_way_out(
    services: Services, tmp_path: Path, host: socket.socket
) -> None:
    """Neither the one that it listens on, nor one that was accepted on it."""
    wanted = probing.direct(host.getsockname()[1])
    with pytest.raises(InstanceFailed, match="with code 9"):
        await start(services, wanted, probing.put(tmp_path))
    outcome = json.loads((tmp_path / "found.json").read_text())
    assert len(outcome) == 3 and "connected" not in outcome
    with pytest.raises(BlockingIOError):
        host.accept()


async def test_what_is_in_reach(
    services: Services, data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing of the gate before it, and nothing of another instance."""
    project = probing.put(tmp_path)
    other = await start(services, DIRECT, tmp_path_factory.mktemp("other"))
    handed = await start(services, probing.gated(), project)
    instance_id = other.instance.instance_id
    paths = [other.instance.project_path, str(data), str(data / "instances" / instance_id)]
    found = await probing.go(project, paths, [instance_id, other.token])
    assert found["there"] == [] and found["said"] == []
    assert [one for one in found["processes"] if one["taken"]] == []
    closed = [one["name"] for one in found["processes"] if not one["read"]]
    assert "gate" in closed, found["processes"]
    await call(handed, "echo", text="still")


async def test_a_project_that_became_a_link_is_not_shown(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that may write in the folder above exchanges it, and another is started again."""
    monkeypatch.setattr("carrel.service.instances.restart.FIRST_S", 0.01)
    project, secret = tmp_path / "project", tmp_path / "secret"
    project.mkdir()
    secret.mkdir()
    handed = await start(services, server("ok"), project, restart=Restart.ON_FAILURE)
    project.rename(tmp_path / "moved")
    project.symlink_to(secret)
    os.kill(handed.instance.pid, signal.SIGKILL)
    ended = await until(services, handed.instance.instance_id, *OVER)
    assert ended.state is InstanceState.FAILED
    assert ended.problem is not None and ended.problem.code == "tree_unavailable"
    assert list(secret.iterdir()) == []


async def test_the_token_is_written_nowhere(services: Services, data: Path, tmp_path: Path) -> None:
    """Beside the file of its own that only we read."""
    wrapped = server("stdio", transport=Transport.STDIO)
    every = [await start(services, one, tmp_path) for one in (DIRECT, wrapped, server("ok"))]
    for handed in every:
        assert len(handed.token) > 30
        kept = data / "instances" / handed.instance.instance_id / "secrets"
        mode = kept.stat()
        assert (stat.S_IMODE(mode.st_mode), mode.st_uid) == (0o600, os.geteuid())
        token = handed.token.encode()
        assert [path for path in _files(data) if token in path.read_bytes()] == [kept]
        assert not any(token in line for line in _command_lines())
        assert not any(path for path in _files(tmp_path) if token in path.read_bytes())
        listed = await services.instances.list(LOCAL)
        assert handed.token not in repr(listed)
        await services.instances.release(LOCAL, handed.instance.instance_id)
        assert not any(path for path in _files(data) if token in path.read_bytes())


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


CALL_A_SOCKET = """
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(30)
    try:
        client.connect(sys.argv[1])
        print("connected")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock"])
async def test_what_runs_in_a_space_is_no_client(
    services: Services, tmp_path: Path, data: Path, runtime: str
) -> None:
    """With the machine's network, and where we are an ordinary user, as the same user; neither
    of a server behind a gate, nor of one on streams, nor of what else listens for us."""
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "call.py").write_text(CALL_A_SOCKET)
    gated = await start(services, server("ok"), tmp_path)
    streams = await start(
        services, server("stdio", transport=Transport.STDIO), tmp_path, streams=True
    )
    (data / "daemon").mkdir(exist_ok=True)
    own = data / "daemon" / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own))
        listener.listen()
        space = await make(services, tmp_path, network=Network.OPEN, runtime=runtime)
        try:
            for token in ("''", "guessed"):
                _, said = await run(
                    services, space, f"python3 ask.py {gated.instance.port} {token}"
                )
                # With a root daemon the user is another one too, and is not even answered.
                assert said.strip() in ("401", *REFUSED), said
            for path in (own, streams.instance.socket):
                _, said = await run(services, space, f"python3 call.py {path}")
                assert "Error" in said, said
        finally:
            await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
    await call(gated, "echo", text="still")
