"""Turns of agents: begun, waited for, spoken to, interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from carrel.domain.agents import (
    Asked,
    Attachment,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Permission,
    Turn,
    TurnRequest,
)
from carrel.interfaces.http.closing import while_wanted
from carrel.interfaces.http.documenting import COMMAND, SPACE, errors
from carrel.interfaces.http.encoding import answer, moment, moment_or_none
from carrel.interfaces.http.models.agents import (
    DecisionBody,
    InputBody,
    TerminalView,
    TurnBody,
    TurnList,
    TurnView,
)
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.views import View

MAX_WAIT_S = 60.0
TURN = ("turn_not_found", "space_not_found")
BEGINNING = (
    *COMMAND,
    "unsupported_frontend",
    "frontend_not_installed",
    "provider_mismatch",
    "continuation_not_found",
    "model_not_supported",
    "permission_denied",
    "resolve_failed",
    "path_not_found",
    "path_invalid",
    "path_escapes",
    "path_denied",
    "path_wrong_kind",
)
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)]

router = APIRouter(tags=["agents"])


@router.post(
    "/v1/spaces/{space}/turns",
    status_code=201,
    response_model=TurnView,
    responses=errors(*BEGINNING),
)
async def start_turn(request: Request, space: str, body: TurnBody) -> Response:
    """The agent works when this is answered; its events are on the hub and at `/v1/events`."""
    turn = await serving(request).services.turns.start(caller(request), space, turn_request(body))
    return answer(_view(request, turn), 201)


@router.get("/v1/spaces/{space}/turns", response_model=TurnList, responses=errors(*SPACE))
async def list_turns(
    request: Request, space: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Response:
    found = await serving(request).services.turns.list(caller(request), space, limit)
    return answer({"turns": [_view(request, turn) for turn in found]})


@router.get("/v1/turns/{turn}", response_model=TurnView, responses=errors(*TURN))
async def show_turn(request: Request, turn: str, wait_s: Wait = 0.0) -> Response:
    """`wait_s`: until it has ended, or so long."""
    here = serving(request)
    found = here.services.turns.wait(caller(request), turn, wait_s)
    return answer(_view(request, await while_wanted(request, here.closing, found)))


@router.post(
    "/v1/turns/{turn}/interrupt",
    status_code=202,
    response_model=TurnView,
    responses=errors(*TURN, "state_conflict"),
)
async def interrupt_turn(request: Request, turn: str) -> Response:
    """As Ctrl-C; its end comes as it would otherwise."""
    here, who = serving(request), caller(request)
    await here.services.turns.interrupt(who, turn)
    return answer(_view(request, await here.services.turns.get(who, turn)), 202)


@router.post(
    "/v1/turns/{turn}/stop",
    status_code=202,
    response_model=TurnView,
    responses=errors(*TURN, "state_conflict"),
)
async def stop_turn(request: Request, turn: str) -> Response:
    """The agent is asked to end; one that does not is killed."""
    here, who = serving(request), caller(request)
    await here.services.turns.stop(who, turn)
    return answer(_view(request, await here.services.turns.get(who, turn)), 202)


@router.get(
    "/v1/spaces/{space}/terminal",
    response_model=TerminalView,
    responses=errors(*SPACE, "state_conflict"),
)
async def show_terminal(request: Request, space: str, read_only: bool = False) -> Response:
    """The command that attaches to the terminal of the agent: for a terminal of its own, with
    `hangup`, as at `/v1/spaces/{space}/exec`."""
    turns = serving(request).services.turns
    found = await turns.attaching(caller(request), space, read_only=read_only)
    view = {"turn": _view(request, found.turn), "argv": found.how.argv, "cwd": found.how.cwd}
    return answer(view)


@router.post(
    "/v1/turns/{turn}/input",
    status_code=202,
    response_model=TurnView,
    responses=errors(*TURN, "state_conflict", "unsupported_frontend"),
)
async def queue_input(request: Request, turn: str, body: InputBody) -> Response:
    return await _say(request, turn, Control(ControlKind.INPUT, text=body.text))


@router.post(
    "/v1/turns/{turn}/permissions/{permission}",
    status_code=202,
    response_model=TurnView,
    responses=errors(*TURN, "state_conflict", "unsupported_frontend"),
)
async def decide(request: Request, turn: str, permission: str, body: DecisionBody) -> Response:
    """Answers one of the turn's `permissions`, which came as a `permission` event."""
    return await _say(
        request, turn, Control(ControlKind.PERMISSION, id=permission, allow=body.allow)
    )


async def _say(request: Request, turn: str, control: Control) -> Response:
    here, who = serving(request), caller(request)
    await here.services.turns.control(who, turn, control)
    return answer(_view(request, await here.services.turns.get(who, turn)), 202)


def _view(request: Request, turn: Turn) -> View:
    """With what it waits for now."""
    return turn_view(turn, serving(request).services.turns.asking(turn.run_id))


def turn_request(body: TurnBody) -> TurnRequest:
    asked = body.continuation
    return TurnRequest(
        frontend=body.frontend or "",
        prompt=body.prompt,
        session_id=body.session,
        model=body.model,
        continuation=None if asked is None else Continuation(asked.provider, asked.key),
        permission=None if body.permission is None else Permission(body.permission),
        env=body.env,
        attachments=tuple(
            Attachment(one.path, one.media_type, one.folder == "context")
            for one in body.attachments
        ),
        system_prompt=body.system_prompt,
        timeout_s=body.timeout_s,
        answer_s=body.answer_s,
        mode=InteractionMode.INTERACTIVE if body.terminal else InteractionMode.HEADLESS,
    )


def turn_view(turn: Turn, asking: Sequence[Asked]) -> View:
    return {
        "id": turn.run_id,
        "space": turn.space_id,
        "session": turn.session_id,
        "frontend": turn.frontend,
        "provider": turn.provider,
        "model": turn.model,
        "permission": turn.permission,
        "permissions": asking,
        "prompt": turn.prompt,
        "terminal": turn.mode is InteractionMode.INTERACTIVE,
        "state": turn.state,
        "created_at": moment(turn.created_at),
        "ended_at": moment_or_none(turn.ended_at),
        "continuation": turn.continuation,
        "result": turn.result,
        "usage": turn.usage,
    }
