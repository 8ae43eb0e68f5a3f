"""What Node compiled of a server, kept for its later starts: by whom it is written, and read."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import TextContent

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import Found, Handed, Instance, Server, Transport
from carrel.instances.compile_cache import CACHE, MOST, OWN, PROGRAM, NodeCompileCaches
from carrel.instances.programs import ServerLocator
from tests.instances.inside.serving import connected
from tests.instances.installed import require, search_path
from tests.instances.rig import PYTHON, WAIT_S, call, leftovers, start
from tests.instances.rig import SCRIPT as SERVER
from tests.sampling import whole_only

SCRIPT = """\
const fs = require('node:fs'), lines = require('node:readline');
const { constants, getCompileCacheDir } = require('node:module');
const { greeting } = require('./greeting.js');
if (process.env.NODE_OPTIONS && fs.existsSync(__dirname + '/shy')) process.exit(5);

function attempts() {
  const folder = process.env.NODE_COMPILE_CACHE || '/nowhere', said = {};
  const tries = {
    write: () => fs.writeFileSync(folder + '/planted', 'x'),
    change: () => fs.appendFileSync(folder + '/program.json', 'x'),
    remove: () => fs.rmSync(folder, { recursive: true }),
    loosen: () => fs.chmodSync(folder, 0o777),
  };
  for (const name in tries)
    try { tries[name](); said[name] = 'done'; } catch (error) { said[name] = error.code; }
  return said;
}

function look(words) {
  return JSON.stringify({
    folder: process.env.NODE_COMPILE_CACHE || '',
    used: getCompileCacheDir() || '',
    options: process.env.NODE_OPTIONS || '',
    attempts: words.attempt ? attempts() : {},
    greeting: greeting(),
  });
}

lines.createInterface({ input: process.stdin }).on('line', (line) => {
  const asked = JSON.parse(line);
  let result = { tools: [] };
  if (asked.method === 'initialize')
    result = { protocolVersion: asked.params.protocolVersion, capabilities: { tools: {} },
               serverInfo: { name: 'noded', version: '0' } };
  if (asked.method === 'tools/call')
    result = { content: [{ type: 'text', text: look(asked.params.arguments) }] };
  if (asked.id !== undefined)
    console.log(JSON.stringify({ jsonrpc: '2.0', id: asked.id, result }));
});
"""
# They share a service, and the bridge that it keeps loaded.
pytestmark = pytest.mark.xdist_group("compile caches")
shared = pytest.mark.asyncio(loop_scope="module")
GREETING = "exports.greeting = () => 'hello';\n"


@pytest.fixture
def services(bridging: Services) -> Iterator[Services]:
    yield bridging
    shutil.rmtree(bridging.settings.data / "compiled", ignore_errors=True)


@pytest.fixture
def data(services: Services) -> Path:
    return services.settings.data


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Of a Node that can."""
    require("filesystem")
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "package.json").write_text('{"name": "noded", "version": "1.0.0"}')
    (folder / "greeting.js").write_text(GREETING)
    (folder / "noded").write_text(f"#!/usr/bin/env node\n{SCRIPT}")
    (folder / "noded").chmod(0o755)
    return folder / "noded"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def noded(program: Path, **more: Any) -> Server:
    return Server("noded", (str(program),), transport=Transport.STDIO, **more)


async def look(handed: Handed, **words: object) -> dict[str, Any]:
    async with connected(handed.instance.url, handed.token, mode="legacy") as client:
        result = await client.call_tool("look", words)
    assert isinstance(result.content[0], TextContent)
    found: dict[str, Any] = json.loads(result.content[0].text)
    return found


async def settled(services: Services) -> None:
    async with asyncio.timeout(WAIT_S):
        await services.instances.settled()


async def fillers(services: Services, program: Path) -> list[Instance]:
    """Those that ran it for nobody, and have ended."""
    ended = [one for one in await services.instances.list(LOCAL, ended=True) if one.ended_at]
    named = [one for one in ended if one.server.name.endswith("-compiling")]
    return [one for one in named if str(program) in one.server.command]


def kept(data: Path) -> list[Path]:
    return sorted((data / "compiled").glob("*")) if (data / "compiled").exists() else []


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode,
            path.stat().st_uid,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


