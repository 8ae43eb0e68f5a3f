"""The scenarios of the official conformance suite that speak of any server's transport; the others
call tools by fixed names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.daemon.rig import Daemon
from tests.mcp.test_outside import serving
from tests.sampling import beyond

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "conformance"
SUITE = TOOLS / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
SCENARIOS = [
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
    # What these ask for is asked for on the way in the others.
    *beyond("server-initialize", "ping"),
]
SCENARIO_S = 90.0
"""Each takes a second; the rest is for a busy machine."""


@pytest.fixture(scope="module")
def node() -> Path:
    """One of the version that the suite needs, which few machines have."""
    if not SUITE.is_file():
        pytest.skip(f"the conformance suite is not in {TOOLS}: `make setup` installs it with npm")
    for found in TOOLS.glob("node_modules/node-linux-*/bin/node"):
        return found
    pytest.skip("there is no Node 22 for this machine")


def test_the_suite(daemon: Daemon, node: Path, tmp_path: Path) -> None:
    with serving(daemon) as url:
        for scenario in SCENARIOS:
            ran = subprocess.run(
                [node, SUITE, "server", "--url", url, "--scenario", scenario, "-o", tmp_path],
                capture_output=True,
                text=True,
                timeout=SCENARIO_S,
                check=False,
            )
            said = f"{ran.stdout}\n{ran.stderr}"
            assert ran.returncode == 0, said
            counted = re.search(r"Passed: (\d+)/(\d+), 0 failed, 0 warnings", said)
            assert counted and counted[1] == counted[2] != "0", said
