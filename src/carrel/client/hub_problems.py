"""What goes wrong with the hub. Imported when something does."""

from __future__ import annotations

from collections.abc import Mapping

from carrel.client.problems import ConnectionBroken, error_from
from carrel.domain.errors import CarrelError


class ConnectionLost(ConnectionBroken):
    """The connection broke before the answer came: nobody knows whether it was done."""

    code = "connection_lost"


def error_in(problem: object) -> CarrelError:
    """What the payload of an `error` says, or the `error` of a response, which is whatever
    another client wrote."""
    found = dict(problem) if isinstance(problem, Mapping) else {"message": problem}
    found["detail"] = found.pop("message", "") or "This was refused, and nobody said why."
    return error_from(found)
