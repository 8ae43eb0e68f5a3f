"""What comes over a wire: taken as the types say, and refused in words, whatever it is."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from carrel.api import types, wire
from carrel.api.types.runs import ControlFrame
from carrel.domain.errors import MessageInvalid
from carrel.interfaces.http.operations import query_fields

BYTE, NOTHING = "\\udc80", "\\ud800"
"""Escapes: of a byte that is no UTF-8, and of what stands for nothing."""
OS_TEXTS = {
    "stdin": ("RunBody", '{"argv":["a"],"stdin":"%s"}'),
    "argv": ("RunBody", '{"argv":["%s"]}'),
    "env": ("RunBody", '{"argv":["a"],"env":{"A":"%s"}}'),
    "exclude": ("NewSpace", '{"exclude":["%s"]}'),
    "location": ("NewSpace", '{"project":{"kind":"folder","location":"%s"}}'),
    "project": ("NewRequest", '{"instructions":"x","project":"%s"}'),
    "place": ("NewRequest", '{"instructions":"x","project":{"kind":"folder","location":"%s"}}'),
    "workspace": ("NewRequest", '{"instructions":"x","workspace_path":"%s"}'),
    "line": ("NewRequest", '{"instructions":"x","check":"%s"}'),
    "words": ("NewRequest", '{"instructions":"x","check":["%s"]}'),
    "check line": ("NewRequest", '{"instructions":"x","check":{"command":"%s"}}'),
    "check words": ("NewRequest", '{"instructions":"x","check":{"command":["%s"]}}'),
    "instance": ("NewInstance", '{"server":"x","project_path":"%s"}'),
    "server": ("NewInstance", '{"server":{"command":["%s"]},"project_path":"x"}'),
}
OTHERS = {
    "name": ("StopBody", '{"%s":1}'),
    "number": ("StopBody", '{"grace_s":"%s"}'),
    "word": ("NewSpace", '{"network":"%s"}'),
    "literal": ("NewSpace", '{"tier":"%s"}'),
    "text": ("NewSpace", '{"description":"%s"}'),
    "label": ("NewSpace", '{"labels":{"a":"%s"}}'),
    "anything": ("NewRequest", '{"instructions":"x","architecture":{"a":["%s"]}}'),
    "key of anything": ("NewRequest", '{"instructions":"x","architecture":{"%s":1}}'),
    "ref": ("NewRequest", '{"instructions":"x","project":{"kind":"git","ref":"%s"}}'),
}


def refused(kind: Any, text: str | bytes) -> MessageInvalid:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(MessageInvalid) as caught:
        wire.from_json(data, types.find(kind) if isinstance(kind, str) else kind)
    return caught.value


@pytest.mark.parametrize("name", OS_TEXTS)
def test_bytes_that_are_no_text(name: str) -> None:
    kind, text = OS_TEXTS[name]
    wire.from_json((text % BYTE).encode(), types.find(kind))
    refused(kind, text % NOTHING)


@pytest.mark.parametrize("escape", [BYTE, NOTHING])
@pytest.mark.parametrize("name", OTHERS)
def test_surrogates_elsewhere(name: str, escape: str) -> None:
    kind, text = OTHERS[name]
    refused(kind, text % escape)


@pytest.mark.parametrize("query", [b"%80=1", b"limit=%80", b"state=%80", b"name=%80", b"label=%80"])
def test_bytes_in_a_query(query: bytes) -> None:
    with pytest.raises(MessageInvalid):
        wire.from_query(query_fields(query), types.find("SpaceListQuery"))


def test_what_was_sent_is_not_repeated() -> None:
    """It may be a secret in the wrong place."""
    for kind, text in (
        ("NewSpace", '{"network":"hunter2"}'),
        ("NewSpace", '{"tier":"hunter2"}'),
        ("NewSpace", '{"network":"a - at `$.hunter2"}'),
        (ControlFrame, '{"type":"hunter2"}'),
    ):
        error = refused(kind, text)
        assert "hunter2" not in f"{error.message} {error.details}"


@pytest.mark.parametrize("text", ['{"argv":["a","%s"]}', '{"argv":["a"],"env":{"A":"%s"}}'])
def test_a_word_that_no_command_takes(text: str) -> None:
    """The caller is told what to do instead."""
    assert "standard input" in refused("RunBody", text % ("x" * 131_073)).message


def test_a_frame_that_is_too_deep() -> None:
    deep = "[" * 100_000
    refused(ControlFrame, f'{{"rows":{deep},"type":"resize"}}')
    refused(ControlFrame, f'{{"rows":{deep},"type":"resize","a":"{NOTHING}"}}')


def test_no_other_encoding_than_utf_8() -> None:
    """How deep a body is was counted in UTF-8."""
    # The bytes of this character are those of `\\u`.
    body = json.dumps({"instructions": "\u755c"}, ensure_ascii=False).encode("utf-16-le")
    assert b"\\u" in body
    refused("NewRequest", body)


def test_a_long_name_costs_once() -> None:
    """Not once for each value below it."""
    name, values = "k" * 500_000, ",".join("0" for _ in range(200_000))
    text = f'{{"instructions":"x","architecture":{{"{name}":[{values},"{NOTHING}"]}}}}'
    begun = time.process_time()
    refused("NewRequest", text)
    assert time.process_time() - begun < 2
