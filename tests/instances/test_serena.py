"""The built-in definition of Serena, with the real one: it works without a network, and two on
the same project share nothing that either writes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from carrel.instances.built_in import SERENA
from carrel.instances.inside.furnish import Furnisher
from carrel.instances.programs import ServerLocator
from carrel.instances.servers import fill, filled
from tests.instances.installed import require, search_path
from tests.instances.projects import MODULE, Project, add_memory, make_project
from tests.sampling import whole_only

WAIT_S = 120.0


def _parameters(project: Project, state: Path) -> StdioServerParameters:
    """Without a network: what would be fetched fails at once."""
    places = {"project": str(project.path), "state": str(state)}
    furnisher = Furnisher(str(state))
    furnisher.put(filled(SERENA.files, places))
    furnisher.copy(str(project.path), dict(SERENA.copies))
    server = replace(SERENA, command=SERENA.stdio)
    found = ServerLocator(search_path()).locate(server)
    program, *words = [fill(word, places) for word in found.argv]
    path = {"PATH": f"{found.path}:/usr/bin:/bin", "HOME": str(state)}
    nothing = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    return StdioServerParameters(
        command=program,
        args=words,
        env={**path, **nothing, **filled(server.env, places)},
        cwd=str(state),
    )


async def _call(client: Client, tool: str, **words: Any) -> str:
    result = await client.call_tool(tool, words)
    assert not result.is_error
    return "".join(getattr(part, "text", "") for part in result.content)


@whole_only
async def test_two_on_the_same_project(tmp_path: Path) -> None:
    """Which has a note for Serena, and no settings."""
    require("serena")
    project = make_project(tmp_path / "project", "Wagon")
    add_memory(project, "note", "of the project")
    before = project.everything()
    first, second = (_parameters(project, tmp_path / name) for name in ("one", "two"))
    async with asyncio.timeout(WAIT_S), Client(first) as one, Client(second) as two:
        for client in (one, two):
            assert "Wagon" in await _call(client, "get_symbols_overview", relative_path=MODULE)
            found = await _call(client, "find_symbol", name_path_pattern="Wagon/total")
            assert MODULE in found
            assert "of the project" in await _call(client, "read_memory", memory_name="note")
        await _call(one, "write_memory", memory_name="note", content="changed")
        await _call(one, "write_memory", memory_name="global/mine", content="of one")
        assert "mine" in await _call(one, "list_memories")
        assert "mine" not in await _call(two, "list_memories")
        assert "of the project" in await _call(two, "read_memory", memory_name="note")
    assert project.everything() == before
    assert (tmp_path / "one" / "serena" / "project" / "memories" / "note.md").exists()
