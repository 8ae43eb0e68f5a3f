"""Server-sent events, however they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carrel.instances.events import Event, Events

TEXT = (
    "event: endpoint\ndata: /messages?id=1\n\n: nothing\n\n"
    'data: {"a": "ä€😀"}\r\ndata: more\r\n\r\nid: 7\rdata:x\r\r'
)
WANTED = [
    Event("endpoint", "/messages?id=1"),
    Event("message", '{"a": "ä€😀"}\nmore'),
    Event("message", "x"),
]


def test_at_once() -> None:
    # The very last return may be the first half of an end.
    assert Events().feed(TEXT.encode() + b"\n") == WANTED


@given(st.lists(st.integers(1, 9), max_size=60))
def test_in_pieces(sizes: list[int]) -> None:
    data, events, found = TEXT.encode() + b"\n", Events(), []
    for size in [*sizes, len(data)]:
        found += events.feed(data[:size])
        data = data[size:]
    assert found == WANTED
