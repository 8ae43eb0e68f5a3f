"""Envelopes: what goes over the wire, one JSON object each."""

from __future__ import annotations

import itertools
import secrets
from typing import Annotated, Any

import msgspec

from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.domain.nesting import MAX_DEPTH, is_too_deep

MAX_ENVELOPE = 1 << 20
"""Bytes of one envelope. Files have other ways."""
MAX_ID = 128
NOTHING = msgspec.Raw(b"{}")
Id = Annotated[str, msgspec.Meta(max_length=MAX_ID)]


class Received(msgspec.Struct, forbid_unknown_fields=True):
    """From a client. The payload is looked at when its type is known; `seq` and `ts` are the
    hub's to give, and ignored."""

    type: str
    id: str = ""
    space: str = ""
    payload: msgspec.Raw = NOTHING
    reply_to: str = ""
    to: str = ""
    deadline_ms: int = 0
    sender: dict[str, Any] | None = None
    seq: int | None = None
    ts: float | None = None


class Said(msgspec.Struct, forbid_unknown_fields=True):
    """One message, before it has a number; so as one of many."""

    type: str
    payload: msgspec.Raw = NOTHING
    id: Id = ""
    reply_to: Id = ""


class Sender(msgspec.Struct, frozen=True, omit_defaults=True):
    client_id: str
    kind: str
    space: str = ""
    owner: bool = False
    """It has all the rights of the daemon's user: what it agrees to is agreed to by the owner."""


class Sent(msgspec.Struct, omit_defaults=True, tag_field=None):
    """To clients, and into the log."""

    type: str
    id: str
    ts: float
    sender: msgspec.Raw
    payload: msgspec.Raw
    space: str = ""
    seq: int = 0
    reply_to: str = ""
    to: str = ""
    deadline_ms: int = 0


_decoder = msgspec.json.Decoder(Received)
_encoder = msgspec.json.Encoder()


def decode(line: bytes) -> Received:
    """Raises `MessageInvalid`."""
    try:
        if b"\n" in line:
            # A frame may have line breaks; in the log each envelope is one line.
            line = msgspec.json.format(line, indent=-1)
        received = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageInvalid(
            f"This is not a valid envelope: {error}.", hint="Send one JSON object with a `type`."
        ) from None
    if not received.type or len(received.id) > MAX_ID or len(received.reply_to) > MAX_ID:
        raise MessageInvalid(
            "An envelope needs a type, and its ids have at most 128 characters.",
            hint="Set `type`, or shorten the ids.",
        )
    return received


def check_depth(line: bytes) -> None:
    """Of an envelope that was decoded, so that its sender is told which one it was. Raises
    `MessageInvalid`."""
    if is_too_deep(line):
        raise MessageInvalid(
            f"An envelope has at most {MAX_DEPTH} levels of lists and objects.",
            hint="Put the deeper part into a file of the space, and send its name.",
        )


_OURS = secrets.token_hex(5)
_numbers = itertools.count(1)


def message_id() -> str:
    """Asked for with every answer, so chance is asked for once only."""
    return f"ms_{_OURS}{next(_numbers):x}"


def encode(value: object) -> bytes:
    return _encoder.encode(value)


def encode_lines(values: list[Sent]) -> bytes:
    """One line each; no line break at the end."""
    return _encoder.encode_lines(values)[:-1]


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))


SYSTEM = raw(Sender("system", "system"))
"""Carrel itself."""
_CODES = {"insufficient_disk": "insufficient_resources", "store_busy": "insufficient_resources"}
"""Codes of other interfaces that the hub's protocol has its own word for."""


def problem(error: CarrelError, original_id: str) -> dict[str, object]:
    """The payload of an `error`."""
    found: dict[str, object] = {
        "code": _CODES.get(error.code, error.code),
        "message": error.message,
    }
    if error.hint:
        found["hint"] = error.hint
    found["original_id"] = original_id
    for name in ("retry_after_ms", "question_id"):
        if name in error.details:
            found[name] = error.details[name]
    return found
