"""From an answer that is a problem to the error it stands for, and from broken connections to
errors with a hint. Imported when something goes wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from carrel.client.places import Place
from carrel.client.wire import WireError
from carrel.domain.errors import CarrelError, DaemonUnavailable

_OWN = frozenset({"type", "title", "status", "code", "detail", "hint"})
_DECLARED = CarrelError.__module__


class ConnectionBroken(DaemonUnavailable):
    """There was a daemon, and it went away before it answered: what was asked may be done."""


@cache
def _classes() -> dict[str, type[CarrelError]]:
    """By code. A base shares its code with its most usual kind, which is the one meant."""
    found: dict[str, type[CarrelError]] = {}
    level: list[type[CarrelError]] = [CarrelError]
    while level:
        found.update((kind.code, kind) for kind in level if kind.__module__ == _DECLARED)
        level = [below for kind in level for below in kind.__subclasses__()]
    return found


def error_from(problem: Mapping[str, object], status: int = 500) -> CarrelError:
    """The error of a problem document; `details` are its further members."""
    code = str(problem.get("code") or "internal")
    message = problem.get("detail") or problem.get("title") or f"The daemon answered {status}."
    details = {str(name): value for name, value in problem.items() if name not in _OWN}
    kind = _classes().get(code)
    if kind is None:
        # A newer daemon has errors that this client has not heard of.
        kind = type("UnknownError", (CarrelError,), {"code": code})
    error = kind(str(message), hint=str(problem.get("hint") or ""))
    error.details.update(details)
    return error


def error_of(status: int, body: bytes) -> CarrelError:
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": f"The daemon answered {status} and nothing that explains it."}
    return error_from(problem, status)


def unreadable(why: str) -> DaemonUnavailable:
    return DaemonUnavailable(
        f"The daemon's answer cannot be read: {why}.",
        hint="Is it of another version? `carrel status` shows.",
    )


def unreachable(place: Place, error: Exception) -> DaemonUnavailable:
    """Nobody listens there."""
    if not place.socket:
        return DaemonUnavailable(
            f"There is no daemon at {place}: {_reason(error)}.",
            hint="Check CARREL_URL, and that it was started with --listen.",
        )
    if isinstance(error, PermissionError):
        return DaemonUnavailable(
            f"The daemon's socket {place} is somebody else's.",
            hint="Run this as the daemon's user, or use a token: carrel token create.",
        )
    return DaemonUnavailable(
        f"No daemon runs for {place.data or place}.", hint="Start it: carrel up"
    )


def broken(error: Exception, timeout_s: float) -> ConnectionBroken:
    """The connection was there, and no (whole) answer came."""
    if isinstance(error, TimeoutError):
        return ConnectionBroken(
            f"The daemon did not answer within {timeout_s:g} seconds.",
            hint="`carrel status` shows whether it is well.",
        )
    if isinstance(error, WireError):
        message = f"The daemon's answer cannot be read: {str(error)[:1].lower()}{str(error)[1:]}"
        return ConnectionBroken(message, hint="Try again; `carrel status` shows its state.")
    return ConnectionBroken(
        f"The connection to the daemon was lost: {_reason(error)}.",
        hint="Look whether it was done before you try again.",
    )


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
