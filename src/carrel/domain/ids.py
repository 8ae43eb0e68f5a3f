"""Opaque identifiers: a prefix and twelve lower-case base32 characters."""

from __future__ import annotations

import base64
import re
import secrets

_PATTERN = re.compile(r"(sp|ru|in|ld|co|tk|ck|qe)_[a-z2-7]{12}")


def new_id(prefix: str) -> str:
    """A fresh id such as `sp_k3v…`; sixty random bits, never reused."""
    return f"{prefix}_{base64.b32encode(secrets.token_bytes(8))[:12].decode().lower()}"


def is_id(text: str) -> bool:
    """Whether it is an id of a space, a run, an instance, or of something of a review."""
    return _PATTERN.fullmatch(text) is not None
