"""From what an agent writes to lines, and from events to what was used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.domain.runs import Piece, Stream
from carrel.domain.turns import (
    NOTHING_SPENT,
    AgentEvent,
    AgentEventType,
    TurnError,
    TurnResult,
    Usage,
)
from carrel.service import turn_follower
from carrel.service.turn_follower import MAX_RESULT, MOST_SPENT, Followed, Lines, bounded, plus


def pieces(data: bytes, cuts: list[int]) -> list[Piece]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    starts = [0, *ends[:-1]]
    return [
        Piece(Stream.STDOUT, start, data[start:end])
        for start, end in zip(starts, ends, strict=True)
        if start < end
    ]


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_lines_are_whole_however_they_come(data: bytes, cuts: list[int]) -> None:
    lines, found = Lines(), []
    for piece in pieces(data, cuts):
        whole, missed = lines.feed(piece)
        assert missed == 0
        found += whole
    found += lines.end()
    *wanted, rest = data.split(b"\n")
    assert found == wanted + ([rest] if rest else [])


@given(
    before=st.binary(max_size=50),
    lost=st.binary(min_size=1, max_size=50),
    after=st.binary(max_size=50),
)
def test_what_is_left_of_a_line_is_none(before: bytes, lost: bytes, after: bytes) -> None:
    lines = Lines()
    found, _ = lines.feed(Piece(Stream.STDOUT, 0, before))
    more, missed = lines.feed(Piece(Stream.STDOUT, len(before) + len(lost), after))
    assert missed == len(lost)
    assert found == before.split(b"\n")[:-1]
    _, *whole = after.split(b"\n")
    # The first is the end of a line whose beginning nobody has seen.
    wanted = whole[:-1] + ([whole[-1]] if whole and whole[-1] else [])
    assert more + lines.end() == wanted


def test_a_line_that_is_too_long() -> None:
    lines = Lines()
    data = b"x" * (turn_follower.MAX_LINE + 1)
    assert lines.feed(Piece(Stream.STDOUT, 0, data)) == ([], 0)
    found, _ = lines.feed(Piece(Stream.STDOUT, len(data), b"rest of it\nwhole\n"))
    assert found == [b"whole"]


def used(seq: int, **payload: object) -> AgentEvent:
    return AgentEvent(AgentEventType.USAGE, 1.0, seq, "s", "r", payload)


def test_what_is_used_is_summed() -> None:
    followed = Followed(told=1)
    followed.hear(used(1, input_tokens=10, output_tokens=2, cost_usd=0.5))
    followed.hear(used(2, input_tokens=5, output_tokens=-3, cached_tokens="x"))
    assert [event.seq for event in followed.take()] == [2] and not followed.is_cumulative
    assert followed.usage(NOTHING_SPENT) == Usage(15, 2, 0, 0.5, 1)
    assert plus(Usage(1, 1, 1, 1.0, 1), Usage(2, 2, 2, 2.0, 1)) == Usage(3, 3, 3, 3.0, 2)


@pytest.mark.parametrize("value", [1e308, 10**30, 10**400, (1 << 64) - 1])
def test_what_is_too_much_to_be_used_stays_a_number(value: float) -> None:
    """A record with another one cannot be kept, and its turn would never end."""
    followed = Followed()
    for seq in range(3):
        followed.hear(used(seq, input_tokens=value, cost_usd=value))
    spent = followed.usage(NOTHING_SPENT)
    assert 0 < spent.cost_usd <= MOST_SPENT and 0 <= spent.input_tokens <= MOST_SPENT


def test_what_a_conversation_used_before_is_not_counted_again() -> None:
    followed = Followed()
    followed.hear(used(1, scope="conversation", input_tokens=100, output_tokens=20))
    followed.hear(used(2, scope="conversation", input_tokens=300, output_tokens=60))
    assert followed.is_cumulative
    assert followed.usage(Usage(100, 80, 0, 0.0, 1)) == Usage(200, 0, 0, 0.0, 1)


def test_an_outcome_has_a_bound() -> None:
    """It is in a record, which no limit of the space counts."""
    long = "x" * 2 * MAX_RESULT
    found = bounded(TurnResult(False, long, TurnError(long, long, {"why": long})))
    assert found.error is not None
    texts = (found.final_output, found.error.code, found.error.message, str(found.error.details))
    assert all(MAX_RESULT < len(text) < MAX_RESULT + 100 for text in texts)
    short = TurnResult(True, "done", TurnError("code", "why", {"n": 1}))
    assert bounded(short) == short
