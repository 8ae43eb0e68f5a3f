"""Where a page of spaces ends, as a word that callers hand back."""

from __future__ import annotations

import base64
import math

from carrel.domain.errors import MessageInvalid


def to_cursor(created_at: float, space_id: str) -> str:
    """A place in the list rather than a count, so that it holds while spaces come and go."""
    return base64.urlsafe_b64encode(f"{created_at!r} {space_id}".encode()).decode().rstrip("=")


def from_cursor(cursor: str) -> tuple[float, str]:
    """Raises `MessageInvalid`."""
    try:
        text = base64.b64decode(
            f"{cursor}{'=' * (-len(cursor) % 4)}".encode("ascii"), altchars=b"-_", validate=True
        ).decode()
        created_at, _space, space_id = text.partition(" ")
        place = float(created_at), space_id
    except ValueError:
        place = math.nan, ""
    if not math.isfinite(place[0]) or not place[1]:
        raise MessageInvalid(
            "This is no cursor of a page of spaces.", hint="Take it from the page before."
        )
    return place
