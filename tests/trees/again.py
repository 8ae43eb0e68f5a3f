"""Root's tests, run again as a user who is nobody special."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.ranges import make_etc, show_etc

TIMEOUT_S = 100.0
"""A whole file of tests, on a loaded machine."""


def run_again(
    file: str,
    account: Account,
    data: Path,
    *words: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    ranged: bool = False,
) -> str:
    """What pytest said of the file's tests, which all passed or were skipped. `ranged`: as a user
    with a range of ids."""
    begin = partial(show_etc, make_etc(data / "etc-of-tests", account)) if ranged else None
    os.chown(data, *account)
    done = run_as(
        account,
        [*PYTEST, f"--basetemp={data / 'pytest'}", *words, file],
        env={"TMPDIR": str(data), "HOME": str(data), **(env or {})},
        cwd=SOURCE,
        timeout=timeout_s,
        begin=begin,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    return done.stdout
