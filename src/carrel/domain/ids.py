"""Opaque identifiers: a prefix and twelve lower-case base32 characters."""

from __future__ import annotations

import base64
import re
import secrets

_PATTERN = re.compile(r"(sp|de|v[a-z]|ru|sh|ss|in|ld|co|tk|ck|qe)_[a-z2-7]{12}")
_BESIDE = re.compile(r"(?:de|v[a-z])_")
"""How the sandboxes of a space begin that are not its first."""


def new_id(prefix: str) -> str:
    """A fresh id such as `sp_k3v…`; sixty random bits, never reused."""
    return f"{prefix}_{base64.b32encode(secrets.token_bytes(8))[:12].decode().lower()}"


def dev_id(space_id: str) -> str:
    """Of the sandbox of a space that has its image."""
    return f"de_{space_id.removeprefix('sp_')}"


def space_of(sandbox_id: str) -> str:
    """Whose sandbox it is; for others than spaces', itself."""
    return f"sp_{sandbox_id[3:]}" if _BESIDE.match(sandbox_id) else sandbox_id


def service_id(space_id: str, index: int) -> str:
    """Of the sandbox of a space's service, by its place among them."""
    return f"v{chr(ord('a') + index)}_{space_id.removeprefix('sp_')}"


def is_id(text: str) -> bool:
    """Whether it is an id of a space, a run, an instance, or of something of a review."""
    return _PATTERN.fullmatch(text) is not None
