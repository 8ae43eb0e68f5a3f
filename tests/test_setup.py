"""`scripts/setup` leaves alone what is not this folder's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/setup"
SETUP_TIMEOUT_S = 60.0


def test_what_is_a_link_is_not_emptied(tmp_path: Path) -> None:
    """An environment that is made anew is cleared first, and so would be what a link leads to."""
    functions, case, _ = SCRIPT.read_text().partition("\ncase $what in\ndemo)")
    assert case
    for name in ("servers", "contrib", "agents"):
        (tmp_path / "tools" / name).mkdir(parents=True)
    for link in ("servers/serena", "contrib/suites", "agents/node_modules"):
        kept = tmp_path / "elsewhere" / link / "kept"
        kept.parent.mkdir(parents=True)
        kept.touch()
        (tmp_path / "tools" / link).symlink_to(kept.parent)
    for file in ("tools/servers/serena.txt", "tools/contrib/suites.txt", "constraints.txt"):
        (tmp_path / file).touch()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "contrib/one").mkdir(parents=True)
    (tmp_path / "contrib/one/pyproject.toml").touch()
    (tmp_path / "tools/agents/package-lock.json").write_text("{}")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "scripts").mkdir()
    calls = 'install_serena\ninstall_suites\ninstall_npm "$agents" agents nothing\n'
    (tmp_path / "scripts/setup").write_text(functions + "\n" + calls)
    done = subprocess.run(
        ["sh", tmp_path / "scripts/setup"],
        capture_output=True,
        text=True,
        timeout=SETUP_TIMEOUT_S,
        check=True,
    )
    assert done.stderr.count("left alone") == 3
    assert len(list((tmp_path / "elsewhere").rglob("kept"))) == 3
