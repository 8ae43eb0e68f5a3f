"""The real servers, which `make setup` installs with npm and pip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SERVERS = Path(__file__).parents[2] / "tools" / "servers"
MODULES = SERVERS / "node_modules" / ".bin"
SERENA = SERVERS / "serena" / "bin"

PROGRAMS = {
    "everything": (MODULES / "mcp-server-everything",),
    "filesystem": (MODULES / "mcp-server-filesystem",),
    "supergateway": (MODULES / "supergateway",),
    "serena": (SERENA / "serena", SERENA / "jedi-language-server"),
}


def search_path() -> str:
    """Where a daemon finds them; Node is where this process has it."""
    found = (str(MODULES), str(SERENA), os.environ.get("PATH", os.defpath))
    return os.pathsep.join(found)


def require(name: str) -> None:
    """Skips a test that cannot be where npm, pip or the network was missing; where they are
    installed nothing is ever skipped."""
    missing = [path.name for path in PROGRAMS[name] if not path.exists()]
    if missing:
        pytest.skip(f"not installed, as `make setup` said (network): {', '.join(missing)}")
