"""Sizes, times and pairs, as people write them and read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.cli import values


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("1k", 1024),
        ("512M", 512 << 20),
        ("4G", 4 << 30),
        ("1.5GiB", 3 << 29),
        ("2 TB".replace(" ", ""), 2 << 40),
        ("10b", 10),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert values.size(text) == size


@pytest.mark.parametrize(
    ("text", "span_s"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("90s", 90.0),
        ("1.5", 1.5),
        ("15m", 900.0),
        ("2h", 7200.0),
        ("7d", 604800.0),
        ("1w", 604800.0),
        ("250ms", 0.25),
    ],
)
def test_times(text: str, span_s: float) -> None:
    assert values.seconds(text) == pytest.approx(span_s)


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", "1e3", "1.2.3", "5Q", "M", "nan", "inf", "1 2", "\u0661", "5smh", "5sms"],
)
def test_what_is_neither_is_refused(text: str) -> None:
    for read in (values.size, values.seconds):
        with pytest.raises(ValueError, match=r"no (size|time)"):
            read(text)


@pytest.mark.parametrize(
    ("text", "found"), [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c"))]
)
def test_pairs(text: str, found: tuple[str, str]) -> None:
    assert values.pair(text) == found


def test_other_kinds() -> None:
    for text in ("a", "=b", ""):
        with pytest.raises(ValueError, match="KEY=VALUE"):
            values.pair(text)
    assert values.number("0.5") == 0.5 and values.whole("07") == 7
    for text in ("-1", "1.5", "x", ""):
        with pytest.raises(ValueError, match="whole"):
            values.whole(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0K"),
        (10 * 1024, "10K"),
        (1 << 20, "1.0M"),
        (5 << 30, "5.0G"),
        (1 << 50, "1024T"),
    ],
)
def test_sizes_are_shown_short(count: int | None, text: str) -> None:
    assert values.size_text(count) == text


@settings(deadline=None)
@given(st.floats(0, 1e15))
def test_whatever_the_size_it_stays_short(count: float) -> None:
    assert len(values.size_text(count)) <= 5


@pytest.mark.parametrize(
    ("span_s", "text"),
    [
        (None, "-"),
        (-5.0, "0.0s"),
        (0.04, "0.0s"),
        (59.0, "59s"),
        (600.0, "10m"),
        (7200.0, "2h"),
        (86400.0 * 3, "3d"),
        (86400.0 * 1100, "3.0y"),
    ],
)
def test_times_are_shown_short(span_s: float | None, text: str) -> None:
    assert values.time_text(span_s) == text


@settings(deadline=None)
@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))
def test_moments_are_read_without_a_calendar(moment: datetime) -> None:
    exact = moment.replace(tzinfo=UTC, microsecond=moment.microsecond // 1000 * 1000)
    text = exact.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert values.seconds_of(text) == pytest.approx(exact.timestamp(), abs=1e-3)
