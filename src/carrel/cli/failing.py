"""How things that went wrong are told: one sentence, a hint, an exit code."""

from __future__ import annotations

import contextlib
import json
import os

from carrel.cli.output import is_terminal, tell
from carrel.client.exits import NO_COMMAND, NOT_EXECUTABLE
from carrel.domain.errors import CarrelError

FAILED, USAGE, NOT_FOUND, CONFLICT, DENIED, NO_DAEMON, CANNOT, UNSOUND = range(1, 9)
"""The exit codes of Carrel's own errors; docs/cli.md says what each means."""
INTERRUPTED, PIPE_CLOSED = 130, 141

CODES = {
    **dict.fromkeys(
        (
            "message_invalid",
            "space_invalid",
            "settings_invalid",
            "request_invalid",
            "unsupported_frontend",
            "provider_mismatch",
            "model_not_supported",
        ),
        USAGE,
    ),
    **dict.fromkeys(
        (
            "space_not_found",
            "run_not_found",
            "token_not_found",
            "base_not_found",
            "path_not_found",
            "project_not_found",
            "ref_not_found",
            "tree_not_found",
            "sandbox_not_found",
            "no_receiver",
            "turn_not_found",
            "continuation_not_found",
            "credential_not_found",
            "instance_not_found",
            "server_not_found",
            "request_not_found",
            "version_not_found",
            "workspace_gone",
        ),
        NOT_FOUND,
    ),
    **dict.fromkeys(
        (
            "unexported_changes",
            "state_conflict",
            "name_taken",
            "space_ambiguous",
            "base_in_use",
            "path_exists",
            "tree_exists",
            "idempotency_key_reused",
            "daemon_running",
            "too_many_instances",
            "request_id_reused",
            "cancelled",
            "capacity",
        ),
        CONFLICT,
    ),
    **dict.fromkeys(
        ("authentication_failed", "forbidden", "path_denied", "permission_denied"), DENIED
    ),
    **dict.fromkeys(("daemon_unavailable",), NO_DAEMON),
    **dict.fromkeys(
        (
            "sandbox_unavailable",
            "isolation_unproven",
            "limits_unavailable",
            "launcher_unavailable",
            "tree_unavailable",
            "tree_damaged",
            "insufficient_disk",
            "store_damaged",
            "store_busy",
            "store_too_new",
            "store_read_only",
            "server_not_installed",
        ),
        CANNOT,
    ),
    "command_not_found": NO_COMMAND,
    "command_not_executable": NOT_EXECUTABLE,
}


class Failure(Exception):
    """An error of a verb whose exit code is not the usual one."""

    def __init__(self, error: Exception, code: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.code = code


def report(error: BaseException, as_json: bool = False) -> int:
    """Tells it on standard error, and gives the exit code. Never a traceback, unless
    CARREL_DEBUG asks for one."""
    if os.environ.get("CARREL_DEBUG") and isinstance(error, Exception):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, KeyboardInterrupt):
        _write("\n" if is_terminal(2) else "")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return _without_reader()
    if isinstance(error, Failure):
        code, known = error.code, told(error.error)
    else:
        code, known = exit_code(error), told(error)
    if as_json:
        _write(json.dumps(problem(known)) + "\n")
    else:
        _write(f"carrel: {known.message}\n" + (f"hint: {known.hint}\n" if known.hint else ""))
    return code


def exit_code(error: BaseException) -> int:
    return CODES.get(error.code, FAILED) if isinstance(error, CarrelError) else FAILED


def told(error: BaseException) -> CarrelError:
    """The error as it is told: what is not ours is put into a sentence."""
    if isinstance(error, CarrelError):
        return error
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return CarrelError(f"{where}{error.strerror}.")
    return CarrelError(
        f"This should not have happened: {type(error).__name__}: {error}.",
        hint="With CARREL_DEBUG=1 it says where. Please report it.",
    )


def problem(error: CarrelError) -> dict[str, object]:
    found = {"code": error.code, "detail": error.message, "hint": error.hint}
    return {**found, **{name: value for name, value in error.details.items() if _plain(value)}}


def _plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _without_reader() -> int:
    """Whoever read our output is gone; Python would complain once more when it ends."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return PIPE_CLOSED


def _write(text: str) -> None:
    # When nobody listens on standard error either, the exit code says it.
    with contextlib.suppress(OSError):
        tell(text)
