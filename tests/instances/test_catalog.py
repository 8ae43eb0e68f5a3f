"""Which servers are known, who has the last word, and what outlives a restart."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.config import parse_settings
from carrel.domain.errors import MessageInvalid, ServerNotFound, ServerNotInstalled
from carrel.domain.instances import PortBy, Server, ToolCall, Transport, Wrap
from carrel.domain.runtimes import Network
from carrel.instances.built_in import BUILT_IN, SERENA
from carrel.instances.programs import ServerLocator
from carrel.instances.servers import ServerCatalog

MINE = Server(
    "mine",
    ("sh", "-c", "serve {port}"),
    transport=Transport.SSE,
    port_by=PortBy.RESERVED,
    env={"A": "{state}"},
    tool_ready=ToolCall("ping", {"deep": [1, {"a": None}]}),
    network=Network.OPEN,
    binds=("/srv",),
    files={"a/": "", "b.yml": "x: {state}"},
    copies={".mine": "mine"},
)


def _library(data: Path, said: Mapping[str, object] | None = None) -> ServerCatalog:
    """As from a settings file."""
    settings = parse_settings({"data": str(data), "servers": dict(said or {})})
    fields = {name: server.said() for name, server in settings.servers.items()}
    return ServerCatalog(data / "servers", ServerLocator("/usr/bin:/bin", Path("/nowhere")), fields)


def test_those_that_are_built_in(tmp_path: Path) -> None:
    library = _library(tmp_path)
    found = library.list()
    assert [status.server for status in found] == sorted(BUILT_IN, key=lambda one: one.name)
    assert {status.source for status in found} == {"built in"}
    assert library.get("serena") is SERENA


def test_settings_change_only_what_they_say(tmp_path: Path) -> None:
    said = {"serena": {"warm": 2, "env": {"LEVEL": "1"}, "files": {"x": "y"}}}
    found = _library(tmp_path, said).get("serena")
    assert found == replace(
        SERENA, warm=2, env={**SERENA.env, "LEVEL": "1"}, files={**SERENA.files, "x": "y"}
    )


def test_settings_have_servers_of_their_own(tmp_path: Path) -> None:
    said = {
        "mine": {
            "command": ["sh", "-c", "serve"],
            "transport": "stdio",
            "tool_ready": {"name": "ping", "arguments": {"a": 1}},
            "binds": ["/srv"],
            "network": "open",
        }
    }
    library = _library(tmp_path, said)
    assert library.get("mine") == Server(
        "mine",
        ("sh", "-c", "serve"),
        transport=Transport.STDIO,
        port_by=PortBy.SOCKET,
        wrap=Wrap.STDIO,
        tool_ready=ToolCall("ping", {"a": 1}),
        binds=("/srv",),
        network=Network.OPEN,
    )
    status = next(one for one in library.list() if one.server.name == "mine")
    assert (status.source, status.installed, status.where) == ("settings", True, "/usr/bin/sh")


@pytest.mark.parametrize(
    "fields",
    [{}, {"warm": 1}, {"command": [""]}, {"command": ["x", "{what}"]}],
)
def test_settings_that_could_never_start(tmp_path: Path, fields: dict[str, object]) -> None:
    with pytest.raises(MessageInvalid) as caught:
        _library(tmp_path, {"mine": fields})
    assert caught.value.hint


def test_what_is_added_is_there_after_a_restart(tmp_path: Path) -> None:
    _library(tmp_path).add(MINE)
    library = _library(tmp_path)
    assert library.get("mine") == MINE
    file = tmp_path / "servers" / "mine.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == ["mine.json"]
    library.add(replace(MINE, warm=3))
    assert library.get("mine").warm == 3
    library.remove("mine")
    with pytest.raises(ServerNotFound, match="mine"):
        library.get("mine")


def test_many_add_at_once(tmp_path: Path) -> None:
    library = _library(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: library.add(replace(MINE, warm=number)), range(40)))
    assert library.get("mine").warm in range(40)
    assert os.listdir(tmp_path / "servers") == ["mine.json"]


def test_what_is_added_comes_last(tmp_path: Path) -> None:
    library = _library(tmp_path, {"serena": {"warm": 1}})
    library.add(replace(MINE, name="serena"))
    assert library.get("serena").command == MINE.command
    assert next(one.source for one in library.list() if one.server.name == "serena") == "added"
    library.remove("serena")
    assert library.get("serena") == replace(SERENA, warm=1)


def test_streams_are_offered_without_saying_how(tmp_path: Path) -> None:
    library = _library(tmp_path)
    library.add(Server("mine", ("sh",), transport=Transport.STDIO))
    assert library.get("mine").wrap is Wrap.STDIO


@pytest.mark.parametrize("name", ["../x", "X", "", "a" * 64, "a.b", "ä"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    library = _library(tmp_path)
    with pytest.raises(MessageInvalid):
        library.add(replace(MINE, name=name))
    with pytest.raises(ServerNotFound):
        library.get(name)
    with pytest.raises(ServerNotFound):
        library.remove(name)
    assert not (tmp_path / "servers").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"name": "mine"}', '{"name":"mine","command":[]}']
)
def test_a_broken_file_is_told_and_breaks_nothing_else(tmp_path: Path, text: str) -> None:
    library = _library(tmp_path)
    library.add(MINE)
    (tmp_path / "servers" / "mine.json").write_text(text)
    assert len(library.list()) == len(BUILT_IN)
    with pytest.raises(ServerNotFound, match=r"mine\.json") as caught:
        library.get("mine")
    assert library.broken() == {"mine": str(caught.value)}
    library.remove("mine")
    assert library.broken() == {}


def test_half_a_file_is_never_seen(tmp_path: Path) -> None:
    library = _library(tmp_path)
    library.add(MINE)
    (tmp_path / "servers" / ".other.1").write_text("{")
    (tmp_path / "servers" / "notes.txt").write_text("{")
    assert library.broken() == {}
    assert len(library.list()) == len(BUILT_IN) + 1


def test_only_what_was_added_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ServerNotFound, match="serena") as caught:
        _library(tmp_path).remove("serena")
    assert "built in" in caught.value.hint


def test_what_is_not_installed_is_known_all_the_same(tmp_path: Path) -> None:
    library = _library(tmp_path)
    status = next(one for one in library.list() if one.server.name == "serena")
    assert (status.installed, status.where) == (False, "")
    with pytest.raises(ServerNotInstalled):
        library.locate(status.server)
