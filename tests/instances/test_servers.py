"""Kinds of servers: what they are told, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import PortBy, Server, Transport, Wrap
from carrel.instances.built_in import BUILT_IN
from carrel.instances.servers import (
    UVICORN_LINE,
    check,
    completed,
    fill,
    filled,
    port_in,
)

SERVER = Server("mine", ("serve", "--root={project}", "{}", '{"a": {project}}'))
WRAPPED = replace(SERVER, wrap=Wrap.UVICORN, port_by=PortBy.SOCKET)


@pytest.mark.parametrize("server", BUILT_IN, ids=lambda server: str(server.name))
def test_those_that_are_built_in_can_be_started(server: Server) -> None:
    check(server)
    assert completed(server) == server


def test_only_places_are_filled() -> None:
    server = replace(SERVER, env={"HOME": "{state}/home", "X": "{other}"})
    places = {"project": "/p", "state": "/s"}
    argv = [fill(word, places) for word in server.command]
    assert argv == ["serve", "--root=/p", "{}", '{"a": /p}']
    assert filled(server.env, places) == {"HOME": "/s/home", "X": "{other}"}


def test_texts_are_filled_too() -> None:
    server = replace(SERVER, files={"a/b.yml": "where: {state}/x {}", "c/": ""})
    check(server)
    assert filled(server.files, {"state": "/s"}) == {"a/b.yml": "where: /s/x {}", "c/": ""}


def test_what_follows_need_not_be_said() -> None:
    streams = completed(replace(SERVER, transport=Transport.STDIO))
    assert (streams.wrap, streams.port_by) == (Wrap.STDIO, PortBy.SOCKET)
    check(streams)
    wrapped = completed(replace(SERVER, wrap=Wrap.UVICORN))
    assert wrapped.port_by is PortBy.SOCKET
    check(wrapped)
    assert completed(SERVER) == SERVER
    for place, by in (
        ("{fd}", PortBy.SOCKET),
        ("{port_file}", PortBy.FILE),
        ("{port}", PortBy.RESERVED),
    ):
        assert completed(replace(SERVER, env={"WHERE": place})).port_by is by
    said = replace(SERVER, command=("x", "{port}"), port_by=PortBy.LOG, port_line="(.)")
    assert completed(said) == said


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (replace(SERVER, command=()), "no command"),
        (replace(SERVER, command=("x", "{home}")), "home"),
        (replace(SERVER, env={"A": "{where}"}), "where"),
        (replace(SERVER, port_by=PortBy.SOCKET), "{fd}"),
        (replace(SERVER, port_by=PortBy.FILE), "{port_file}"),
        (replace(SERVER, port_by=PortBy.RESERVED), "{port}"),
        (replace(SERVER, port_by=PortBy.LOG, port_line="("), "regular expression"),
        (replace(SERVER, port_by=PortBy.LOG, port_line="port"), "no group"),
        (replace(SERVER, name="Mine"), "name"),
        (replace(SERVER, stdio=("",)), "no command"),
        (replace(SERVER, stdio=("x", "{home}")), "home"),
        (replace(SERVER, wrap=Wrap.UVICORN), "socket"),
        (replace(WRAPPED, wrap=Wrap.STDIO), "stdio"),
        (replace(WRAPPED, transport=Transport.STDIO), "uvicorn"),
        (replace(WRAPPED, takes_token="TOKEN"), "token"),
        (replace(WRAPPED, command=("/x/python3", "-c", "serve")), "script"),
        (replace(WRAPPED, preload=("not a module",)), "not a module"),
        (replace(SERVER, preload=("json",)), "preloaded"),
        (replace(SERVER, binds=("relative",)), "absolute"),
        (replace(SERVER, files={"/etc/x": ""}), "/etc/x"),
        (replace(SERVER, files={"a/../../x": ""}), "below"),
        (replace(SERVER, copies={"a": ""}), "below"),
        (replace(SERVER, path="mcp"), "slash"),
        (replace(SERVER, ready_s=0), "ready_s"),
        (replace(SERVER, warm=-1), "warm"),
    ],
)
def test_what_could_never_start(server: Server, why: str) -> None:
    with pytest.raises(MessageInvalid, match=why):
        check(server)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("INFO: Uvicorn running on http://127.0.0.1:41234 (Press CTRL+C to quit)", 41234),
        ("Uvicorn running on http://0.0.0.0:1 \n Uvicorn running on http://[::1]:2", 1),
        ("Uvicorn running on http://127.0.0.1:70000", None),
        ("Uvicorn running on http://127.0.0.1:0", None),
        ("nothing", None),
    ],
)
def test_the_port_that_a_line_tells(text: str, port: int | None) -> None:
    server = replace(SERVER, port_by=PortBy.LOG, port_line=UVICORN_LINE)
    assert port_in(server, text) == port
