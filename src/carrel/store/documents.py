"""Records as JSON documents, and back."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast, get_args

import msgspec

from carrel.domain.storing import Record

Kind = TypeVar("Kind")

GREATEST = 2**63 - 1
"""SQLite's greatest whole number."""


class Unreadable(Exception):
    """A document that is none of its kind."""


def dump(record: object) -> str:
    """Raises TypeError for what JSON has no words for."""
    try:
        return msgspec.json.encode(record).decode()
    except UnicodeEncodeError:
        # Names of files need not be UTF-8; Python then uses lone surrogates, which only
        # its own JSON writes, as escapes.
        return json.dumps(msgspec.to_builtins(record))


def dump_checked(record: object) -> str:
    """For what is read as a whole later: one that cannot be would spoil every list that it
    is in. Raises TypeError and ValueError."""
    document = dump(record)
    try:
        load(type(record), document)
    except Unreadable as error:
        raise ValueError(f"It cannot be stored: {error}.") from None
    return document


def load(kind: type[Kind], document: str) -> Kind:
    """Fields that are missing get their default, those that are not known are passed over.
    Raises `Unreadable`."""
    try:
        return cast(Kind, _decoders[kind].decode(document))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        try:
            return msgspec.convert(json.loads(document), kind)
        except (msgspec.ValidationError, ValueError):
            raise Unreadable(f"a record of a {kind.__name__} cannot be read: {error}") from None


def column(text: str) -> str:
    """How a text is written in a column that is searched: as it is, but for what SQLite
    cannot keep or compare."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")


_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in get_args(Record)
}
"""Before there are threads: msgspec notes on a class how it is read, and another thread that
comes across a note that is not whole crashes the process."""
