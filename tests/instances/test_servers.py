"""Kinds of servers: what they are told, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import PortBy, Server
from carrel.instances.servers import BUILT_IN, UVICORN_LINE, check, fill, port_in

SERVER = Server("mine", ("serve", "--root={project}", "{}", '{"a": {project}}'))


@pytest.mark.parametrize("server", BUILT_IN, ids=lambda server: str(server.name))
def test_those_that_are_built_in_can_be_started(server: Server) -> None:
    check(server)


def test_only_places_are_filled() -> None:
    server = replace(SERVER, env={"HOME": "{state}/home", "X": "{other}"})
    filled = fill(server, {"project": "/p", "state": "/s"})
    assert filled.argv == ("serve", "--root=/p", "{}", '{"a": /p}')
    assert filled.env == {"HOME": "/s/home", "X": "{other}"}


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (replace(SERVER, command=()), "no command"),
        (replace(SERVER, command=("x", "{home}")), "home"),
        (replace(SERVER, env={"A": "{where}"}), "where"),
        (replace(SERVER, port_by=PortBy.SOCKET), "{fd}"),
        (replace(SERVER, port_by=PortBy.FILE), "{port_file}"),
        (replace(SERVER, port_by=PortBy.RESERVED), "{port}"),
        (replace(SERVER, port_by=PortBy.LOG, port_line="("), "none"),
        (replace(SERVER, port_by=PortBy.LOG, port_line="port"), "no group"),
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
