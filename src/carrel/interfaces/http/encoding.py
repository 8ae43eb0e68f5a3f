"""JSON out: fast, and without a loss for names that are no UTF-8."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

JSON = "application/json"
_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        # A lone surrogate stands for a byte that is no UTF-8: see `texts`.
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


def moment(at: float) -> str:
    """RFC 3339, in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def moment_or_none(at: float | None) -> str | None:
    return None if at is None else moment(at)


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type=JSON)


def bytes_answer(data: bytes, headers: Mapping[str, str], status: int = 200) -> Response:
    """What somebody's program wrote: never to be looked at as a page."""
    safe: dict[str, Any] = {"X-Content-Type-Options": "nosniff", **headers}
    return Response(data, status, safe, media_type="application/octet-stream")
