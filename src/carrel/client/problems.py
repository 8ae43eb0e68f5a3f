"""From an answer that is a problem to the error it stands for, and from broken connections to
errors with a hint. Imported when something goes wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from carrel.client.address import Address
from carrel.client.http import ProtocolError
from carrel.domain.errors import CarrelError, DaemonUnavailable, error_class

_OWN = frozenset({"type", "title", "status", "code", "detail", "hint"})


class ConnectionBroken(DaemonUnavailable):
    """There was a daemon, and it went away before it answered: what was asked may be done."""


def error_from(problem: Mapping[str, object], status: int = 500) -> CarrelError:
    """The error of a problem document; `details` are its further members."""
    code = str(problem.get("code") or "internal")
    message = problem.get("detail") or problem.get("title") or f"The daemon answered {status}."
    details = {str(name): value for name, value in problem.items() if name not in _OWN}
    error = error_class(code)(str(message), hint=str(problem.get("hint") or ""))
    error.details.update(details)
    return error


def error_of(status: int, body: bytes) -> CarrelError:
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": f"The daemon answered {status} and nothing that explains it."}
    return error_from(problem, status)


def unreadable(why: str) -> DaemonUnavailable:
    return DaemonUnavailable(
        f"The daemon's answer cannot be read: {why}.",
        hint="It may have another version: run `carrel status`.",
    )


def unreachable(place: Address, error: Exception) -> DaemonUnavailable:
    """Nobody listens there."""
    if not place.socket:
        return DaemonUnavailable(
            f"There is no daemon at {place}: {_reason(error)}.",
            hint="Check CARREL_URL, and that it was started with --listen.",
        )
    if isinstance(error, PermissionError):
        return DaemonUnavailable(
            f"The daemon's socket {place} belongs to another user.",
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
    if isinstance(error, ProtocolError):
        message = f"The daemon's answer cannot be read: {str(error)[:1].lower()}{str(error)[1:]}"
        return ConnectionBroken(message, hint="Try again; `carrel status` shows its state.")
    return ConnectionBroken(
        f"The connection to the daemon was lost: {_reason(error)}.",
        hint="Check whether it was done before you try again.",
    )


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


# The hub


class ConnectionLost(ConnectionBroken):
    """The connection broke before the answer came: nobody knows whether it was done."""

    code = "connection_lost"


def error_in(problem: object) -> CarrelError:
    """What the payload of an `error` says, or the `error` of a response, which is whatever
    another client wrote."""
    found = dict(problem) if isinstance(problem, Mapping) else {"message": problem}
    found["detail"] = found.pop("message", "") or "This was refused, and nobody said why."
    return error_from(found)
