"""What a driver's program reads and writes: JSON, one object a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from carrel.domain.agents import AgentEventType, Control, Seat, Told, TurnRequest


@dataclass(frozen=True)
class Start:
    """The first line. `driver` is `module:name` of what makes the driver when it is called
    with `options`."""

    driver: str
    request: TurnRequest
    seat: Seat
    options: Mapping[str, object] = field(default_factory=dict)


_encoder = msgspec.json.Encoder(enc_hook=str)
_start = msgspec.json.Decoder(Start)
_told = msgspec.json.Decoder(Told)
_control = msgspec.json.Decoder(Control)


def line_of(value: Start | Control) -> bytes:
    return _encoder.encode(value) + b"\n"


def told_line(told: Told) -> bytes:
    """Never raises: what cannot be written as JSON is told as Python shows it."""
    try:
        return _encoder.encode(told) + b"\n"
    except (TypeError, ValueError, RecursionError, UnicodeError):
        shown = ascii(told.payload)[:4096]
        return (
            _encoder.encode(Told(AgentEventType.LOG, {"raw": shown}, ascii(told.key)[1:-1])) + b"\n"
        )


def read_start(line: bytes) -> Start:
    """Raises `ValueError`."""
    return _start.decode(line)


def read_control(line: bytes) -> Control:
    """Raises `ValueError`."""
    return _control.decode(line)


def read_told(line: bytes) -> Told | None:
    """None: this is no such line."""
    try:
        return _told.decode(line)
    except (ValueError, RecursionError):
        return None
