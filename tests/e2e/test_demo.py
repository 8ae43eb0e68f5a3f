"""The demo, on this machine and on poorer ones: it always runs, and says what is not confined."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
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
    assert "landed on carrel/haiku, 2 files" in output and "carrel/haiku is gone" in output


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


# What `make demo` sets up on a new machine

BASICS = ("cat", "cksum", "dirname", "env", "head", "id", "mkdir", "rm", "sh", "tail")
STANDINS = {
    "apt-get": """
echo "apt-get $*" >> "$ASKED"
case $1 in install) for one in bwrap git tmux; do cat "$0" > "$STANDINS/$one"; done ;; esac
/bin/chmod +x "$STANDINS"/*""",
    "npm": 'echo "npm $*" >> "$ASKED"',
    "sudo": 'while case $1 in -*) ;; *) false ;; esac; do shift; done; exec "$@"',
    "python3.14": """
case "$*" in *venv*)
    mkdir -p .venv/bin
    { echo "#!$PWD/.venv/bin/python"; cat "$STANDINS/pip"; } > .venv/bin/pip
    cat "$STANDINS/python" > .venv/bin/python
    for one in pip python; do /bin/chmod +x .venv/bin/$one; done
esac""",
    "python": 'case $1 in */pip) shift; echo "pip $*" >> "$ASKED" ;; esac',
    "pip": "",
}
"""What a new machine has, and what notes that it was asked for. The interpreter of the environment
that is made runs its pip, as a real one does."""


def test_the_demo_installs_what_it_needs_and_nothing_more(tmp_path: Path) -> None:
    """So it is there within a minute: no agents, no servers, no engines, nothing of the tests."""
    folder, standins, asked = tmp_path / "carrel", tmp_path / "bin", tmp_path / "asked"
    (folder / "scripts").mkdir(parents=True)
    standins.mkdir()
    for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
        shutil.copy(SOURCE / name, folder / name)
    for name, script in STANDINS.items():
        head = "" if name == "pip" else "#!/bin/sh\n"
        (standins / name).write_text(f"{head}{script}\n")
        (standins / name).chmod(0o755)
    for name in BASICS:
        (standins / name).symlink_to(shutil.which(name) or name)
    env = {"PATH": str(standins), "ASKED": str(asked), "STANDINS": str(standins)}
    for _ in range(2):
        subprocess.run(["scripts/setup", "demo"], cwd=folder, env=env, check=True, timeout=60)
    update, install, pip = asked.read_text().splitlines()
    assert update.startswith("apt-get update ")
    packages = install.partition(" --no-install-recommends ")[2].split()
    assert {"bubblewrap", "git", "tmux"} == {
        one for one in packages if not one.startswith("-") and "=" not in one
    }
    assert pip == "pip install -q --editable ."
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    extras = {one for extra in project["optional-dependencies"].values() for one in extra}
    assert not extras & set(project["dependencies"])
