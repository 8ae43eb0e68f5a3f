"""YAML as a stranger wrote it: bounded before it is read, and read without any of its types.

PyYAML's parser says what is in the text; nothing is ever constructed of it. Aliases can make a page
of text into gigabytes, nesting can end a recursive reader: both are counted first. Of plain words
only `null`, `true`, `false` and numbers are more than text, so that a port `22:22` is no number of
base sixty, and `on` is a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping

import yaml

from carrel.environments.files import BoundReached, MalformedFile

MOST_EVENTS = 20_000
"""Scalars, beginnings and ends in a file. Large compose files have two thousand."""
MOST_DEPTH = 24
MOST_VALUES = 40_000
"""With what aliases repeat."""
MOST_BYTES = 1 << 20
"""Of all texts together, with what aliases repeat."""
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?[0-9]{0,15}\.[0-9]{1,15}")
_PLAIN = re.compile(r"tag:yaml\.org,2002:(?:null|bool|int|float|str|timestamp|merge|value|binary)")
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_CONSTANTS |= {"true": True, "True": True, "TRUE": True}
_CONSTANTS |= {"false": False, "False": False, "FALSE": False}
_MERGE = "<<"


def parse_yaml(text: str) -> object:
    """Dicts by texts, lists, texts, numbers, booleans and None. Raises `MalformedFile`."""
    try:
        _check(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise MalformedFile(_told(error), _line(error)) from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise MalformedFile(f"It is no YAML that can be read: {error}"[:200]) from None
    return None if node is None else _Values().of(node, 0)


def _check(text: str) -> None:
    """By the parser's events, which need no memory of what was before."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader), 1):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if count > MOST_EVENTS or depth > MOST_DEPTH:
            raise BoundReached("It has more entries, or is nested deeper, than is read.")


def _told(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", "") or "it cannot be parsed"
    return f"It is not YAML: {problem}."[:200]


def _line(error: yaml.YAMLError) -> int | None:
    mark = getattr(error, "problem_mark", None)
    return None if mark is None else int(mark.line) + 1


class _Values:
    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0

    def of(self, node: yaml.Node, depth: int) -> object:
        self._count += 1
        if self._count > MOST_VALUES or depth > MOST_DEPTH:
            raise BoundReached("Its aliases stand for more than is read.")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if not node.tag.startswith("tag:yaml.org,2002:"):
            raise MalformedFile(f"The tag {node.tag[:80]!r} is not known.", _at(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.of(one, depth + 1) for one in node.value]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth)
        raise MalformedFile("It has a node of an unknown kind.", _at(node))

    def _scalar(self, node: yaml.ScalarNode) -> object:
        text = str(node.value)
        self._bytes += len(text)
        if self._bytes > MOST_BYTES:
            raise BoundReached("Its aliases stand for more than is read.")
        if not _PLAIN.fullmatch(node.tag):
            raise MalformedFile(f"The tag {node.tag[:80]!r} is not known.", _at(node))
        if node.style:
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            return number if math.isfinite(number) else text
        return text

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise MalformedFile("A key is no text.", _at(key_node))
            key = str(key_node.value)
            value = self.of(value_node, depth + 1)
            if key != _MERGE or key_node.style:
                found[key] = value
                continue
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, dict):
                    raise MalformedFile("Only mappings can be merged.", _at(key_node))
                merged = {**one, **merged}
        return {**merged, **found}


def _at(node: yaml.Node) -> int | None:
    return None if node.start_mark is None else int(node.start_mark.line) + 1


# References to variables

_REFERENCE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>[A-Za-z_][A-Za-z0-9_]*)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*))"
)
_OPERATOR = re.compile(r":?[-?+]")
MOST_TEXT = 64 << 10
"""Of one value with its references replaced."""
MOST_REPLACED = MOST_BYTES
"""Of all values of a file together that have references: each may repeat a long one."""


