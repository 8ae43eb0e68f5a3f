"""The own folders of servers, in which a port is looked for: links there lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.domain.instances import Server
from carrel.domain.server_adapter import PortSearch, PreparedServer
from carrel.instances.adapter import LocalServerAdapter

FILED = PreparedServer(Server("filed", ("filed",)), ("filed",), {}, False, False, port_file="port")


def seen(state: Path) -> tuple[int, ...]:
    return LocalServerAdapter(lambda *_: (), lambda: ()).look(FILED, PortSearch(0, state))


@pytest.mark.parametrize("own", [".instance", ".instances/one"])
def test_a_port_is_read_in_the_own_folder_and_by_no_link_to_another(
    tmp_path: Path, own: str
) -> None:
    state = tmp_path / "home" / own
    state.mkdir(parents=True)
    (state / "port").write_text("1234")
    assert seen(state) == (1234,)
    for moved in (state, state.parent) if "/" in own else (state,):
        moved.rename(tmp_path / "elsewhere")
        moved.symlink_to(tmp_path / "elsewhere")
        assert (state / "port").read_text() == "1234"
        assert seen(state) == ()
        moved.unlink()
        (tmp_path / "elsewhere").rename(moved)
    (state / "port").rename(tmp_path / "port")
    (state / "port").symlink_to(tmp_path / "port")
    assert seen(state) == ()
