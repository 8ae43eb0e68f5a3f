"""What a driver's program reads and writes: JSON, one object a line.

What the program itself needs is done with the standard library: until anything faster is
loaded, most turns have written all their lines.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from carrel.domain.errors import FrontendNotInstalled
from carrel.domain.nesting import is_too_deep
from carrel.domain.turns import (
    AgentEventType,
    AgentServer,
    AgentSetup,
    Attachment,
    Continuation,
    Control,
    ControlKind,
    Driver,
    InteractionMode,
    Permission,
    Told,
    TurnRequest,
)

if TYPE_CHECKING:
    import msgspec


_plain = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
"""What is circular is too deep."""


@dataclass(frozen=True)
class Start:
    """The first line. `driver` is `module:name` of what makes the driver when it is called
    with `options`."""

    driver: str
    request: TurnRequest
    setup: AgentSetup
    options: Mapping[str, object] = field(default_factory=dict)


# The program's side


def told_line(told: Told) -> bytes:
    """The line of an event. Never raises: what is no JSON is written as Python shows it."""
    said = {"type": told.type, "payload": told.payload}
    if told.key:
        said["key"] = told.key
    try:
        return _plain(said).encode() + b"\n"
    except (TypeError, ValueError, RecursionError):
        return _odd_line(told)


def _odd_line(told: Told) -> bytes:
    """With what JSON has no word for."""
    encode = _encoder().encode
    try:
        return encode(told) + b"\n"
    except (TypeError, ValueError, RecursionError):
        shown = ascii(told.payload)[:4096]
        return encode(Told(AgentEventType.LOG, {"raw": shown}, ascii(told.key)[1:-1])) + b"\n"


def read_start(line: bytes) -> Start:
    """Raises `ValueError`."""
    found = _object(line)
    try:
        given = {name: _made(name, value) for name, value in found["request"].items()}
        # A terminal that an earlier version began says `seat`.
        setup = _setup(found["setup"] if "setup" in found else found["seat"])
        return Start(found["driver"], TurnRequest(**given), setup, found["options"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not whole ({error!r})") from None


def _setup(found: dict[str, Any]) -> AgentSetup:
    servers = tuple(AgentServer(**one) for one in found.get("servers", ()))
    names = ("mcp", "untrusted", "agreed", "also_read")
    lists = {name: tuple(found.get(name, ())) for name in names}
    return AgentSetup(**{**found, **lists, "servers": servers})


def _made(name: str, value: Any) -> Any:
    """A field of a request, from what JSON has made of it."""
    make = _MADE.get(name)
    return value if make is None or value is None else make(value)


_MADE: Mapping[str, Callable[[Any], object]] = {
    "continuation": lambda given: Continuation(**given),
    "permission": Permission,
    "attachments": lambda given: tuple(Attachment(**one) for one in given),
    "kits": tuple,
    "mode": InteractionMode,
}


def read_control(line: bytes) -> Control:
    """Raises `ValueError`."""
    found = _object(line)
    text, id = str(found.get("text", "")), str(found.get("id", ""))
    return Control(ControlKind(str(found.get("kind"))), text, id, found.get("allow") is True)


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


# The other side


def line_of(value: Start | Control) -> bytes:
    return _encoder().encode(value) + b"\n"


def read_told(line: bytes) -> Told | None:
    """None: this is no such line."""
    if is_too_deep(line):
        return None
    try:
        return _told()(line)
    except (ValueError, RecursionError):
        return None


@functools.cache
def _encoder() -> msgspec.json.Encoder:
    import msgspec

    return msgspec.json.Encoder(enc_hook=str)


@functools.cache
def _told() -> Callable[[bytes], Told]:
    import msgspec

    return msgspec.json.Decoder(Told).decode


# Drivers, loaded by name when they are used


def load(name: str, options: Mapping[str, object]) -> Driver:
    """The driver that `module:name` makes. Raises `FrontendNotInstalled`."""
    module, _, attribute = name.partition(":")
    try:
        driver: Driver = getattr(import_module(module), attribute)(**options)
    except ImportError as error:
        raise FrontendNotInstalled(f"The agent's driver cannot be loaded: {error}") from error
    return driver