class ReplacedTexts:
    """Replaces references in the values of a file, until they are larger than is read."""

    def __init__(self) -> None:
        self._size = 0

    def of(self, text: str, variables: Mapping[str, str], unset: Callable[[str], None]) -> str:
        """As `interpolated`."""
        if "$" not in text:
            return text
        found = interpolated(text, variables, unset)
        self._size += len(found)
        if self._size > MOST_REPLACED:
            raise BoundReached("Its values with their variables are longer than is read.")
        return found


MOST_NESTED = 8


def interpolated(text: str, variables: Mapping[str, str], unset: Callable[[str], None]) -> str:
    """With `$NAME` and `${NAME:-otherwise}` replaced, as compose files have them. `unset` hears of
    names that have no value, and stand for nothing. Raises `MalformedFile`."""
    if "$" not in text:
        return text
    found, end = _expanded(text, 0, variables, unset, 0)
    assert end == len(text)
    return found


def _expanded(
    text: str, at: int, variables: Mapping[str, str], unset: Callable[[str], None], depth: int
) -> tuple[str, int]:
    """Up to the end, or below the top to the brace that closes it."""
    if depth > MOST_NESTED:
        raise MalformedFile("References to variables are nested too deep.")
    parts: list[str] = []
    size = 0
    while at < len(text):
        if text[at] == "}" and depth:
            return "".join(parts), at
        if text[at] != "$":
            end = at + 1
            while end < len(text) and text[end] != "$" and not (depth and text[end] == "}"):
                end += 1
            part, at = text[at:end], end
        else:
            part, at = _reference(text, at, variables, unset, depth)
        parts.append(part)
        size += len(part)
        if size > MOST_TEXT:
            raise BoundReached("A value with its variables is longer than is read.")
    if depth:
        raise MalformedFile(f"{text[:60]!r} has a reference that is not closed.")
    return "".join(parts), at


def _reference(
    text: str, at: int, variables: Mapping[str, str], unset: Callable[[str], None], depth: int
) -> tuple[str, int]:
    match = _REFERENCE.match(text, at)
    if match is None:
        raise MalformedFile(f"{text[:60]!r} has a reference that cannot be read; write $$ for $.")
    if match["escaped"]:
        return "$", match.end()
    name = match["plain"] or match["name"]
    value = variables.get(name)
    if match["plain"]:
        if value is None:
            unset(name)
        return value or "", match.end()
    at = match.end()
    if text[at : at + 1] == "}":
        if value is None:
            unset(name)
        return value or "", at + 1
    operator = _OPERATOR.match(text, at)
    if operator is None:
        raise MalformedFile(f"{text[:60]!r} has a reference that cannot be read; write $$ for $.")
    there = value is not None and (value != "" or not operator[0].startswith(":"))
    kind = operator[0][-1]
    quiet: Callable[[str], None] = unset if there == (kind == "+") else (lambda _name: None)
    other, end = _expanded(text, operator.end(), variables, quiet, depth + 1)
    if kind == "+":
        return other if there else "", end + 1
    if there:
        return value or "", end + 1
    if kind == "?":
        raise MalformedFile(f"The variable {name} is needed: {other[:100] or 'it has no value'}.")
    return other, end + 1


# Files with variables

_QUOTED = re.compile(r"""(?P<quote>["'])(?P<text>.*)(?P=quote)\s*(?:#.*)?""")
_VARIABLE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\s*[=:]\s?(?P<rest>.*)")


def variables_in(text: str) -> dict[str, str]:
    """Of a `.env` file. Lines that are none are left out. Raises `BoundReached`."""
    return dict(_lines(text))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    known: dict[str, str] = {}
    replaced = ReplacedTexts()
    for line in text.splitlines():
        match = _VARIABLE.fullmatch(line.strip())
        if match is None:
            continue
        rest = match["rest"].strip()
        quoted = _QUOTED.fullmatch(rest)
        if quoted is None:
            value = re.split(r"\s#", rest)[0].strip() if not rest.startswith("#") else ""
        else:
            value = quoted["text"]
        if "\0" in value:
            continue
        if quoted is None or quoted["quote"] == '"':
            try:
                value = replaced.of(value, known, lambda _name: None)
            except BoundReached:
                raise
            except MalformedFile:
                # It is as it is written.
                pass
        known[match["name"]] = value
        yield match["name"], value
