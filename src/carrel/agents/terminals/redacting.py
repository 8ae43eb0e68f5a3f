"""What is on a screen may be a key: it is not written down."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?|HEADERS)$", re.IGNORECASE)
LEAST = 8
"""Characters of what can be a key: shorter values are words."""


def redacted(line: str, env: Mapping[str, str] | None = None) -> str:
    """Without the values that variables with telling names have in this process."""
    for name, value in (os.environ if env is None else env).items():
        if len(value) >= LEAST and _SECRET.search(name):
            line = line.replace(value, f"<{name}>")
    return line
