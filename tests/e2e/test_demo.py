"""The demo, on this machine and on poorer ones: it always runs, and says what is not confined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accounts import PYTHON, SOURCE, Account, interpreter_for, run_as
from tests.sampling import every

TIMEOUT_S = 100.0
"""Less than a test may take."""
DEMO = "examples/demo.py"


ACCOUNTS = ("root", "ordinary")


@pytest.fixture
def account(request: pytest.FixtureRequest, ordinary_user: Account) -> Account:
    if request.param == "ordinary":
        return ordinary_user
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return Account(0, 0)


def _demo(account: Account, data: Path, forbidden: str) -> str:
    env = {"TMPDIR": str(data), "GIT_CONFIG_GLOBAL": "/dev/null"}
    python = sys.executable if account.uid == 0 else interpreter_for(account).executable
    before = ["-m", "tests.runtimes.forbidding", forbidden, python] if forbidden else []
    if account.uid == os.geteuid():
        ran = subprocess.run(
            [python, *before, DEMO],
            cwd=SOURCE,
            env={**os.environ, **env, "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    else:
        os.chown(data, account.uid, account.gid)
        ran = run_as(account, [PYTHON, *before, DEMO], cwd=SOURCE, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert list(data.iterdir()) == [], "the demo left something"
    return ran.stdout


@pytest.mark.parametrize("account", ACCOUNTS, indirect=True)
def test_everything_is_confined(account: Account, data: Path) -> None:
    output = _demo(account, data, "")
    assert "walls by bubblewrap" in output
    assert "POSSIBLE" not in output and "Nothing is left." in output
    assert "NOTHING IS CONFINED" not in output
    assert "modified greet.py" in output and "added    test_greet.py" in output
    assert " M greet.py" in output and "?? poems/" in output


@pytest.mark.parametrize("account", every(2, ACCOUNTS, 1), indirect=True)
def test_without_namespaces(account: Account, data: Path) -> None:
    output = _demo(account, data, "namespaces")
    assert "walls by landlock" in output and "not covered:" in output
    assert "POSSIBLE" not in output and "Nothing is left." in output


@pytest.mark.parametrize("account", every(2, ACCOUNTS), indirect=True)
def test_with_no_way_to_confine(account: Account, data: Path) -> None:
    output = _demo(account, data, "namespaces,landlock")
    assert "walls by process" in output and "NOTHING IS CONFINED" in output
    assert "POSSIBLE the checkout" in output or account.uid == 0
    assert "Nothing is left." in output