@shared
async def test_it_is_filled_by_one_that_serves_nobody(
    data: Path, services: Services, program: Path, project: Path
) -> None:
    (project / "precious").write_text("mine")
    first = await start(services, noded(program), project)
    found = await look(first)
    assert (found["folder"], found["used"], found["options"]) == ("", "", "")
    await settled(services)
    (folder,) = kept(data)
    entries = [path for path in folder.rglob("*") if path.is_file() and path.name != PROGRAM]
    assert len(entries) >= 2
    (filler,) = await fillers(services, program)
    assert filler.problem is not None and filler.problem.code == "compiled"
    assert filler.project_path != str(project) and filler.clients == 0
    assert not Path(filler.project_path).exists()
    second = await start(services, noded(program), project)
    found = await look(second)
    assert found["folder"] == str(folder) and found["used"].startswith(str(folder))
    assert found["options"] == "" and found["greeting"] == "hello"
    for handed in (first, second):
        await services.instances.release(LOCAL, handed.instance.instance_id)
    ids = [one.instance_id for one in (first.instance, second.instance, filler)]
    assert leftovers(data, *ids) == []
    assert kept(data) == [folder]
    assert [path.name for path in project.iterdir()] == ["precious"]


@shared
async def test_an_instance_cannot_write_it(
    data: Path, services: Services, program: Path, project: Path
) -> None:
    await start(services, noded(program), project)
    await settled(services)
    (folder,) = kept(data)
    before = state_of(folder)
    handed = await start(services, noded(program), project)
    found = await look(handed, attempt=True)
    assert found["attempts"].keys() == {"write", "change", "remove", "loosen"}
    assert set(found["attempts"].values()) <= {"EROFS", "EACCES", "EPERM", "EBUSY"}, found
    # Its end, at which Node would write what is new.
    await services.instances.release(LOCAL, handed.instance.instance_id)
    assert state_of(folder) == before
    assert all(uid == os.geteuid() and not mode & 0o022 for mode, uid, _ in before.values())


@shared
async def test_on_streams(data: Path, services: Services, program: Path, project: Path) -> None:
    handed = await start(services, noded(program), project, streams=True)
    await settled(services)
    (folder,) = kept(data)
    await services.instances.release(LOCAL, handed.instance.instance_id)
    handed = await start(services, noded(program), project, streams=True)
    assert str(folder) in handed.instance.binds
    reader, writer = await asyncio.open_unix_connection(handed.instance.socket)
    asked = {"id": 1, "method": "tools/call", "params": {"arguments": {}}}
    writer.write(json.dumps(asked).encode() + b"\n")
    async with asyncio.timeout(WAIT_S):
        answer = json.loads(await reader.readline())
    writer.close()
    assert json.loads(answer["result"]["content"][0]["text"])["folder"] == str(folder)


@shared
async def test_a_program_that_changed_is_another(
    data: Path, services: Services, program: Path, project: Path
) -> None:
    first = await start(services, noded(program), project)
    await settled(services)
    (old,) = kept(data)
    await services.instances.release(LOCAL, first.instance.instance_id)
    program.write_text(program.read_text() + "// changed\n")
    handed = await start(services, noded(program), project)
    assert (await look(handed))["folder"] == ""
    await settled(services)
    (new,) = kept(data)
    assert new != old


@shared
async def test_what_an_instance_shows_stays(
    data: Path, services: Services, program: Path, project: Path
) -> None:
    """So that it can be started again."""
    await start(services, noded(program), project)
    await settled(services)
    (old,) = kept(data)
    await start(services, noded(program), project)
    program.write_text(program.read_text() + "// changed\n")
    await start(services, noded(program), project)
    await settled(services)
    assert old in kept(data) and len(kept(data)) == 2


@shared
async def test_one_that_cannot_be_filled_is_started_as_before(
    data: Path, services: Services, program: Path, project: Path
) -> None:
    (program.parent / "shy").touch()
    server = noded(program, ready_s=2.0)
    first = await start(services, server, project)
    await settled(services)
    assert kept(data) == []
    handed = await start(services, server, project)
    assert (await look(handed))["folder"] == ""
    # It is not tried again and again.
    await settled(services)
    (filler,) = await fillers(services, program)
    assert str(filler.state) == "failed"
    for one in (first, handed):
        await services.instances.release(LOCAL, one.instance.instance_id)
    assert leftovers(data, filler.instance_id) == []


@shared
async def test_one_that_leaves_nothing_is_tried_once(
    data: Path, services: Services, project: Path
) -> None:
    """A `node` that an instance may write is not even asked for its version where the daemon
    is: what it can do, a sandbox shows."""
    node = project / "node"
    shutil.copy(os.path.realpath(PYTHON), node)
    words = (str(node), SERVER, "stdio")
    server = Server("old", words, transport=Transport.STDIO, binds=(SERVER,))
    for _ in range(2):
        handed = await start(services, server, project)
        await settled(services)
        await services.instances.release(LOCAL, handed.instance.instance_id)
    assert kept(data) == []
    (filler,) = await fillers(services, node)
    assert filler.problem is not None and filler.problem.code == "compiled"
    assert leftovers(data, filler.instance_id) == []


