"""Server-sent events, cut at every byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.domain import sse
from carrel.domain.sse import EventParser

STREAM = (
    '\ufeff: a comment\nid: 1\nevent: space.state\ndata: {"a":\ndata: "ü"}\n\n'
    "data:no space\n\n"
    ": only a comment\n\n"
    "id: 7\n\n"
    "event: unnamed\ndata\n\n"
    "retry: 1500\nignored: field\nid: bad\0id\ndata: x\n\n"
    "id: 8\ndata: cut off\n"
)
WANTED = [
    ("space.state", '{"a":\n"ü"}', "1"),
    ("message", "no space", "1"),
    ("unnamed", "", "7"),
    ("message", "x", "7"),
]


def read(data: bytes, places: list[int]) -> tuple[EventParser, list[tuple[str, str, str]]]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    parser = EventParser()
    found = []
    for a, b in pairwise(marks):
        found += [(one.type, one.data, one.id) for one in parser.receive(data[a:b])]
    return parser, found


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@settings(deadline=None)
@given(places=st.lists(st.integers(0, 300), max_size=10))
def test_events_are_the_same_however_they_are_cut(ending: str, places: list[int]) -> None:
    # The last line ending of a stream that uses CR alone waits for an LF that may follow.
    data = STREAM.replace("\n", ending).encode() + b":"
    parser, found = read(data, places)
    assert found == WANTED
    assert parser.last_id == "7"
    assert parser.retry_s == 1.5


@pytest.mark.parametrize("line", [b"data: 0123456789\n", b"data\n" * 10])
def test_what_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    parser = EventParser()
    with pytest.raises(ValueError, match="too large"):
        for _ in range(30):
            parser.receive(line)
