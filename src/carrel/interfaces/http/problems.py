"""Errors as problem details (RFC 9457): the one place that gives codes a status."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from carrel.domain.errors import CarrelError, RequestError
from carrel.interfaces.http.encoding import encode

PROBLEM = "application/problem+json"
INTERNAL = "internal"

STATUS = {
    # What a space should start from was named in the body, so it is the body that is wrong.
    "project_not_found": 422,
    "project_not_a_folder": 422,
    "project_unreadable": 422,
    "project_read_only": 422,
    "project_in_use": 409,
    "project_changed": 409,
    "project_too_large": 422,
    "project_invalid": 422,
    "ref_not_found": 422,
    "git_failed": 422,
    "git_timeout": 422,
    "archive_invalid": 422,
    "insufficient_disk": 507,
    "tree_unavailable": 503,
    "tree_not_found": 404,
    "tree_exists": 409,
    "tree_damaged": 500,
    "base_not_found": 404,
    "base_in_use": 409,
    "path_escapes": 403,
    "path_invalid": 422,
    "path_not_found": 404,
    "path_exists": 409,
    "path_denied": 403,
    "path_wrong_kind": 409,
    "sandbox_unavailable": 503,
    "isolation_unproven": 503,
    "limits_unavailable": 422,
    "launcher_unavailable": 503,
    "sandbox_not_found": 404,
    "warm_unavailable": 503,
    "command_invalid": 422,
    "command_not_found": 422,
    "command_not_executable": 422,
    "run_not_found": 404,
    "space_not_found": 404,
    "space_ambiguous": 409,
    "space_invalid": 422,
    "name_taken": 409,
    "state_conflict": 409,
    "unexported_changes": 409,
    "idempotency_key_reused": 422,
    "authentication_failed": 401,
    "forbidden": 403,
    "token_not_found": 404,
    "message_invalid": 422,
    "too_large": 413,
    "rate_limited": 429,
    "no_receiver": 409,
    "timeout": 504,
    "slow_reader": 429,
    "insufficient_resources": 503,
    "resolve_failed": 422,
    "provider_mismatch": 422,
    "continuation_not_found": 404,
    "model_not_supported": 422,
    "unsupported_frontend": 422,
    "frontend_not_installed": 409,
    "empty_response": 502,
    "permission_denied": 403,
    "interrupted": 409,
    "agent_crashed": 502,
    "turn_not_found": 404,
    "credential_not_found": 404,
    "instance_error": 500,
    "instance_not_found": 404,
    "server_not_found": 404,
    "server_not_installed": 409,
    "instance_failed": 502,
    "too_many_instances": 429,
    "request_invalid": 422,
    "request_not_found": 404,
    "request_id_reused": 409,
    "cancelled": 409,
    "capacity": 429,
    "version_not_found": 404,
    "workspace_gone": 410,
    "store_damaged": 500,
    "store_busy": 503,
    "store_too_new": 500,
    "store_read_only": 503,
    "daemon_unavailable": 503,
    "daemon_running": 409,
    # Of HTTP itself.
    "route_not_found": 404,
    "method_not_allowed": 405,
    "range_not_satisfiable": 416,
    "request_timeout": 408,
    "header_too_large": 431,
    INTERNAL: 500,
}
_OWN = frozenset({"type", "title", "status", "code", "detail", "hint"})


class RouteNotFound(RequestError):
    code = "route_not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class RangeNotSatisfiable(RequestError):
    code = "range_not_satisfiable"


def status_of(code: str) -> int:
    return STATUS.get(code, 500)


def details_of(error: CarrelError) -> dict[str, object]:
    """The problem as members of a JSON object."""
    status = status_of(error.code)
    problem: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code,
        "detail": error.message,
    }
    if error.hint:
        problem["hint"] = error.hint
    for name, value in error.details.items():
        if name not in _OWN:
            problem[name] = _plain(value)
    return problem


def internal(log_id: str) -> CarrelError:
    """For what nobody foresaw: the client gets a number to look for, and nothing else."""
    return CarrelError(
        "Something went wrong in the daemon.",
        hint=f"Its log has more: look for {log_id}.",
        log=log_id,
    )


def problem_response(error: CarrelError, headers: dict[str, str] | None = None) -> Response:
    own = dict(headers or {})
    if error.code == "authentication_failed":
        own["WWW-Authenticate"] = "Bearer"
    if error.code == "rate_limited":
        own.setdefault("Retry-After", str(error.details.get("retry_after_s", 60)))
    body = encode(details_of(error))
    return Response(body, status_of(error.code), own, media_type=PROBLEM)


def _plain(value: object) -> object:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError):
        return str(value)
