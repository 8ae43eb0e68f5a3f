"""How a turn ended: made, written down and read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carrel.domain.agents import TurnError, TurnResult
from carrel.domain.errors import AgentCrashed, CarrelError


def failed(error: CarrelError) -> TurnResult:
    said = {"hint": error.hint, **error.details} if error.hint else error.details
    return TurnResult(False, error=TurnError(error.code, error.message, said))


def payload_of(result: TurnResult) -> dict[str, object]:
    """As it stands in a `complete` event."""
    return {
        "success": result.success,
        "final_output": result.final_output,
        "error": error_of(result.error),
    }


def error_of(error: TurnError | None) -> dict[str, object] | None:
    if error is None:
        return None
    return {"code": error.code, "message": error.message, "details": dict(error.details)}


def result_of(payload: object) -> TurnResult:
    """What `payload_of` wrote; anything else is a crash, for it cannot be believed."""
    if not isinstance(payload, Mapping) or not isinstance(payload.get("success"), bool):
        return failed(AgentCrashed("The agent's last word was not understood."))
    said: Mapping[str, Any] = payload
    error = said.get("error")
    return TurnResult(
        said["success"],
        str(said.get("final_output") or ""),
        _read_error(error) if isinstance(error, Mapping) else None,
    )


def _read_error(error: Mapping[str, Any]) -> TurnError:
    details = error.get("details")
    return TurnError(
        str(error.get("code") or AgentCrashed.code),
        str(error.get("message") or ""),
        dict(details) if isinstance(details, Mapping) else {},
    )
