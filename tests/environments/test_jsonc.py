"""JSON with comments and trailing commas."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.environments.files import MalformedFile, parse_json, parse_jsonc

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab/*,]}"\\ ', max_size=4), inner),
    max_leaves=10,
)
FILLERS = ("", " ", "\n", "\t", '// a "comment", ]}\n', '/* a\n"comment", */', "/**/", "//\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // one\n "b": 2}', {"a": 1, "b": 2}),
        ('/* before */ {"a": [1, 2, ], }', {"a": [1, 2]}),
        ('{"a": "// not /* a */ comment,]"}', {"a": "// not /* a */ comment,]"}),
        ('{"a": "quote \\" // inside"}', {"a": 'quote " // inside'}),
        ('{"a": "back\\\\" /* , */ , }', {"a": "back\\"}),
        ("[1, /* , */ // ,\n ]", [1]),
        ('{"a": [[], ], "b": {}, }', {"a": [[]], "b": {}}),
        ("[1]// to the end", [1]),
        ("{}\r\n// windows\r\n", {}),
        ("/***/{}/* * / **/", {}),
    ],
)
def test_what_is_allowed(text: str, value: object) -> None:
    assert parse_jsonc(text) == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("[,]", 1),
        ("{,}", 1),
        ("[1,,]", 1),
        ("[1 2]", 1),
        ("{\n  'a': 1\n}", 2),
        ("{\n  a: 1\n}", 2),
        ('{\n  // one\n  /* two\n  three */ "a" 1\n}', 4),
        ('{\n\n  "a": 1 /* never ends\n}', 3),
        ("{} /*/", 1),
        ('{"a": "never ends\n}', 1),
        ('{"a": 1,\n "b": /}', 2),
        ("{} {}", 1),
        ("1,", 1),
    ],
)
def test_what_is_not(text: str, line: int) -> None:
    with pytest.raises(MalformedFile) as caught:
        parse_jsonc(text)
    assert caught.value.line == line


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '"\\ud800"', "[" * 100_000, "9" * 5000])
def test_what_python_would_choke_on(text: str) -> None:
    for parse in (parse_json, parse_jsonc):
        with pytest.raises(MalformedFile):
            parse(text)


def test_plain_json_has_no_comments() -> None:
    with pytest.raises(MalformedFile):
        parse_json('{"a": 1, // one\n "b": 2}')


@settings(deadline=None)
@given(JSON)
def test_json_is_read_as_json(value: object) -> None:
    for indent in (None, 2):
        assert parse_jsonc(json.dumps(value, indent=indent)) == value


@settings(deadline=None)
@given(JSON, st.data())
def test_comments_and_commas_change_nothing(value: object, data: st.DataObject) -> None:
    def fill() -> str:
        return data.draw(st.sampled_from(FILLERS))

    def spell(one: object) -> str:
        if isinstance(one, list):
            parts = [spell(inner) for inner in one]
        elif isinstance(one, dict):
            parts = [f"{json.dumps(key)}{fill()}:{spell(inner)}" for key, inner in one.items()]
        else:
            return fill() + json.dumps(one) + fill()
        trailing: bool = data.draw(st.booleans())
        last = "," if parts and trailing else ""
        inside = (fill() + "," + fill()).join(parts) + fill() + last + fill()
        return f"[{inside}]" if isinstance(one, list) else f"{{{inside}}}"

    assert parse_jsonc(spell(value)) == value


@settings(deadline=None)
@given(st.text('{}[],:"\\/*\n a1') | st.text())
def test_anything_is_read_or_malformed(text: str) -> None:
    strict: object = MalformedFile
    with contextlib.suppress(MalformedFile):
        strict = parse_json(text)
    lenient: object = MalformedFile
    with contextlib.suppress(MalformedFile):
        lenient = parse_jsonc(text)
    # What is JSON already means the same with comments allowed.
    assert strict is MalformedFile or lenient == strict
