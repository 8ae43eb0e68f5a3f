"""Settings: where the data folder is, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.config import Settings, SettingsInvalid, load_settings, parse_settings
from tests.accounts import PYTHON, Account, run_as

SHOW = "from carrel.config import load_settings; print(load_settings().data)"


def test_the_variable_comes_first() -> None:
    assert load_settings({"CARREL_DATA": "/srv/desk", "XDG_DATA_HOME": "/x"}).data == Path(
        "/srv/desk"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="the default of root")
@pytest.mark.parametrize("env", [{}, {"CARREL_DATA": ""}, {"XDG_DATA_HOME": "/x", "HOME": "/h"}])
def test_root_uses_the_machines_folder(env: dict[str, str]) -> None:
    assert load_settings(env).data == Path("/var/lib/carrel")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/carrel"),
        ({"HOME": "/h", "XDG_DATA_HOME": "relative"}, "/h/.local/share/carrel"),
        ({"HOME": "/h", "XDG_DATA_HOME": ""}, "/h/.local/share/carrel"),
        ({"HOME": "/h"}, "/h/.local/share/carrel"),
        ({"HOME": "/h", "CARREL_DATA": "/d"}, "/d"),
    ],
)
def test_ordinary_users_have_their_own(
    ordinary_user: Account, env: dict[str, str], expected: str
) -> None:
    result = run_as(ordinary_user, [PYTHON, "-c", SHOW], env=env)
    assert result.stdout.strip() == expected, result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user without an account")
def test_a_user_without_a_home_is_told_what_to_set(ordinary_user: Account) -> None:
    result = run_as(ordinary_user, [PYTHON, "-c", SHOW], env={"HOME": ""})
    assert "Set CARREL_DATA" in result.stderr.splitlines()[-1]
    env = {"HOME": "", "CARREL_DATA": "/d"}
    result = run_as(ordinary_user, [PYTHON, "-c", SHOW], env=env)
    assert result.stdout.strip() == "/d", result.stderr


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"data": "relative"},
        {"data": 7},
        {"data": "/nul\0byte"},
        {"data": "/d", "dtaa": "/e"},
        {"data": "/d", "agents": {"Mine": {"command": ["x"]}}},
        {"data": "/d", "agents": {"mine": {"command": []}}},
        {"data": "/d", "agents": {"mine": {"command": ["x"], "binds": ["relative"]}}},
        {"data": "/d", "agents": {"mine": {"command": ["x"], "key": "sk"}}},
        {"data": "/d", "agents": {"mine": {"command": ["x"], "provider": "me"}}},
        {"data": "/d", "servers": {"Mine": {"command": ["x"]}}},
        {"data": "/d", "servers": {"mine": {"command": ["x"], "binds": ["relative"]}}},
        {"data": "/d", "servers": {"mine": {"command": "x"}}},
        {"data": "/d", "servers": {"mine": {"command": ["x"], "port": 1}}},
        {"data": "/d", "servers": {"mine": {"command": ["x"], "wrap": "other"}}},
        {"data": "/d", "servers": {"mine": {"tool_ready": {"arguments": {}}}}},
        {"data": "/d", "instances_max": 0},
        {"data": "/d", "instances_per_caller": 0},
        {"data": "/d", "instance_memory_bytes": -1},
        {"data": "/d", "instances_starting": -1},
        {"data": "/d", "spaces_per_caller": -1},
    ],
)
def test_what_cannot_be_used_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        parse_settings(values)
    assert caught.value.code == "settings_invalid"
    assert caught.value.hint


def test_a_server_says_only_what_is_written() -> None:
    values = {"data": "/d", "servers": {"serena": {"warm": 2, "binds": ["/srv"]}}}
    assert parse_settings(values).servers["serena"].said() == {"warm": 2, "binds": ("/srv",)}


def test_settings_do_not_change() -> None:
    settings = Settings(data=Path("/d"))
    with pytest.raises(AttributeError):
        settings.data = Path("/e")  # type: ignore[misc]
