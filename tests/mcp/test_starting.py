"""The SDK takes a second to import: only the process that serves MCP does so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.rig import Daemon, good
from tests.mcp.dialogue import MODERN, encoded, envelope, initialize, opening, request

HEAVY = {
    *("anyio", "asyncio", "click", "inspect", "logging", "mcp", "mcp_types", "msgspec"),
    *("pathlib", "pydantic", "socket", "tempfile"),
}
TIMEOUT_S = 60.0
"""For one command, on a busy machine."""


def test_the_daemon_does_without(daemon: Daemon) -> None:
    """Seen by compiled libraries that nothing but the SDK needs, and one that the daemon does."""
    with daemon.local() as client:
        good(client.get("/v1/spaces"))
    mapped = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "/msgspec/" in mapped
    assert "/pydantic_core/" not in mapped and "/cryptography/" not in mapped


@pytest.mark.parametrize("begun", [initialize(), opening(MODERN)])
def test_the_bridge_does_without(daemon: Daemon, begun: dict[str, object]) -> None:
    """Each of these would take longer than all the rest."""
    script = (
        "import sys; from carrel.cli.main import run; code = run(['mcp']);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    params = envelope() if begun["method"] == "server/discover" else None
    ran = subprocess.run(
        [sys.executable, "-I", "-c", script],
        input=encoded([begun, request(1, "tools/list", params)]),
        capture_output=True,
        env={**os.environ, "CARREL_DATA": str(daemon.data)},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0 and len(ran.stdout.splitlines()) == 2, ran
    loaded = set(ran.stderr.decode().split())
    assert "carrel.cli.verbs.mcp" in loaded and loaded.isdisjoint({*HEAVY, "enum"})


def test_codesmith_does_without() -> None:
    """Also when it works: what it takes then is no more than a client takes."""
    script = (
        "import sys; from carrel.cli.main import run; code = run(['codesmith']);"
        "begun = set(sys.modules); import carrel.mcp.codesmith.calls;"
        "print(*begun, file=sys.stderr); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", script],
        input=encoded([initialize(), request(1, "tools/list")]),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0 and len(ran.stdout.splitlines()) == 2, ran
    begun, working = (set(line.split()) for line in ran.stderr.decode().splitlines())
    assert begun.isdisjoint(HEAVY)
    assert working.isdisjoint({"mcp", "mcp_types", "pydantic", "anyio", "asyncio", "click"})


@pytest.mark.parametrize("words", [["--help"], ["mcp", "--help"], ["--version"]])
def test_help_does_without(words: list[str]) -> None:
    script = (
        "import sys; from carrel.cli.main import run; code = run(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stderr.split())
    assert "carrel.cli.main" in loaded and loaded.isdisjoint({"mcp", "anyio", "carrel.mcp"})


def test_the_sdk_is_there_when_it_serves() -> None:
    """What the tests above look for is what the server has."""
    script = "import carrel.mcp.server; print(open('/proc/self/maps').read())"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert "/cryptography/" in ran.stdout