@shared
@pytest.mark.parametrize("said", [{CACHE: "{state}/own"}, {"NODE_OPTIONS": "--no-warnings"}])
async def test_who_says_otherwise_is_left_alone(
    data: Path, services: Services, program: Path, project: Path, said: dict[str, str]
) -> None:
    handed = await start(services, noded(program, env=said), project)
    await settled(services)
    assert kept(data) == []
    await look(handed)


# In a sample small programs fill it and find it filled.
@whole_only
@shared
async def test_the_real_servers(data: Path, services: Services, project: Path) -> None:
    require("everything")
    for _ in range(2):
        for name in ("everything", "filesystem"):
            handed = await start(services, name, project)
            tool = "get-env" if name == "everything" else "list_allowed_directories"
            await call(handed, tool)
            await services.instances.release(LOCAL, handed.instance.instance_id)
            await settled(services)
    folders = kept(data)
    assert len(folders) == 2
    assert all(sum(path.is_file() for path in one.rglob("*")) > 100 for one in folders)
    assert list(project.iterdir()) == []


# What a sandbox may have left


@pytest.fixture
def found(program: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    monkeypatch.setenv("PATH", search_path())
    return ServerLocator().locate(noded(program))


def test_only_files_are_taken(tmp_path: Path, found: Found) -> None:
    caches = NodeCompileCaches(tmp_path / "compiled")
    (tmp_path / "secret").write_text("secret")
    state, outside = tmp_path / "state", tmp_path / "outside"
    entries = state / OWN / "v22"
    for folder in (entries, outside):
        folder.mkdir(parents=True)
        (folder / "good").write_bytes(b"compiled")
    (entries / "link").symlink_to(tmp_path / "secret")
    (entries / ".hidden").write_text("x")
    (entries / "folder").mkdir()
    os.mkfifo(entries / "pipe")
    (state / OWN / "elsewhere").symlink_to(outside)
    path = caches.of(Server("noded", found.argv), found)
    with caches.empty_project():
        assert caches.keep(path, found, state)
    kept = {str(one.relative_to(path)) for one in Path(path).rglob("*") if one.is_file()}
    assert kept == {PROGRAM, "v22/good"}
    assert [one.name for one in (tmp_path / "compiled").iterdir()] == [Path(path).name]


def test_nothing_is_no_cache(tmp_path: Path, found: Found) -> None:
    caches = NodeCompileCaches(tmp_path / "compiled")
    path = caches.of(Server("noded", found.argv), found)
    with caches.empty_project():
        (tmp_path / "state").mkdir()
        assert not caches.keep(path, found, tmp_path / "state")
    assert not caches.is_filled(path)
    (tmp_path / "state" / OWN).symlink_to(tmp_path)
    with caches.empty_project():
        assert not caches.keep(path, found, tmp_path / "state")


def test_there_are_no_more_than_so_many(tmp_path: Path, found: Found, program: Path) -> None:
    caches = NodeCompileCaches(tmp_path / "compiled")
    entries = tmp_path / "state" / OWN / "v22"
    entries.mkdir(parents=True)
    (entries / "good").write_bytes(b"compiled")
    paths = []
    with caches.empty_project():
        for number in range(MOST + 2):
            one = Found((*found.argv, str(number)), script=found.script)
            paths.append(caches.of(Server("noded", one.argv), one))
            caches.keep(paths[-1], one, tmp_path / "state")
            os.utime(paths[-1], (number, number))
    caches.sweep({paths[0]})
    assert [caches.is_filled(path) for path in paths[:3]] == [True, False, True]
    shutil.rmtree(program.parent)
    caches.sweep({paths[0]})
    assert [path for path in paths if caches.is_filled(path)] == paths[:1]


def test_nothing_is_taken_by_way_of_a_link(tmp_path: Path, found: Found) -> None:
    """The sandbox owns the folder that its own one is in."""
    caches = NodeCompileCaches(tmp_path / "compiled")
    entries = tmp_path / "elsewhere" / OWN / "v22"
    entries.mkdir(parents=True)
    (entries / "secret").write_bytes(b"another's")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".instance").symlink_to(tmp_path / "elsewhere")
    path = caches.of(Server("noded", found.argv), found)
    with caches.empty_project(), pytest.raises(OSError):
        caches.keep(path, found, tmp_path / "home" / ".instance")
    assert list((tmp_path / "compiled").iterdir()) == []


def test_it_is_for_node_alone(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    caches = NodeCompileCaches(tmp_path / "compiled")
    for server in (Server("one", (str(script),)), Server("two", ("/bin/sh", str(script)))):
        assert caches.of(server, ServerLocator().locate(server)) == ""
