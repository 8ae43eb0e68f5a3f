"""`carrel config`: what is set, and one setting changed in a file that people write in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import TIMEOUT_S, Program

ROOT = Path(__file__).resolve().parents[2]
FILE = """\
# Mine.
idle_s = 5  # five seconds
clone_hosts = [
  "a.example",
]

# One of my own.
[agents.mine]
command = ["mine"]
"""


@pytest.fixture
def own(carrel: Program, tmp_path: Path) -> Program:
    """With a settings file of its own."""
    (tmp_path / "config.toml").write_text(FILE)
    program = Program(carrel.data, tmp_path)
    program.env["CARREL_CONFIG"] = str(tmp_path / "config.toml")
    return program


def test_what_is_set(own: Program, tmp_path: Path) -> None:
    shown = {one["name"]: one for one in own.json("config")["settings"]}
    assert (shown["idle_s"]["value"], shown["idle_s"]["from"]) == (5.0, "file")
    assert shown["data"]["from"] == "environment" and shown["keep_s"]["from"] == "default"
    assert "idle_s" in own.good("config")
    assert own.good("config", "get", "clone_hosts") == '["a.example"]\n'
    assert own.good("config", "path") == f"{tmp_path / 'config.toml'}\n"
    assert "survives a loss of power" in own.good("config", "explain", "hub_sync")
    assert "Did you mean idle_s?" in own.bad(2, "config", "get", "idel_s")


def test_a_setting_is_changed_and_nothing_else(own: Program, tmp_path: Path) -> None:
    done = own("config", "set", "idle_s", "60")
    assert done.code == 0 and "carrel down && carrel up" in done.err
    own.good("config", "set", "clone_hosts", "b.example, c.example")
    own.good("config", "set", "webhook", 'https://a.example/"é😀')
    after = FILE.replace("idle_s = 5 ", "idle_s = 60 ")
    after = after.replace('[\n  "a.example",\n]\n', '["b.example", "c.example"]\n')
    after = after.replace("\n\n#", '\nwebhook = "https://a.example/\\"é😀"\n\n#')
    assert (tmp_path / "config.toml").read_text() == after
    assert own.json("config", "get", "webhook")["value"] == 'https://a.example/"é😀'


@pytest.mark.parametrize(
    ("key", "value"),
    [("idle_s", "soon"), ("hub_clients", "0"), ("agents", "mine"), ("hub_sync", "no"), ("x", "1")],
)
def test_what_is_not_valid_changes_nothing(
    own: Program, tmp_path: Path, key: str, value: str
) -> None:
    own.bad(2, "config", "set", key, value)
    assert (tmp_path / "config.toml").read_text() == FILE
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_file_that_is_not_there_is_made(own: Program, tmp_path: Path) -> None:
    own.env["CARREL_CONFIG"] = str(tmp_path / "new" / "config.toml")
    own.good("config", "set", "desktop", "false")
    assert (tmp_path / "new" / "config.toml").read_text() == "desktop = false\n"


def test_the_pages_are_what_the_program_says() -> None:
    if not (ROOT / "tools" / "pages.py").exists():
        pytest.skip("this archive is without tools")
    words = [sys.executable, str(ROOT / "tools" / "pages.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_the_manual_page_has_no_mistakes() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    words = ["groff", "-man", "-ww", "-Tutf8", str(ROOT / "man" / "carrel.1")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # A letter that is struck twice is bold.
    assert "carrel config set KEY VALUE" in re.sub(".\b", "", done.stdout)
