"""How errors are reported: one sentence, a hint, an exit code."""

from __future__ import annotations

import contextlib
import json
import os

from carrel.cli.call import FAILED
from carrel.cli.output import clean, complain, flush, is_terminal, shown
from carrel.domain.errors import CarrelError, MessageInvalid

INTERRUPTED, PIPE_CLOSED = 130, 141
_HELP = "--help behind the verb says what it takes."


class ExitError(Exception):
    """An error of a verb whose exit code is not the usual one."""

    def __init__(self, error: Exception, code: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.code = code


def report(error: BaseException, as_json: bool = False) -> int:
    """Writes an error to standard error, and gives the exit code. Never a traceback, unless
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
    if isinstance(error, ExitError):
        code, known = error.code, as_ours(error.error)
    else:
        code, known = exit_code(error), as_ours(error)
    if as_json:
        _write(json.dumps(problem(known)) + "\n")
    else:
        message, hint = _for_people(known)
        text = f"carrel: {message}\n" + (f"hint: {hint}\n" if hint else "")
        # What a program of the project said may be in it, and somebody may look at a pipe later.
        plain = "\n".join(map(clean, text.split("\n")))
        _write(shown(text, 2) if is_terminal(2) else plain)
    return code


def _for_people(error: CarrelError) -> tuple[str, str]:
    """Who gave an option has written no body, and reads no description of the API."""
    where, dot, rest = error.message.partition(".")
    if error.code == MessageInvalid.code and dot and where in ("body", "query"):
        return rest, _HELP
    return error.message, error.hint


def exit_code(error: BaseException) -> int:
    return error.kind.exit if isinstance(error, CarrelError) else FAILED


def as_ours(error: BaseException) -> CarrelError:
    """An error as Carrel's own: what is not ours is put into a sentence."""
    if isinstance(error, CarrelError):
        return error
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return CarrelError(f"{where}{error.strerror}.")
    return CarrelError(
        f"This should not have happened: {type(error).__name__}: {error}.",
        hint="Please report it. Set CARREL_DEBUG=1 to see where it happened.",
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
    # Output that a full disk does not take must not keep the error back.
    with contextlib.suppress(OSError):
        flush()
    # When nobody listens on standard error either, the exit code says it.
    with contextlib.suppress(OSError):
        complain(text)
