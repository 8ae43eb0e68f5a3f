"""What a command gave, gathered from its pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.client.exchange import STDERR, STDOUT, ExchangeOutput, exit_code
from carrel.client.models import CommandFailed, OutputCollector

AT = "2026-01-02T03:04:05.678Z"
RUN: dict[str, Any] = {
    "id": "ru_x",
    "space": "sp_x",
    "argv": ["make", "test"],
    "cwd": ".",
    "state": "ended",
    "terminal": False,
    "created_at": AT,
    "pid": 1,
    "failure": "",
    "failure_code": "",
}


def ended(reason: str, code: int | None = None, signal: int | None = None) -> dict[str, Any]:
    found = {"reason": reason, "code": code, "signal": signal, "started_at": AT, "ended_at": AT}
    return {**RUN, "exit": {**found, "cpu_seconds": 0.1, "max_rss_bytes": 1}}


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (ended("exited", 0), 0),
        (ended("exited", 77), 77),
        (ended("signaled", None, 15), 143),
        (ended("timeout", None, 9), 124),
        (ended("memory", None, 9), 137),
        (ended("memory"), 137),
        (ended("stopped", None, 15), 143),
        (ended("lost"), 125),
        ({**RUN, "exit": None, "failure_code": "command_not_found"}, 127),
        ({**RUN, "exit": None, "failure_code": "command_not_executable"}, 126),
        ({**RUN, "exit": None, "failure_code": "sandbox_unavailable"}, 125),
    ],
)
def test_exit_codes_are_as_a_shell_has_them(run: dict[str, Any], code: int) -> None:
    assert exit_code(run) == code


@settings(deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(min_size=1, max_size=20)),
        max_size=20,
    ),
    limit=st.integers(0, 60),
)
def test_the_last_bytes_are_kept(pieces: list[tuple[int, bytes]], limit: int) -> None:
    collector = OutputCollector(limit)
    whole = {STDOUT: b"", STDERR: b""}
    for stream, data in pieces:
        collector.add(ExchangeOutput(stream, data))
        whole[stream] += data
    result = collector.result(ended("exited", 0))
    assert result.stdout_bytes == whole[STDOUT][-limit:] if limit else not result.stdout_bytes
    assert result.stderr_bytes == whole[STDERR][-limit:] if limit else not result.stderr_bytes
    assert result.truncated == any(len(data) > limit for data in whole.values())


def test_a_gap_counts_as_truncated() -> None:
    collector = OutputCollector()
    collector.add(ExchangeOutput(STDOUT, b"x", dropped=5))
    assert collector.result(ended("exited", 0)).truncated


def test_a_failure_can_be_an_error() -> None:
    collector = OutputCollector()
    collector.add(ExchangeOutput(STDERR, b"first\nno rule \xff\n"))
    result = collector.result(ended("exited", 2))
    assert not result.ok and result.stderr == "first\nno rule \ufffd\n"
    with pytest.raises(CommandFailed, match="make ended with 2: no rule") as caught:
        result.check()
    assert caught.value.result is result
    good = OutputCollector().result(ended("exited", 0))
    assert good.check() is good
