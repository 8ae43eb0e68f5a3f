"""What the programs' frontends ask of a turn before they start it, and make of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from uuid import UUID

from carrel.domain.agents import Provider, Seat, TurnRequest
from carrel.domain.errors import ContinuationNotFound, ProviderMismatch, ResolveFailed

_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?|HEADERS)$", re.IGNORECASE)


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


def prompt(request: TurnRequest, seat: Seat) -> str:
    """What the user says, and where to find what goes with it."""
    parts = [request.prompt]
    if request.attachments:
        named = "\n".join(f"- {attachment.path}" for attachment in request.attachments)
        parts.append(f"Files that go with this:\n{named}")
    if has_context(seat):
        parts.append(f"Instructions and documents for this work are in {seat.context}")
    return "\n\n".join(parts)


def secret_names(env: Mapping[str, str], more: Iterable[str] = ()) -> tuple[str, ...]:
    """Of what is given to an agent, what is shown nowhere: by the look of its name, and what
    is said to be."""
    return tuple(sorted({name for name in env if _SECRET.search(name)} | set(more)))
