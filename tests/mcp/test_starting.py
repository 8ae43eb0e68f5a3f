"""The SDK takes a second to import: who does not serve MCP does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.rig import Daemon, good

TIMEOUT_S = 60.0
"""For one command, on a busy machine."""


def test_the_daemon_does_without(daemon: Daemon) -> None:
    """Seen by a compiled library that nothing but the SDK needs."""
    with daemon.local() as client:
        good(client.get("/v1/spaces"))
    mapped = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "/pydantic_core/" in mapped and "/cryptography/" not in mapped


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
    script = "import carrel.mcp.serving; print(open('/proc/self/maps').read())"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert "/cryptography/" in ran.stdout
