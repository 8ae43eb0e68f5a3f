"""Root's tests run the same suites as a user who is nobody special."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.sampling import EXHAUSTIVE, whole_only

TIMEOUT_S = 300.0
"""A whole suite, one test after the other, on a loaded machine."""
WALLED = () if EXHAUSTIVE else ("-k", "bubblewrap or not (process or landlock)")
"""What is begun without walls, or with Landlock's, is begun by anybody as it is by root."""
LANDLOCK = "environment or binds or do_not_meet or proof or host_is_out or stop_ends"
"""In a sample, what Landlock itself keeps apart."""
ZYGOTES = (
    "not of_another_user"
    if EXHAUSTIVE
    else "command_like_any_other or sees_only or no_rights or being_set_up or descriptors_are"
    " or is_killed or control_groups or without_a_zygote or cannot_be"
)
"""In a sample, how a fork is confined, and what it is given."""

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 20),
    pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run"),
]


def _suite(account: Account, data: Path, *words: str) -> str:
    os.chown(data, account.uid, account.gid)
    ran = run_as(
        account,
        [*PYTEST, f"--basetemp={data / 'pytest'}", *words],
        cwd=SOURCE,
        env={"TMPDIR": str(data)},
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " skipped" not in ran.stdout, ran.stdout[-3000:]
    return ran.stdout


def test_runtimes(ordinary_user: Account, data: Path) -> None:
    words = ("-k", f"{WALLED[1]} or (landlock and ({LANDLOCK}))") if WALLED else ()
    _suite(ordinary_user, data, *words, "tests/conformance/test_runtimes.py")


def test_images(ordinary_user: Account, data: Path) -> None:
    _suite(
        ordinary_user,
        data,
        "tests/daemon/test_images.py",
        "-k",
        "not (nonsense or outside or set_user_id)",
    )


def test_kept_systems(ordinary_user: Account, data: Path) -> None:
    words = () if EXHAUSTIVE else ("-k", "there or fork")
    _suite(ordinary_user, data, "tests/daemon/test_kept_systems.py", *words)


def test_ports(ordinary_user: Account, data: Path) -> None:
    _suite(ordinary_user, data, "tests/conformance/test_ports.py", "-k", "not container")


def test_places_to_mount_at(ordinary_user: Account, data: Path) -> None:
    _suite(ordinary_user, data, "tests/service/test_spaces.py", "-k", "mount_from_its_place")


def test_zygotes(ordinary_user: Account, data: Path) -> None:
    _suite(ordinary_user, data, "tests/launcher/test_zygotes.py", "-k", ZYGOTES)


def test_streams_descriptors_and_kills(ordinary_user: Account, data: Path) -> None:
    words = ("test_run_streams.py", "test_given_descriptors.py", "test_kills.py")
    _suite(ordinary_user, data, *WALLED, *(f"tests/conformance/{word}" for word in words))


@whole_only
def test_an_agent_of_ones_own(ordinary_user: Account, data: Path) -> None:
    """In a sample, cli/test_as_ordinary_user.py has them."""
    _suite(ordinary_user, data, "tests/agents/test_imports.py", "-k", "is_mine")
