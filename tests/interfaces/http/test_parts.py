"""The small parts: problems, texts, ranges, encoding, validation."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from carrel.api import wire
from carrel.api.types.common import moment
from carrel.api.types.runs import FolderQuery, PathQuery
from carrel.api.types.spaces import NewSpace
from carrel.domain import errors
from carrel.domain.errors import CarrelError, MessageInvalid, SpaceNotFound
from carrel.interfaces.http.answers import (
    STATUS,
    ErrorLayer,
    RangeNotSatisfiable,
    details_of,
    encode,
    problem_response,
)
from carrel.interfaces.http.operations import query_fields
from carrel.interfaces.http.responses import part_of


def _kinds(kind: type[CarrelError]) -> list[type[CarrelError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in _kinds(below))]


def test_every_error_has_a_status() -> None:
    declared = [kind for kind in _kinds(CarrelError) if kind.__module__ == errors.__name__]
    assert len(declared) > 40
    assert [kind.code for kind in declared if kind.code not in STATUS] == []


def test_the_status_is_the_clients_fault_or_ours() -> None:
    ours = {code for code, status in STATUS.items() if status >= 500}
    assert {"internal", "store_damaged", "tree_damaged"} <= ours
    assert not ours & {"space_not_found", "message_invalid", "command_not_found"}


def test_details_do_not_hide_the_problem() -> None:
    error = SpaceNotFound("There is no space.", hint="Look.", status=200, changes={1, 2}, at=Path())
    problem = details_of(error)
    assert problem["status"] == 404 and problem["code"] == "space_not_found"
    assert problem["changes"] in ([1, 2], [2, 1])
    assert problem["at"] == "."


def test_a_problem_without_a_hint() -> None:
    assert "hint" not in details_of(MessageInvalid("No."))
    response = problem_response(MessageInvalid("a\udcff"))
    assert json.loads(bytes(response.body))["detail"] == "a\udcff"


async def _failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("a secret of the inside")


async def test_what_nobody_foresaw_is_a_number(caplog: pytest.LogCaptureFixture) -> None:
    transport = httpx.ASGITransport(ErrorLayer(_failing))
    async with httpx.AsyncClient(transport=transport, base_url="http://carrel") as client:
        response = await client.get("/v1/x")
    assert response.status_code == 500
    problem = response.json()
    assert problem["code"] == "internal" and len(problem["log"]) == 8
    assert "secret" not in response.text and "Traceback" not in response.text
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert problem["log"] in record.getMessage() and record.exc_info is not None


async def test_what_breaks_off_is_not_completed() -> None:
    aborted = []

    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("in the middle")

    sent = []

    async def send(message: object) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "state": {"abort": lambda: aborted.append(True)},
    }
    await ErrorLayer(half)(scope, receive, send)
    assert len(sent) == 1 and aborted == [True]


@given(st.binary(max_size=40))
def test_any_name_comes_through_a_query(name: bytes) -> None:
    query = b"x=1&path=" + quote(name, safe="").encode() + b"&y=2"
    (found,) = query_fields(query)["path"]
    assert os.fsencode(found) == name


@given(st.binary(max_size=40))
def test_any_name_comes_through_json(name: bytes) -> None:
    told = os.fsdecode(name)
    assert os.fsencode(json.loads(encode({"name": told}))["name"]) == name


def test_one_path_is_wanted() -> None:
    assert wire.from_query(query_fields(b"path=a%2fb+c"), PathQuery).path == "a/b c"
    assert wire.from_query(query_fields(b""), FolderQuery).path == "."
    for query in (b"", b"path=", b"path", b"path=a&path=b", b"p%61th=a&path=b", b"path=a&x=1"):
        with pytest.raises(MessageInvalid):
            wire.from_query(query_fields(query), PathQuery)


@given(
    st.one_of(st.none(), st.text(max_size=20), st.from_regex(r"bytes=\d{0,3}-\d{0,3}")),
    st.integers(0, 200),
)
def test_a_part_is_within_the_file(header: str | None, size: int) -> None:
    try:
        part = part_of(header, size)
    except RangeNotSatisfiable as error:
        assert error.details["size"] == size
        return
    if part is not None:
        begin, end = part
        assert 0 <= begin < end <= size


def test_enormous_numbers_are_no_trouble() -> None:
    with pytest.raises(RangeNotSatisfiable):
        part_of("bytes=" + "9" * 5000 + "-", 10)
    assert part_of("bytes=-" + "9" * 5000, 10) == (0, 10)


def test_times_are_in_utc_with_milliseconds() -> None:
    assert str(moment(0)) == "1970-01-01T00:00:00.000Z"
    assert str(moment(1767323045.678)) == "2026-01-02T03:04:05.678Z"


def test_faults_are_named_but_not_repeated() -> None:
    """What was sent may be a secret, or long."""
    for content, field in (
        ({"env": {"A-B": "hunter2"}}, "body.env"),
        ({"env": {"TOKEN": ["hunter2"]}}, "body.env"),
        ({"limits": {"pids": "hunter2"}}, "body.limits.pids"),
        ({"exclude": ["a", "hunter2" * 1000]}, "body.exclude.1"),
        ({"name": "hunter2\n"}, "body.name"),
        ({"labels": {"team": "hunter2\ud800"}}, "body.labels.team"),
    ):
        with pytest.raises(MessageInvalid) as caught:
            wire.from_json(json.dumps(content).encode(), NewSpace)
        assert caught.value.details["field"] == field
        assert "hunter2" not in str(details_of(caught.value))
    for junk in (b"", b"{", b"\xff", b'{"name": NaN}', b"[]", b"[" * 100_000):
        with pytest.raises(MessageInvalid):
            wire.from_json(junk, NewSpace)
