"""Opaque identifiers: a prefix and twelve lower-case base32 characters."""

from __future__ import annotations

import re
import secrets

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_PATTERN = re.compile(r"(sp|ba|ru)_[a-z2-7]{12}")


def new_id(prefix: str) -> str:
    """A fresh id such as `sp_k3v…`; sixty random bits, never reused."""
    return f"{prefix}_" + "".join(secrets.choice(_ALPHABET) for _ in range(12))


def is_id(text: str) -> bool:
    return _PATTERN.fullmatch(text) is not None
