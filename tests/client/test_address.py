"""Where the daemon is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.client.address import data_folder, find_address, starter
from carrel.config import SettingsInvalid, load_settings
from carrel.domain.errors import (
    DaemonError,
    DaemonRunning,
    DaemonUnavailable,
    MessageInvalid,
)
from tests.accounts import PYTHON, Account, run_as

SHOW = """
import os
from carrel.client.address import data_folder
from carrel.config import SettingsInvalid, load_settings

def answer(ask):
    try:
        return ask()
    except SettingsInvalid as error:
        return error.message

first, second = answer(lambda: data_folder(os.environ)), answer(lambda: str(load_settings().data))
print(first == second, first)
"""
words = st.sampled_from(["", "/", "/srv/x", "relative", "/a/../b", "~/x", "/with space"])


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {}, optional={"CARREL_DATA": words, "XDG_DATA_HOME": words, "HOME": words}
    )
)
def test_the_folder_is_the_one_of_the_settings(env: dict[str, str]) -> None:
    try:
        wanted = load_settings(env).data
    except SettingsInvalid:
        # Where the data are may be plain although other settings cannot be found.
        if not env.get("CARREL_DATA", "").startswith("/"):
            with pytest.raises(SettingsInvalid):
                data_folder(env)
        return
    assert Path(data_folder(env)) == wanted


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"HOME": "/h"}, "/h/.local/share/carrel"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/carrel"),
        ({"HOME": "/h", "XDG_DATA_HOME": "x"}, "/h/.local/share/carrel"),
        ({"HOME": ""}, ""),
    ],
)
def test_so_it_is_for_ordinary_users(
    ordinary_user: Account, env: dict[str, str], wanted: str
) -> None:
    result = run_as(ordinary_user, [PYTHON, "-c", SHOW], env=env)
    assert result.stdout.startswith(f"True {wanted}"), result.stdout + result.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", "/h/x/carrel"), ("idle_s = 5", "/h/x/carrel"), ('data = "/elsewhere"', "/elsewhere")],
)
def test_the_settings_file_counts(
    ordinary_user: Account, text: str, wanted: str, data: Path
) -> None:
    (data / "carrel").mkdir(mode=0o755)
    (data / "carrel" / "config.toml").write_text(text)
    (data / "carrel" / "config.toml").chmod(0o644)
    env = {"HOME": "/h", "XDG_DATA_HOME": "/h/x", "XDG_CONFIG_HOME": str(data)}
    result = run_as(ordinary_user, [PYTHON, "-c", SHOW], env=env)
    assert result.stdout.strip() == f"True {wanted}", result.stdout + result.stderr


def test_what_is_said_first_counts() -> None:
    env = {"CARREL_URL": "http://h:1", "CARREL_TOKEN": "t", "CARREL_DATA": "/d"}
    assert find_address(env).authority == "h:1"
    assert find_address(env).token == "t"
    assert find_address(env, data="/e").socket == "/e/daemon/socket"
    assert find_address(env, socket="/s").socket == "/s"
    assert find_address(env, url="https://x", token="u").token == "u"
    assert find_address({"CARREL_DATA": "/d"}).socket == "/d/daemon/socket"


@pytest.mark.parametrize(
    ("url", "authority", "tls"),
    [
        ("http://localhost:80", "localhost:80", False),
        ("http://[::1]:7000/", "[::1]:7000", False),
        ("https://desk.example", "desk.example:443", True),
        ("unix:///run/x", "carrel", False),
    ],
)
def test_addresses(url: str, authority: str, tls: bool) -> None:
    place = find_address({}, url=url)
    assert (place.authority, place.tls) == (authority, tls)


@pytest.mark.parametrize(
    "url",
    ["ftp://h", "http://", "h:80", "http://h:port", "http://h/path", "http://u:p@h", "http://["],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(MessageInvalid, match="not the address"):
        find_address({}, url=url)


def test_only_the_own_daemon_is_started() -> None:
    own = find_address({"CARREL_DATA": "/d"})
    assert starter(own, env={}) is not None
    assert starter(own, allowed=False, env={}) is None
    assert starter(own, env={"CARREL_NO_START": "1"}) is None
    assert starter(find_address({}, url="http://h:1"), env={}) is None
    assert starter(find_address({}, socket=os.devnull), env={}) is None


def test_one_that_is_just_ending_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | None] = []

    def start(_data: str) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr("carrel.daemon.control.start", start)
    begin = starter(find_address({"CARREL_DATA": "/d"}), env={})
    assert begin is not None
    ending = DaemonError("The daemon ended while it started.")
    for said, raised in (
        ([None], None),
        ([DaemonRunning("x")], None),
        ([ending, ending, None], None),
        ([ending, ending, ending], DaemonError),
        ([DaemonUnavailable("x")], DaemonUnavailable),
    ):
        answers[:] = said
        if raised is None:
            begin()
        else:
            with pytest.raises(raised):
                begin()
        assert not answers
