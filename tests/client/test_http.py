"""HTTP as the client reads and writes it, cut at every byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.client.http import (
    MAX_HEAD,
    MAX_LINE,
    ProtocolError,
    ResponseParser,
    chunk,
    quote,
    request_head,
    segment,
    target,
)

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; x=y\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3;ext=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
WITH_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + PLAIN
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\nhello"
cuts = st.lists(st.integers(0, 200), max_size=8)


def pieces_of(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(marks)]


def read(data: bytes, places: list[int]) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    body = b""
    for piece in pieces_of(data, places):
        body += b"".join(parser.receive(piece))
    return parser, body


@pytest.mark.parametrize("data", [PLAIN, CHUNKED, WITH_HINTS], ids=["length", "chunked", "hints"])
@settings(deadline=None)
@given(places=cuts)
def test_an_answer_is_the_same_however_it_is_cut(data: bytes, places: list[int]) -> None:
    parser, body = read(data, places)
    assert body == b"hello"
    assert parser.done and parser.reusable and not parser.rest
    assert parser.head is not None and parser.head.status == 200


@settings(deadline=None)
@given(
    body=st.binary(max_size=3000),
    sizes=st.lists(st.integers(1, 700), max_size=8),
    places=st.lists(st.integers(0, 5000), max_size=8),
)
def test_what_is_sent_in_chunks_comes_back(
    body: bytes, sizes: list[int], places: list[int]
) -> None:
    wire, rest = b"", body
    for size in sizes:
        if rest[:size]:
            wire += chunk(rest[:size])
        rest = rest[size:]
    if rest:
        wire += chunk(rest)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    parser, found = read(head + wire + chunk(b""), places)
    assert found == body and parser.done


@settings(deadline=None)
@given(places=cuts)
def test_without_a_length_the_end_of_the_connection_ends_it(places: list[int]) -> None:
    parser, body = read(UNTIL_CLOSE, places)
    assert body == b"hello" and not parser.done
    parser.receive(b"")
    assert parser.done and not parser.reusable


@pytest.mark.parametrize("data", [PLAIN[:10], PLAIN[:-1], CHUNKED[:-1], CHUNKED[:-20], b""])
def test_an_answer_that_breaks_off_is_noticed(data: bytes) -> None:
    parser = ResponseParser()
    if data:
        parser.receive(data)
    with pytest.raises(ProtocolError):
        parser.receive(b"")


def test_what_follows_an_upgrade_is_kept() -> None:
    parser, _ = read(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x81\x00", [])
    assert parser.done and parser.rest == b"\x81\x00"


def test_an_answer_without_a_body_is_complete_at_its_head() -> None:
    for status in (204, 304):
        parser, _ = read(b"HTTP/1.1 %d X\r\n\r\n" % status, [])
        assert parser.done and parser.reusable


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_whether_a_connection_may_be_used_again(head: bytes, reusable: bool) -> None:
    parser, _ = read(head + b"Content-Length: 0\r\n\r\n", [])
    assert parser.done and parser.reusable is reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * (MAX_LINE + 1),
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD,
    ],
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        ResponseParser().receive(data)


@settings(deadline=None)
@given(st.binary(max_size=300), cuts)
def test_noise_is_refused_or_waited_for(data: bytes, places: list[int]) -> None:
    parser = ResponseParser()
    try:
        for piece in pieces_of(data, places):
            parser.receive(piece)
    except ProtocolError:
        return
    assert parser.head is None or data.startswith(b"HTTP/1.")


def test_headers_that_come_twice_are_joined() -> None:
    parser, _ = read(b"HTTP/1.1 204 X\r\nA: 1\r\na:2\r\nContent-Type: A/B;c=d\r\n\r\n", [])
    assert parser.head is not None
    assert parser.head.headers["a"] == "1, 2"
    assert parser.head.kind == "a/b"


def test_a_request_is_written_as_http_has_it() -> None:
    where = target("/v1/spaces", [("state", "ready"), ("force", True), ("limit", 5)])
    head = request_head("GET", where, [("Host", "carrel"), ("X", "ä")])
    assert head.split(b"\r\n") == [
        b"GET /v1/spaces?state=ready&force=true&limit=5 HTTP/1.1",
        b"Host: carrel",
        b"X: \xe4",
        b"",
        b"",
    ]


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\0", "a\x7f"])
def test_no_header_is_smuggled_in(value: str) -> None:
    with pytest.raises(ValueError, match="control"):
        request_head("GET", "/", [("Authorization", value)])


@settings(deadline=None)
@given(st.binary(max_size=50))
def test_names_of_any_bytes_survive_quoting(name: bytes) -> None:
    from urllib.parse import unquote_to_bytes

    quoted = quote(name.decode("utf-8", "surrogateescape"))
    assert unquote_to_bytes(quoted) == name
    assert all(letter not in quoted for letter in " ?&#+%\r\n".replace("%", ""))


@pytest.mark.parametrize(
    ("word", "written"), [("a/b", "a%2Fb"), ("..", "%2E%2E"), (".", "%2E"), ("a.b", "a.b")]
)
def test_a_word_stays_one_part_of_a_path(word: str, written: str) -> None:
    assert segment(word) == written
