"""The examples for authors of editors work: they are run as they stand there, against a real
daemon and a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.daemon import control
from tests.etc import share_etc
from tests.folders import remove_folder
from tests.instances.installed import SERVERS, require, search_path
from tests.service.rig import leftovers

# They share a daemon.
pytestmark = pytest.mark.xdist_group("examples for editors")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "editors.md"
BLOCK = re.compile(r"<!-- run with everything -->\n```(\w+)\n(.*?)\n```", re.DOTALL)
BLOCKS = BLOCK.findall(PAGE.read_text())
BLOCK_S = 100.0
"""A daemon and a server of Node start; on a loaded machine that takes a while."""
NODES = ROOT / "tools" / "conformance" / "node_modules"


def test_there_are_examples() -> None:
    assert [language for language, _ in BLOCKS] == ["sh", "python", "ts"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One daemon for all examples, started by the first."""
    require("everything")
    data = Path(tempfile.mkdtemp(prefix="carrel-"))
    data.chmod(0o711)
    share_etc(data)
    project = tmp_path_factory.mktemp("project")
    env = {**os.environ, "CARREL_DATA": str(data), "PWD": str(project)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{search_path()}"
    try:
        yield env
        control.stop(data)
        assert leftovers(data) == []
    finally:
        remove_folder(data)


def node() -> str:
    """One that takes types away by itself, which few machines have."""
    for found in NODES.glob("node-linux-*/bin/node"):
        return str(found)
    pytest.skip("there is no Node 22 for this machine: `make setup` installs it with npm")


def command(language: str, text: str, folder: Path) -> list[str]:
    if language == "sh":
        return ["bash", "-euo", "pipefail", "-c", text]
    if language == "python":
        return [sys.executable, "-W", "error", "-c", text]
    # Node looks for packages beside the script.
    script = folder / "example.ts"
    script.write_text(text)
    (folder / "node_modules").symlink_to(SERVERS / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    return [node(), str(script)]


@pytest.mark.parametrize(("language", "text"), BLOCKS, ids=[one for one, _ in BLOCKS])
def test_an_example(language: str, text: str, place: dict[str, str], tmp_path: Path) -> None:
    if language == "ts":
        # The others start it when they need it.
        run(["carrel", "up"], place)
    said = run(command(language, text, tmp_path), place)
    wanted = ("serverInfo", "terminated", "already_gone") if language == "sh" else ("hello",)
    assert all(word in said for word in wanted), said


def run(words: list[str], place: dict[str, str]) -> str:
    done = subprocess.run(
        words,
        cwd=place["PWD"],
        env=place,
        capture_output=True,
        text=True,
        timeout=BLOCK_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
