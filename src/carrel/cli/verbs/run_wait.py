"""carrel run wait: until a command has ended; its exit code is ours."""

from __future__ import annotations

import time

from carrel.cli.call import Call
from carrel.cli.spec import RUN, SECONDS, Option, Verb
from carrel.cli.verbs.exec import own_error
from carrel.client.exits import TIMED_OUT, exit_code
from carrel.client.requests import LONG_S, asking, run_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Wait for the end of a command; its exit code is the command's.",
    RUN,
    options=(
        Option("--timeout", kind=SECONDS, metavar="TIME", help="Wait no longer; then it is 124."),
    ),
)
WAIT_S = 30.0
"""So long one request waits; then it is asked again."""


def run(call: Call) -> int:
    try:
        found = _wait(call, call.text("run"), call.number("timeout"))
    except Exception as error:
        raise own_error(error) from error
    if call.json:
        call.show(found)
    return exit_code(found) if found["state"] in ("ended", "failed") else TIMED_OUT


def _wait(call: Call, word: str, timeout_s: float | None) -> dict[str, Any]:
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = WAIT_S if until is None else max(0.0, min(WAIT_S, until - time.monotonic()))
        request = asking(run_path(word, "wait"), [("timeout_s", left)], timeout_s=LONG_S)
        found: dict[str, Any] = call.link.json(request)
        over = until is not None and time.monotonic() >= until
        if found["state"] in ("ended", "failed") or over:
            return found
