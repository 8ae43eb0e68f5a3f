"""The real agents' programs, which `make setup` installs with npm."""

from __future__ import annotations

from pathlib import Path

import pytest

MODULES = Path(__file__).parents[2] / "tools" / "agents" / "node_modules"
PROGRAMS = ("claude", "codex", "pi", "claude-agent-acp", "codex-acp")


def require_programs() -> None:
    """Skips a test that cannot be where npm or the network was missing; where they are
    installed nothing is ever skipped."""
    missing = [name for name in PROGRAMS if not (MODULES / ".bin" / name).exists()]
    if missing:
        pytest.skip(f"not installed, as `make setup` said (npm, network): {', '.join(missing)}")
