"""Which runtime is chosen, on this machine and on poorer ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from carrel.runtimes import bubblewrap
from tests.accounts import PLUGINS, PYTHON, SOURCE, Account, run_as
from tests.conformance.runtime_rig import open_rig

TIMEOUT_S = 110.0
"""Less than a test may take."""


def _run(argv: list[str], account: Account | None = None) -> str:
    if account is not None:
        ran = run_as(account, [PYTHON, *argv], cwd=SOURCE)
    else:
        ran = subprocess.run(
            [sys.executable, *argv],
            cwd=SOURCE,
            env={**os.environ, "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def _forbidding(what: str, account: Account | None) -> list[str]:
    from tests.accounts import interpreter_for

    python = interpreter_for(account).executable if account is not None else sys.executable
    return ["-m", "tests.runtimes.forbidding", what, python]


def _choose(data: Path, forbidden: str, account: Account | None) -> dict[str, Any]:
    before = _forbidding(forbidden, account) if forbidden else []
    output = _run([*before, "-m", "tests.runtimes.choosing", str(data)], account)
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.fixture(params=["root", "ordinary"])
def account(request: pytest.FixtureRequest, data: Path, ordinary_user: Account) -> Account | None:
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        return None
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    return ordinary_user


def test_bubblewrap_is_chosen(data: Path, account: Account | None) -> None:
    found = _choose(data, "", account)
    assert found["chosen"] == "bubblewrap", found


def test_landlock_is_chosen_where_namespaces_are_forbidden(
    data: Path, account: Account | None
) -> None:
    found = _choose(data, "namespaces", account)
    assert found["chosen"] == "landlock", found
    assert [name for name, available, _ in found["seen"] if not available] == ["bubblewrap"]
    assert any("UDP" in gap for gap in found["uncovered"])
    assert any("stat" in gap for gap in found["uncovered"])
    assert any("processes can be seen" in gap for gap in found["uncovered"])


def test_nothing_is_chosen_where_nothing_confines(data: Path, account: Account | None) -> None:
    """And never the runtime that confines nothing."""
    found = _choose(data, "namespaces,landlock", account)
    assert found["code"] == "sandbox_unavailable"
    assert "bubblewrap" in found["refused"] and "landlock" in found["refused"]
    assert found["hint"]


CORE = "output_and_exit or environment or stop_ends or two_sandboxes or killing_the_daemon or proof"
SHARED = "there_is_none_where"


def test_the_core_holds_where_namespaces_are_forbidden(data: Path, account: Account | None) -> None:
    """The conformance suite itself, below the same filter."""
    suite = ["-m", "pytest", "-q", *PLUGINS]
    suite += ["tests/conformance/test_runtimes.py", "tests/runtimes/test_landlock.py"]
    suite += ["-k", f"landlock and ({CORE} or {SHARED})"]
    output = _run([*_forbidding("namespaces", account), *suite], account)
    assert "8 passed" in output and "skipped" not in output, output


async def test_a_bubblewrap_that_is_too_old(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Ubuntu 22.04."""
    # Not in /tmp, where the launcher of root stages mounts.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        old = Path(folder, "bwrap")
        old.write_text("#!/bin/sh\necho 'bwrap: Unknown option --disable-userns' >&2\nexit 1\n")
        old.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        async with open_rig(data, "bubblewrap") as rig:
            found = await rig.runtime.probe()
    assert not found.available and "bubblewrap 0.8" in found.remedy, found


PROFILE = """\
tee /etc/apparmor.d/bwrap
abi <abi/4.0>,
include <tunables/global>
profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}
apparmor_parser -r /etc/apparmor.d/bwrap
"""


def test_what_allows_namespaces_where_apparmor_forbids_them(tmp_path: Path) -> None:
    """One command, which a shell understands. The sysctl is Ubuntu's; the parser of AppArmor 4.1
    takes the profile."""
    (tmp_path / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    (tmp_path / "sudo").write_text('#!/bin/sh\necho "$@"\ncat\n')
    (tmp_path / "sudo").chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", bubblewrap._remedy(tmp_path)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == PROFILE
