"""The suites of peers, which `make setup` installs with pip in an environment of their own: what
they pin is not what Carrel does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from carrel import Client
from tests.daemon.rig import Daemon, fresh_daemon

HERE = Path(__file__).resolve().parent
SUITES = HERE.parents[1] / "tools" / "contrib" / "suites"
PYTHON = SUITES / "bin" / "python"
SUITE_S = 280.0
"""Each takes half a minute; the rest is for a busy machine."""
OPTIONS = [
    *("-q", "--tb=short", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(HERE)),
    "--noconftest",
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
]
"""None of the settings of Carrel's own tests, nor their fixtures: one takes CARREL_DATA away."""


def check_suite(suite: str, gaps: Mapping[str, str], home: Path, *words: str) -> None:
    """Runs the checks of a file here on a daemon of their own. Fails with the names of those that
    failed, and with that of a gap that is none any more. `words` are for pytest."""
    if not (SUITES / ".setup").is_file():
        pytest.skip("not installed, as `make setup` said (network): the suites of peers")
    with fresh_daemon(listen=None) as daemon:
        failed = _failing(daemon, home, HERE / suite, *words)
        with Client(data=daemon.data, autostart=False) as client:
            assert list(client.spaces(states=["removed"])), "the suite used another daemon"
    new = {name: text for name, text in failed.items() if name not in gaps}
    said = "".join(f"\n\n{name}:\n{text}" for name, text in new.items())
    assert not new, f"{len(new)} failed: {', '.join(new)}{said}"
    assert set(failed) == set(gaps), "a known gap is none any more"


def _failing(daemon: Daemon, home: Path, *words: str | Path) -> dict[str, str]:
    """The name of each that failed, with what it said."""
    report = home / "report.xml"
    ended = subprocess.run(
        [PYTHON, "-m", "pytest", *OPTIONS, f"--junitxml={report}", *words],
        cwd=home,
        env=_environment(daemon, home),
        capture_output=True,
        text=True,
        timeout=SUITE_S,
        check=False,
    )
    assert report.is_file(), f"{ended.stdout}\n{ended.stderr}"
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [case.get("name", "") for case in cases if case.find("skipped") is not None]
    assert len(cases) > 40 and not skipped, ended.stdout
    return {
        case.get("name", ""): problem.text or ""
        for case in cases
        for problem in (*case.iter("failure"), *case.iter("error"))
    }


def _environment(daemon: Daemon, home: Path) -> dict[str, str]:
    """A person's settings lead nowhere else, and nothing is written to a person's home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CARREL_")}
    own = {"CARREL_DATA": str(daemon.data), "CARREL_NO_START": "1", "HOME": str(home)}
    return {**kept, **own}
