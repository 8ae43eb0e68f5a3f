"""Small JSON files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import Any


def write_record(path: str, record: dict[str, Any]) -> None:
    partial = f"{path}.partial"
    content = json.dumps(record).encode()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, "the disk is full")
    finally:
        os.close(descriptor)
    os.rename(partial, path)


def read_record(path: str) -> dict[str, Any] | None:
    """None when there is none, or none of ours."""
    try:
        with open(path) as file:
            record = json.load(file)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def remove_record(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
