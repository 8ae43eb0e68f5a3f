"""Writing a sandbox down, and loading it again after the daemon died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from carrel.domain.errors import SandboxNotFound
from carrel.domain.runtimes import Sandbox


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode(kind: type, value: Any) -> Any:
    if issubclass(kind, Path) and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind.__name__)


# Before there are threads: msgspec notes on a class how it is read, and another thread that
# comes across a note that is not whole crashes the process.
_decoder = msgspec.json.Decoder(Sandbox, dec_hook=_decode)


def dump(sandbox: Sandbox) -> bytes:
    return msgspec.json.encode(sandbox, enc_hook=_encode)


def load(written: bytes) -> Sandbox:
    """Raises `SandboxNotFound` for what is no handle of ours."""
    try:
        return _decoder.decode(written)
    except msgspec.DecodeError as error:
        raise SandboxNotFound(f"This is no handle of a sandbox: {error}.") from None
