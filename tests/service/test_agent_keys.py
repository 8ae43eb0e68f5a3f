"""Which keys and imports an agent is given: the rule alone, with the real stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.agents.credentials import Credentials
from carrel.agents.frontends.claude_code import ClaudeCode
from carrel.agents.imports import Imports
from carrel.agents.programs import Locator
from carrel.domain.errors import KeyMissing, LoginExpired, VariableRefused
from carrel.domain.imports import Imported, ImportedServer, Login, login_key, server_keys
from carrel.service.credentials import AgentKeys

LOGIN, SERVERS = login_key("claude-code"), server_keys("claude-code")
NOW = 1000.0
GATE = "https://gate.example"


class Ring:
    def __init__(self, folder: Path) -> None:
        self.stored = Credentials(folder / "auth")
        self.imports = Imports(folder / "imports")
        self.claude = ClaudeCode(Locator(folder))
        self.keys = AgentKeys(self.stored, self.imports, lambda: NOW, lambda _name: True)

    def bring(self, expires_at: float = NOW + 1, **more: object) -> None:
        login = Login("anthropic", "sk-ant-oat-token", expires_at=expires_at)
        self.imports.set("claude-code", Imported(login=login, endpoints=(GATE,), **more))  # type: ignore[arg-type]


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path)


def test_a_login_is_used_where_there_is_no_key(ring: Ring) -> None:
    ring.bring(files={"CLAUDE.md": b"x"})
    given = ring.keys.given(ring.claude, {}, owner=True)
    assert given.credentials == {"anthropic": "sk-ant-oat-token"} and given.names == (LOGIN,)
    own = ring.keys.given(ring.claude, {"ANTHROPIC_API_KEY": "mine"}, owner=True)
    assert not own.credentials and not own.names
    assert own.imported and own.imported.files and own.imported.login is None
    ring.stored.set("anthropic", "sk-stored")
    given = ring.keys.given(ring.claude, {}, owner=True)
    assert given.credentials == {"anthropic": "sk-stored"} and given.names == ("anthropic",)
    assert given.imported and given.imported.login is None


def test_nobody_else_is_given_anything(ring: Ring) -> None:
    ring.bring()
    given = ring.keys.given(ring.claude, {}, owner=False)
    assert not given.credentials and given.imported is None and not given.names
    with pytest.raises(KeyMissing) as caught:
        ring.keys.check_some(ring.claude, {}, given, owner=False)
    assert "agents import" not in caught.value.hint


def test_it_goes_where_the_owner_said_and_while_it_lasts(ring: Ring) -> None:
    ring.bring()
    ring.keys.given(ring.claude, {"ANTHROPIC_BASE_URL": f"{GATE}/v1"}, owner=True)
    with pytest.raises(VariableRefused):
        ring.keys.given(ring.claude, {"ANTHROPIC_BASE_URL": "https://else.example"}, owner=True)
    ring.bring(expires_at=NOW)
    with pytest.raises(LoginExpired):
        ring.keys.given(ring.claude, {}, owner=True)


def test_a_child_needs_all_that_its_agent_would_get(ring: Ring) -> None:
    assert ring.keys.would_get(ring.claude, owner=True) == frozenset()
    server = ImportedServer("x", variables=("TOKEN",))
    ring.bring(servers={"s": server}, keys={"TOKEN": "ghp_x"})
    assert ring.keys.would_get(ring.claude, owner=True) == {LOGIN, SERVERS}
    # A parent whose agent works with its caller's own key has the servers' keys, and no login.
    own = ring.keys.given(ring.claude, {"ANTHROPIC_API_KEY": "mine"}, owner=True)
    assert own.names == (SERVERS,)
    assert ring.keys.would_get(ring.claude, owner=False) == frozenset()
    ring.stored.set("anthropic", "sk-stored")
    assert ring.keys.would_get(ring.claude, owner=True) == {SERVERS, "anthropic"}


def test_other_ways_to_log_in_are_left_alone(ring: Ring) -> None:
    none = ring.keys.given(ring.claude, {}, owner=True)
    for env in ({"ANTHROPIC_BASE_URL": GATE}, {"CLAUDE_CODE_USE_BEDROCK": "1"}, {"MY_KEY": "k"}):
        ring.keys.check_some(ring.claude, env, none, owner=True)
    with pytest.raises(KeyMissing) as caught:
        ring.keys.check_some(ring.claude, {"LANG": "C"}, none, owner=True)
    assert "carrel agents import claude-code" in caught.value.hint
