"""What the programs' frontends ask of a turn before they start it, and make of it."""

from __future__ import annotations

import os
from uuid import UUID

from carrel.domain.agents import Provider, Seat, TurnRequest
from carrel.domain.errors import ContinuationNotFound, ProviderMismatch, ResolveFailed


def check(request: TurnRequest, frontend: str, provider: Provider) -> None:
    """Raises `ResolveFailed`, `ProviderMismatch`."""
    if request.kits:
        raise ResolveFailed("Kits are not supported yet.", kits=list(request.kits))
    asked = request.continuation
    if asked is not None and asked.provider != provider:
        raise ProviderMismatch(
            f"This conversation is of {asked.provider}; {frontend} goes on with those of "
            f"{provider} only."
        )


def asked_key(request: TurnRequest) -> str:
    return request.continuation.key if request.continuation else ""


def asked_uuid(request: TurnRequest) -> str:
    """The conversation to go on with; empty for a new one. Raises `ContinuationNotFound` for
    what is no UUID: programs take that for a title, or begin a new conversation."""
    key = asked_key(request)
    if request.continuation is None:
        return ""
    try:
        same = str(UUID(key)) == key.lower()
    except ValueError:
        same = False
    if not same:
        raise ContinuationNotFound(f"There is no conversation {key!r}.", asked=key)
    return key


def has_context(seat: Seat) -> bool:
    """Whether there are documents to read. A folder that only the sandbox shows is believed
    to have some."""
    if not seat.context:
        return False
    try:
        with os.scandir(seat.context) as found:
            return any(True for _ in found)
    except FileNotFoundError:
        return seat.confined
    except OSError:
        return False


def images(request: TurnRequest) -> list[str]:
    """Of what goes with the prompt, where the pictures are."""
    return [one.path for one in request.attachments if one.media_type.startswith("image/")]


def prompt(request: TurnRequest, seat: Seat) -> str:
    """What the user says, and where to find what goes with it."""
    parts = [request.prompt]
    if request.attachments:
        named = "\n".join(f"- {attachment.path}" for attachment in request.attachments)
        parts.append(f"Files that go with this:\n{named}")
    if has_context(seat):
        parts.append(f"Instructions and documents for this work are in {seat.context}")
    return "\n\n".join(parts)
