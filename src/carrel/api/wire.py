"""Types of the contract as they come over a wire: from JSON, and from the text of a query.

A byte of a file's name that is no UTF-8 is a lone surrogate, U+DC80 to U+DCFF, as `os.fsdecode`
has it. In JSON that is the escape `\\udc80` to `\\udcff`. Only fields with `OS_TEXT` may have it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from carrel.api.types.common import END, OS_TEXT, WORDS
from carrel.domain.errors import MessageInvalid

T = TypeVar("T")
MAX_SHOWN = 300
_PLACE = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<place>[^`]*)`)?", re.DOTALL)
_VALUE = re.compile(r"(?P<what>Invalid (?:enum )?value) .*", re.DOTALL)
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_SURROGATE = "It has a surrogate that stands for no character"
_WANTED = re.compile(
    r"Expected (?:`str` matching regex '(?P<pattern>.*)'|(?P<bound>`str` of length <= \d+))",
    re.DOTALL,
)
_HINT = "The paths and their fields are described at /v1/openapi.json."


def prepare(kind: Any) -> None:
    """Before there are threads: msgspec notes on a class how it is read, and another thread that
    comes across a note that is not whole crashes the process."""
    msgspec.json.Decoder(kind)


def from_json(data: bytes, kind: type[T], where: str = "body") -> T:
    """Raises `MessageInvalid`, which names the field by its way from `where`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if b"\\u" not in data:
            raise _not_json(where) from None
    # It may be for a lone surrogate only.
    try:
        # Decoded here: from bytes it would take other encodings too.
        plain = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _not_json(where) from None
    return from_plain(plain, kind, where)


def from_plain(value: Any, kind: type[T], where: str = "body", *, strict: bool = True) -> T:
    """From what a JSON parser gave, or (not `strict`) with numbers that are still texts."""
    try:
        found = msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), where) from None
    except UnicodeEncodeError:
        # In a name, or where a number or one of some words is to be.
        raise _faulty(where or "frame", _SURROGATE) from None
    _check_texts(found, _info(kind), where)
    return found


def from_query(values: Mapping[str, list[str]], kind: type[T]) -> T:
    """`values` has every value of each name. One that is given twice is taken only for a list."""
    plain: dict[str, Any] = {}
    fields = {one.encode_name: one for one in cast(inspect.StructType, _info(kind)).fields}
    for name, given in values.items():
        if name not in fields or isinstance(_bare(fields[name].type), inspect.VarTupleType):
            plain[name] = given
        elif len(given) == 1:
            plain[name] = given[0]
        else:
            raise _faulty(f"query.{name}", "It is given more than once")
    return from_plain(plain, kind, "query", strict=False)


_infos: dict[Any, inspect.Type] = {}


def _info(kind: type) -> inspect.Type:
    if kind not in _infos:
        _infos[kind] = inspect.type_info(kind)
    return _infos[kind]


def _check_texts(value: Any, kind: inspect.Type, place: str) -> None:
    """That only texts which may have bytes that are no text have them. Raises `MessageInvalid`."""
    os_text = False
    while isinstance(kind, inspect.Metadata):
        os_text = os_text or kind.extra == OS_TEXT
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        fitting = [one for one in kind.types if _fits(value, one)]
        if fitting:
            _check_texts(value, fitting[0], place)
    elif isinstance(value, str) or isinstance(kind, inspect.AnyType):
        # Anything is looked at as a whole: one by one it would take long, and longer with names
        # that are long.
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        try:
            text.encode("utf-8", "surrogateescape" if os_text else "strict")
        except UnicodeEncodeError:
            raise _faulty(place.lstrip("."), _SURROGATE) from None
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            _check_texts(getattr(value, field.name), field.type, f"{place}.{field.encode_name}")
    elif isinstance(kind, inspect.DictType):
        for key, inner in value.items():
            _check_texts(key, kind.key_type, place)
            _check_texts(inner, kind.value_type, f"{place}.{key}")
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        for number, inner in enumerate(value):
            _check_texts(inner, kind.item_type, f"{place}.{number}")


_SHAPES: dict[type, type] = {
    inspect.StrType: str,
    inspect.DictType: dict,
    inspect.VarTupleType: tuple,
    inspect.ListType: list,
}


def _fits(value: Any, kind: inspect.Type) -> bool:
    """Whether it is what a value of a union was taken for."""
    kind = _bare(kind)
    if isinstance(kind, inspect.StructType):
        return isinstance(value, kind.cls)
    return isinstance(value, _SHAPES.get(type(kind), ()))


def _bare(kind: inspect.Type) -> inspect.Type:
    """Without what was noted on it."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return kind


def _refuse(word: str) -> None:
    raise ValueError(word)


def _not_json(where: str) -> MessageInvalid:
    return MessageInvalid("The body is not valid JSON.", hint="Send JSON in UTF-8.", field=where)


def _invalid(text: str, where: str) -> MessageInvalid:
    """From msgspec's words: `Expected … - at $.limits.pids`."""
    found = _PLACE.fullmatch(text)
    assert found is not None
    place = re.sub(r"\[(\w+)\]", r".\1", found["place"] or "").replace("[...]", "")
    what = found["what"]
    if (value := _VALUE.fullmatch(what)) is not None:
        # What was sent is not repeated: it may be a secret.
        what = value["what"]
    if (wanted := _WANTED.fullmatch(what)) is not None:
        what = WORDS.get(wanted["pattern"] or wanted["bound"], what)
    # As people write the end of a pattern.
    what = what.replace(END.replace("\\", "\\\\"), "$")
    named = _FIELD.fullmatch(what)
    if named is not None:
        place += f".{named['name']}"
        what = "Field required" if "missing" in what[:15] else "No such field is known"
    return _faulty(f"{where}{place}".lstrip("."), what)


def _faulty(place: str, what: str) -> MessageInvalid:
    place, what = place[:200], what[:MAX_SHOWN]
    return MessageInvalid(
        f"{place}: {what}.",
        hint=_HINT,
        field=place,
        errors=[{"field": place, "message": what}],
    )
