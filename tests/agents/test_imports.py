"""A person's own Claude Code and Codex in spaces: what is copied from a home, who is given it, and
the real programs with it against stand-ins."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from carrel.agents.imports import ImportDraft, draft
from carrel.domain.imports import MOST_FILE
from tests.agents.installed import MODULES, require_programs
from tests.agents.standins import Standin, serving
from tests.cli.program import Program, in_terminal
from tests.daemon.rig import Daemon, bad, fresh_daemon, good

ACCESS, REFRESH = "sk-ant-oat01-planted-access", "planted-to-refresh"
HOUR_S = 3600.0


def jwt(**said: object) -> str:
    parts = ({"alg": "none"}, said, "signature")
    coded = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts)
    return ".".join(part.rstrip(b"=").decode() for part in coded)


def put(folder: Path, **texts: str) -> None:
    """Files by their path, in which __ stands for a slash."""
    for name, text in texts.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def claude_login(home: Path, expires_in: float) -> None:
    oauth = {
        "accessToken": ACCESS,
        "refreshToken": REFRESH,
        "expiresAt": (time.time() + expires_in) * 1000,
    }
    (home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": oauth}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    claude, codex = home / ".claude", home / ".codex"
    skill = "---\nname: greet\ndescription: MARK-OF-SKILL\n---\nGreet.\n"
    put(claude, **{"CLAUDE.md": "MARK-OF-CLAUDE", "skills__greet__SKILL.md": skill})
    put(claude, **{"commands__ship.md": "Ship it.", "projects__x__talk.jsonl": "a transcript"})
    put(claude, **{"history.jsonl": "{}", "skills__greet__run.sh": "#!/bin/sh\necho ran-it\n"})
    settings = {"model": "sonnet", "statusLine": {"command": "x"}, "hooks": {}, "env": {"A": "b"}}
    put(claude, **{"settings.json": json.dumps(settings)})
    claude_login(home, HOUR_S)
    servers = {
        "local": {"command": "/bin/cat", "env": {"GITHUB_TOKEN": "ghp_plantedplanted1", "M": "1"}},
        "far": {"type": "http", "url": "https://mcp.example", "headers": {"Authorization": "Be x"}},
        "bad": {"command": "/bin/cat", "args": ["--key", "sk-planted-in-args"]},
    }
    put(home, **{".claude.json": json.dumps({"mcpServers": servers, "projects": {"/p": {}}})})
    put(codex, **{"AGENTS.md": "MARK-OF-AGENTS", "prompts__do.md": "Do it."})
    toml = 'model = "plain"\nnotify = ["x"]\n[mcp_servers.docs]\ncommand = "/bin/cat"\n'
    put(codex, **{"config.toml": toml})
    about = {"chatgpt_account_id": "acc", "chatgpt_plan_type": "pro"}
    token = jwt(exp=int(time.time() + HOUR_S), **{"https://api.openai.com/auth": about})
    tokens = {"id_token": token, "access_token": token, "refresh_token": REFRESH}
    auth = {"OPENAI_API_KEY": None, "tokens": {**tokens, "account_id": "acc"}}
    put(codex, **{"auth.json": json.dumps(auth)})
    return home


def drafted(frontend: str, home: Path, **options: bool) -> ImportDraft:
    found = draft(frontend, {"HOME": str(home)}, **options)
    assert found is not None
    return found


# What is copied


def test_what_is_copied_and_what_is_not(home: Path) -> None:
    made = drafted("claude-code", home)
    own = made.imported
    assert set(own.files) == {
        *("CLAUDE.md", "commands/ship.md", "skills/greet/SKILL.md", "skills/greet/run.sh"),
    }
    assert own.settings == {"model": "sonnet"} and own.login and own.login.value == ACCESS
    assert set(own.servers) == {"local", "far"} and not own.keys
    assert own.servers["local"].env == {"M": "1"}
    assert own.servers["local"].variables == ("GITHUB_TOKEN",)
    assert not {"planted", REFRESH} & set(str(own.servers).split())
    told = "\n".join(made.left)
    for name in ("statusLine", "hooks", "GITHUB_TOKEN", "bad", "refresh token", "histories"):
        assert name in told, name
    asked = drafted("claude-code", home, with_keys=True).imported
    assert set(asked.keys.values()) == {"ghp_plantedplanted1", "Be x"}
    codex = drafted("codex-cli", home).imported
    assert set(codex.files) == {"AGENTS.md", "prompts/do.md"} and set(codex.servers) == {"docs"}
    assert codex.login and codex.login.expires_at and REFRESH not in str(codex)


def test_links_and_large_files_are_left_out(home: Path, tmp_path: Path) -> None:
    claude = home / ".claude"
    (tmp_path / "secret").write_text("not for agents")
    (claude / "commands" / "out.md").symlink_to(tmp_path / "secret")
    (claude / "commands" / "in.md").symlink_to("ship.md")
    (claude / "agents").symlink_to(tmp_path)
    (claude / "skills" / "greet" / "huge").write_bytes(bytes(MOST_FILE + 1))
    os.mkfifo(claude / "commands" / "pipe.md")
    made = drafted("claude-code", home)
    assert made.imported.files["commands/in.md"] == b"Ship it."
    assert "not for agents" not in str(made.imported.files)
    told = "\n".join(made.left)
    assert "commands/out.md: it is a link" in told and "agents: it is a link" in told
    assert "skills/greet/huge: it is larger" in told


def test_a_part_brings_nothing_else_of_the_folder_along(home: Path) -> None:
    """By no name that is in it: somebody else may have written it."""
    claude = home / ".claude"
    skill = claude / "skills" / "greet"
    put(claude, **{"commands__.hidden.md": "HIDDEN", "skills__.env": "HIDDEN"})
    for name, leads in {
        "history.md": "../../history.jsonl",
        "talk.md": "../../projects/x/talk.jsonl",
        "login.json": "../../.credentials.json",
        "command.md": "../../commands/ship.md",
        "env.md": "../.env",
        "own.sh": "run.sh",
    }.items():
        (skill / name).symlink_to(leads)
    os.link(claude / ".credentials.json", skill / "config.json")
    (claude / "CLAUDE.md").unlink()
    (claude / "CLAUDE.md").symlink_to("history.jsonl")
    for with_keys in (False, True):
        made = drafted("claude-code", home, with_keys=with_keys)
        below = {path for path in made.imported.files if path.startswith("skills/")}
        assert below == {"skills/greet/SKILL.md", "skills/greet/run.sh", "skills/greet/own.sh"}
        assert "CLAUDE.md" not in made.imported.files and REFRESH not in str(made.imported)
        told = "\n".join(made.left)
        for name in ("history.md: it is a link", "config.json: it has another name", "CLAUDE.md"):
            assert name in told, name


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({"command": "srv", "args": ["--token", "hunter2"]}, "--token"),
        ({"command": "srv", "args": ["--api-key=hunter2"]}, "api-key"),
        ({"command": "sh", "args": ["-c", "TOKEN=hunter2 exec srv"]}, "TOKEN"),
        ({"command": "sh", "args": ["-c", "exec srv --password 'hunter2' -v"]}, "--password"),
        ({"command": "srv", "args": ["-H", "Authorization: Bearer hunter2"]}, "Authorization:"),
        ({"command": "srv", "args": ["--header", "X-Api-Key:hunter2"]}, "X-Api-Key"),
        ({"command": "srv", "args": ["https://hunter2@corp/"]}, "a password"),
        ({"command": "SECRET=hunter2 srv"}, "SECRET"),
        ({"url": "https://mcp.corp/sse?v=1&api_key=hunter2"}, "api_key"),
        ({"url": "https://mcp.corp/sse?api_key=hunter2"}, "api_key"),
        ({"url": "https://hunter2@mcp.corp/x"}, "a password"),
        ({"url": "https://mcp.corp/x#access_token=hunter2"}, "access_token"),
    ],
)
def test_keys_in_commands_and_addresses_are_found_by_their_names(
    tmp_path: Path, said: Mapping[str, Any], where: str
) -> None:
    harmless = {"command": "srv", "args": ["--max-tokens", "9", "--key-file", "/k", "a=b", "-v"]}
    servers = {"bad": said, "good": harmless, "far": {"url": "https://mcp.corp/x?version=1"}}
    put(tmp_path, **{".claude.json": json.dumps({"mcpServers": servers})})
    (tmp_path / ".claude").mkdir()
    for with_keys in (False, True):
        made = drafted("claude-code", tmp_path, with_keys=with_keys)
        assert set(made.imported.servers) == {"good", "far"}
        (told,) = (one for one in made.left if "MCP server bad" in one)
        assert where in told and "hunter2" not in told


def test_values_that_may_be_keys_are_copied_on_request_only(tmp_path: Path) -> None:
    env = {"CONN": "Server=x;Password=hunter2", "DB": "postgres://hunter2@h/db", "MODE": "fast"}
    headers = {"X-Custom": "hunter2", "Accept": "text/plain"}
    servers = {"a": {"command": "srv", "env": env}, "b": {"url": "https://h/", "headers": headers}}
    put(tmp_path, **{".claude.json": json.dumps({"mcpServers": servers})})
    (tmp_path / ".claude").mkdir()
    made = drafted("claude-code", tmp_path)
    assert "hunter2" not in str(made.imported)
    assert made.imported.servers["a"].env == {"MODE": "fast"}
    assert made.imported.servers["b"].headers == {"Accept": "text/plain"}
    assert any("CONN, DB" in one for one in made.left) and "X_CUSTOM" in str(made.left)
    asked = drafted("claude-code", tmp_path, with_keys=True).imported
    assert "hunter2" not in str(asked.servers) and len(asked.keys) == 3


def test_broken_set_ups_import_what_they_can(tmp_path: Path) -> None:
    put(tmp_path / ".claude", **{"settings.json": "{", ".credentials.json": "[]", "CLAUDE.md": "x"})
    put(tmp_path, **{".claude.json": json.dumps({"mcpServers": {"a": 1, "b c": {}, "d": {}}})})
    made = drafted("claude-code", tmp_path)
    assert set(made.imported.files) == {"CLAUDE.md"} and made.imported.login is None
    assert not made.imported.servers and "settings.json: it cannot be read" in made.left
    assert draft("codex-cli", {"HOME": str(tmp_path)}) is None


# Who is given it


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    require_programs()
    with fresh_daemon() as found:
        own = found.data / "agents"
        own.mkdir(parents=True, exist_ok=True)
        for name in ("claude-code", "codex-cli"):
            (own / name).symlink_to(MODULES.parent, target_is_directory=True)
        yield found


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def carrel(daemon: Daemon, home: Path) -> Iterator[Program]:
    program = Program(daemon.data, home.parent)
    program.env["HOME"] = str(home)
    yield program
    program("agents", "import", "--forget")


def state(daemon: Daemon, space: str) -> Path:
    return daemon.data / "spaces" / space / "agent" / "state"


def made(carrel: Program, agent: str, *words: str) -> Mapping[str, Any]:
    carrel.good("new", "--empty", "--agent", agent, "--name", f"own-{agent}", *words)
    return dict(carrel.json("show", f"own-{agent}"))


def test_nothing_is_copied_without_consent(carrel: Program, daemon: Daemon) -> None:
    done = carrel("agents", "import")
    assert done.code == 2 and "Nobody agreed" in done.err
    done = carrel("agents", "import", "--dry-run")
    assert done.code == 0 and "+ CLAUDE.md" in done.err and "- statusLine" in done.err
    with in_terminal(carrel, "agents", "import", "codex-cli") as terminal:
        terminal.until(b"Copy this? [y/N] ")
        terminal.type(b"n\r")
        assert b"imported" not in terminal.rest()
    assert not list((daemon.data / "imports").glob("*.json"))
    assert "can be imported" in carrel.bad(2, "agents", "import", "gemini")
    with daemon.local() as client:
        answer = client.put("/v1/agents/claude-code/import", json={"files": {"../x": "YQ=="}})
        bad(answer, 422, "message_invalid")
    tenant = daemon.tcp(daemon.token("label:team=blue"))
    bad(tenant.put("/v1/agents/claude-code/import", json={}), 403, "forbidden")


def test_claude_code_is_mine(carrel: Program, daemon: Daemon, standin: Standin) -> None:
    carrel.good("agents", "import", "claude-code", "--yes", "--endpoint", standin.url)
    kept = daemon.data / "imports" / "claude-code.json"
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.parent.stat().st_mode & 0o777 == 0o700
    assert REFRESH not in kept.read_text()
    (row,) = (one for one in carrel.json("agents")["frontends"] if one["name"] == "claude-code")
    assert row["imported"] and row["logged_in"]
    # The imported servers never answer, and each turn would wait for them.
    env = ("--env", f"ANTHROPIC_BASE_URL={standin.url}", "--env", "MCP_TIMEOUT=500")
    space = made(carrel, "claude-code", *env)
    script = "RUN sh -c '$CLAUDE_CONFIG_DIR/skills/greet/run.sh > made.txt'"
    carrel.good("send", space["id"], script, "--wait")
    carrel.good("send", space["id"], "more", "--wait", "--continue")
    assert carrel.good("exec", space["id"], "--", "cat", "made.txt") == "ran-it\n"
    asked = standin.of("/v1/messages")
    assert {one.headers["authorization"] for one in asked} == {f"Bearer {ACCESS}"}
    body = json.dumps(asked[0].body)
    assert "MARK-OF-CLAUDE" in body and "MARK-OF-SKILL" in body and "sonnet" in body
    servers = json.loads((state(daemon, space["id"]) / "claude" / "mcp.json").read_text())
    assert {"carrel", "local", "far"} <= set(servers["mcpServers"])
    assert_only_in(daemon, ACCESS, kept)
    # What it cannot take while it works waits.
    turn = carrel.good("send", space["id"], "SLEEP 2").strip()
    queued = carrel("send", space["id"], "and then", "--queue", "--wait")
    assert queued.code == 0 and queued.out == "reply 2: and then\n", queued
    assert [one["state"] for one in carrel.json("turns", space["id"])["turns"]][:2] == [
        *("complete", "complete"),
    ]
    assert turn == carrel.json("turns", space["id"])["turns"][1]["id"]
    # Another address is not for the login.
    elsewhere = ("--turn-env", "ANTHROPIC_BASE_URL=http://127.0.0.1:9")
    assert "agents import claude-code --endpoint" in carrel.bad(
        5, "send", space["id"], "x", *elsewhere
    )


def assert_only_in(daemon: Daemon, secret: str, kept: Path) -> None:
    for above, _folders, names in os.walk(daemon.data):
        for path in (Path(above, name) for name in names):
            if path != kept and path.is_file() and not path.is_symlink():
                assert secret.encode() not in path.read_bytes(), path


def test_codex_is_mine(carrel: Program, daemon: Daemon, standin: Standin, home: Path) -> None:
    carrel.good("agents", "import", "codex-cli", "--yes", "--endpoint", standin.url)
    space = made(carrel, "codex-cli", "--env", f"OPENAI_BASE_URL={standin.url}/v1")
    for words in ((), ("--continue",), ("--continue", "--permission", "ask")):
        carrel.good("send", space["id"], "hello", "--wait", *words)
    auth = json.loads((home / ".codex" / "auth.json").read_text())
    asked = standin.of("/v1/responses")
    token = auth["tokens"]["access_token"]
    assert {one.headers["authorization"] for one in asked} == {f"Bearer {token}"}
    assert "MARK-OF-AGENTS" in json.dumps(asked[0].body) and asked[0].body["model"] == "plain"
    # It is the agent's while it works, and nobody's afterwards.
    assert not (state(daemon, space["id"]) / "codex" / "auth.json").exists()
    assert_only_in(daemon, token, daemon.data / "imports" / "codex-cli.json")
    # A login that a person made in the space is the space's own.
    carrel.good("agents", "import", "codex-cli", "--forget")
    closed = ("--turn-env", "OPENAI_BASE_URL=")
    assert "auth set openai" in carrel.bad(1, "send", space["id"], "hello", *closed)
    script = f"umask 77; printf %s '{json.dumps(auth)}' > /agent/state/codex/auth.json"
    carrel.good("exec", space["id"], "--", "sh", "-c", script)
    carrel.good("send", space["id"], "hello", "--wait", "--timeout", "60s")
    assert (state(daemon, space["id"]) / "codex" / "auth.json").exists()
    carrel.good("send", space["id"], "hello", "--wait", "--turn-env", "OPENAI_API_KEY=sk-own-key-1")
    assert "MARK-OF-AGENTS" not in json.dumps(standin.of("/v1/responses")[-1].body)


def test_only_the_owners_spaces_are_given_it(carrel: Program, daemon: Daemon) -> None:
    carrel.good("agents", "import", "--yes")
    tenant = daemon.tcp(daemon.token("label:team=blue"))
    space = good(tenant.post("/v1/spaces", json={"agent": "claude-code"}))["id"]
    for client in (tenant, daemon.local()):
        refused = client.post(f"/v1/spaces/{space}/turns", json={"prompt": "hello"})
        assert "auth set anthropic" in bad(refused, 422, "key_missing")["hint"]
    assert not (state(daemon, space) / "claude").exists()
    owned = good(
        daemon.local().post("/v1/spaces", json={"agent": "codex-cli", "labels": {"team": "blue"}})
    )
    refused = tenant.post(f"/v1/spaces/{owned['id']}/turns", json={"prompt": "hello"})
    bad(refused, 422, "key_missing")


def test_a_login_that_has_expired(
    carrel: Program, home: Path, daemon: Daemon, standin: Standin
) -> None:
    claude_login(home, -1)
    carrel.good("agents", "import", "claude-code", "--yes", "--endpoint", standin.url)
    name = "expired"
    carrel.good("new", "--empty", "--agent", "claude-code", "--name", name)
    address = ("--turn-env", f"ANTHROPIC_BASE_URL={standin.url}")
    assert "carrel agents import claude-code" in carrel.bad(1, "send", name, "x", *address)
    # The person has used it since; the login is copied, and what else is there now is not.
    claude_login(home, HOUR_S)
    put(home / ".claude", **{"CLAUDE.md": "ANOTHER-TEXT"})
    done = carrel("send", name, "x", "--wait", *address)
    assert done.code == 0 and "copied anew" in done.err, done
    assert "MARK-OF-CLAUDE" in json.dumps(standin.of("/v1/messages")[0].body)


# Advice


def test_what_cannot_work_is_refused_at_once(carrel: Program, daemon: Daemon, home: Path) -> None:
    carrel.good("new", "--empty", "--agent", "claude-code", "--name", "keyless")
    said = carrel.bad(1, "send", "keyless", "hello")
    assert "carrel auth set anthropic" in said and "/login" not in said
    closed = ("--empty", "--agent", "claude-code", "--network", "none")
    assert "--network open" in carrel.bad(1, "new", *closed, "--name", "closed", "-m", "hello")
    assert carrel("show", "closed").code == 3
    carrel.good("new", *closed, "--name", "closed")
    assert "--network open" in carrel.bad(1, "send", "closed", "hello")
    with daemon.local() as client:
        asked = {"instructions": "hello", "frontend": "claude-code", "network": "none"}
        bad(client.post("/v1/requests", json=asked), 422, "network_needed")


def test_a_key_that_is_refused(carrel: Program, standin: Standin) -> None:
    carrel.good("new", "--empty", "--agent", "claude-code", "--name", "refused")
    own = {"ANTHROPIC_BASE_URL": standin.url, "ANTHROPIC_API_KEY": "sk-ant-not-accepted"}
    own["CLAUDE_CODE_MAX_RETRIES"] = "1"
    env = [word for one in own.items() for word in ("--turn-env", "=".join(one))]
    done = carrel("send", "refused", "FAIL 401", "--wait", *env)
    assert done.code == 1 and "carrel auth set anthropic" in done.err and "/login" not in done.err
