"""carrel request: something made, in a workspace of its own."""

from __future__ import annotations

import os

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.cli.request_showing import result_lines
from carrel.cli.requesting import ASKING, FORCE, OUT, done, options, request_path
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.turns import prompt_of
from carrel.client.requests import LONG_S, telling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.client.request_models import RequestFrame, RequestInfo

FAILED = 1
SIGNALLED = 128
VERB = Verb(
    "Have something made: a workspace, an agent in it, and what it made.",
    Argument("instructions"),
    details=(
        'The verb may be left out: carrel request "…". - reads standard input. The exit code is 0 '
        "when it is complete. Ctrl-C cancels it. What the agent asks is asked here."
    ),
    options=(
        *ASKING,
        OUT,
        FORCE,
        Option("--detach", help="Do not wait: print its id."),
    ),
)


def run(call: Call) -> int:
    from carrel.cli.saving import check_folder
    from carrel.client.generating import Requests

    wanted = options(call)
    instructions = prompt_of(call.text("instructions"))
    check_folder(call.text("out"))
    requests = Requests(call.link)
    if call.flag("detach"):
        return _detach(call, requests.submit(instructions, **wanted))
    from carrel.cli.making import Making, Stopped, Stopping

    # Known before it is sent, so that it can be cancelled at any time.
    wanted.setdefault("request_id", f"cli-{os.urandom(8).hex()}")
    try:
        with Stopping(), requests.generate(instructions, **wanted) as stream:
            outcome = Making(call, stream).run()
    except Stopped as stopped:
        return _cancel(call, wanted["request_id"], stopped.number)
    return _ended(call, outcome)


def _detach(call: Call, request: RequestInfo) -> int:
    if call.json:
        from carrel.client.requests import asking

        call.show(call.link.json(asking(request_path(request.request_id))))
        return 0
    call.say(request.request_id)
    if request.policy == "ephemeral":
        call.note("Its files go with its result: with --keep they stay.")
    return 0


def _cancel(call: Call, request: str, number: int) -> int:
    """What was not asked for yet need not be cancelled."""
    from carrel.domain.errors import RequestNotFound

    try:
        path = request_path(request, "cancel")
        state = call.link.json(telling("POST", path, timeout_s=LONG_S, again=True))["state"]
    except RequestNotFound:
        state = "cancelled"
    call.note("Cancelled." if state == "cancelled" else f"It was {state} already.")
    return SIGNALLED + number


def _ended(call: Call, outcome: RequestFrame) -> int:
    """What was refused is an error as any other; what was begun has an outcome."""
    failure = outcome.failure
    if failure is not None and failure.step == "accept":
        from carrel.client.problems import error_from

        raise error_from({**outcome.raw, "detail": failure.message})
    told = dict(outcome.raw)
    if outcome.result is not None and call.text("out"):
        told["saved"] = _save(call, outcome)
    if call.json:
        call.show(told)
    elif outcome.result is not None:
        call.say("\n".join(result_lines(told)))
    elif failure is not None:
        call.note(clean(f"carrel: {failure.message} ({failure.code}, {failure.step})"))
        call.note(clean(f"hint: {failure.hint}")) if failure.hint else None
    return 0 if outcome.result is not None and outcome.result.complete else FAILED


def _save(call: Call, outcome: RequestFrame) -> dict[str, Any]:
    from carrel.cli.saving import save, saved_view
    from carrel.domain.errors import PathError

    name = outcome.request_id
    try:
        saved = save(call, name, call.text("out"))
    except PathError as error:
        error.hint = f"Use --force, or: carrel request fetch {name} --out FOLDER --done"
        raise
    if not call.text("series") and call.number("keep") is None:
        done(call, name)
    if not call.json:
        count = "1 file is" if len(saved.files) == 1 else f"{len(saved.files)} files are"
        call.note(clean(f"{count} in {saved.folder}"))
    return saved_view(saved)
