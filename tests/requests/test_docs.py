"""The examples for those who build on requests work: they are run as they stand on the page."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.requesting import daemon_with
from tests.daemon.rig import Daemon

# They share a daemon, and what a page saw of it.
pytestmark = pytest.mark.xdist_group("examples of requests")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "requests.md"
BLOCK = re.compile(r"<!-- (examples/requests/[\w.]+) -->\n```\w+\n(.*?\n)```", re.DOTALL)
EXAMPLES = dict(BLOCK.findall(PAGE.read_text()))
DRIVE = Path(__file__).with_name("page.mjs")
NODES = ROOT / "tools" / "conformance" / "node_modules"
PYTHON = (sys.executable, "-W", "error")
ORIGIN = "https://app.example"
EXAMPLE_S = 100.0
"""Each takes a second; on a loaded machine that takes a while."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with daemon_with({"allowed_origins": [ORIGIN]}) as found:
        yield found


def example(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_text(EXAMPLES[f"examples/requests/{name}"])
    return path


def run(words: Sequence[str], folder: Path, daemon: Daemon, **more: str) -> str:
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**env, "CARREL_DATA": str(daemon.data), **more},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def test_the_page_has_what_the_folder_has() -> None:
    """An archive may be without examples; the page has them."""
    assert len(EXAMPLES) == 3
    if (ROOT / "examples").is_dir():
        assert {name: (ROOT / name).read_text() for name in EXAMPLES} == EXAMPLES


def test_the_client(daemon: Daemon, tmp_path: Path) -> None:
    said = run([*PYTHON, str(example("with_client.py", tmp_path))], tmp_path, daemon)
    assert "added hello.py 1 python" in said
    assert "complete: True" in said and "passed=True" in said
    assert (tmp_path / "made" / "hello.py").read_text() == "print('hello')\n"


def test_websockets(daemon: Daemon, tmp_path: Path) -> None:
    words = [*PYTHON, str(example("with_websockets.py", tmp_path))]
    token = daemon.token("admin")
    said = run(words, tmp_path, daemon, CARREL_SERVER=daemon.address, CARREL_TOKEN=token)
    assert "added hello.py 1 python\nprint('hello')" in said


def node() -> Path:
    """Few machines have one that knows WebSocket."""
    for found in NODES.glob("node-linux-*/bin/node"):
        return found
    pytest.skip("there is no Node 22 for this machine: `make setup` installs it with npm")


@pytest.fixture(scope="module")
def page(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a page saw of a request whose connection was lost twice."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "package.json").write_text('{"type": "module"}')
    script = example("requests.js", folder)
    server = f"http://{daemon.address}"
    words = [str(node()), str(DRIVE), str(script), server, daemon.token("admin"), ORIGIN]
    said = run(words, folder, daemon)
    told: dict[str, Any] = json.loads(said)
    return told


def test_a_page_misses_nothing_and_hears_nothing_twice(page: dict[str, Any]) -> None:
    heard = [frame["seq"] for frame in page["frames"] if frame.get("seq")]
    told = [int(line[3:]) for line in page["all"].splitlines() if line.startswith("id:")]
    assert heard == told and len(told) > 20
    assert page["protocols"] == ["carrel"]


def test_a_page_answers_and_has_its_files(page: dict[str, Any]) -> None:
    assert page["questions"] == ["Is that all?"]
    result = page["result"]
    assert result["complete"] and result["summary"] == "It is done."
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(page["archive"]))) as archive:
        file = archive.extractfile("hello.py")
        assert file is not None and file.read() == b'print("hello")\n'


def test_a_page_is_told_why(page: dict[str, Any]) -> None:
    assert (page["refused"], page["cancelled"]) == ("authentication_failed", "cancelled")
