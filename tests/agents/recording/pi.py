"""Pi: commands and answers by the line, in its RPC mode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.agents.recording.commands import BEFORE, UNKNOWN_ID
from tests.agents.recording.desks import Place, place
from tests.agents.recording.programs import PI, PI_MODEL
from tests.agents.recording.running import Conversation, running, wait_until
from tests.agents.standins import UNKNOWN_MODEL

NAME = "pi"


@dataclass(frozen=True)
class Case:
    prompt: str
    flags: Sequence[str] = ()
    model: str = PI_MODEL
    resume: str = ""
    """An id, or `BEFORE`."""
    interrupted: bool = False
    """By the command `abort`: a signal would end all of it."""


CASES = {
    "text": Case("hello"),
    "write": Case("WRITE made.txt some text"),
    "run": Case("RUN echo out; echo err >&2; exit 3"),
    "resume": Case("second", resume=BEFORE),
    "unknown_session": Case("hello", resume=UNKNOWN_ID),
    "unknown_model": Case("hello", model=f"standin/{UNKNOWN_MODEL}"),
    # It asks for no permissions; tools can only be left out.
    "denied": Case('USE write {"path":"made.txt","content":"some text"}', ("--tools", "read")),
    "api_error": Case("FAIL 500"),
    "interrupted": Case("SLEEP 60", interrupted=True),
}


def record(name: str) -> None:
    case = CASES[name]
    with place(NAME, name) as where:
        resume = case.resume
        if resume == BEFORE:
            said, _ = _turn(where, Case("first"), "")
            resume = json.loads(said[0])["data"]["sessionId"]
        said, beside = _turn(where, case, resume)
        where.keep(said, beside)


def _turn(where: Place, case: Case, resume: str) -> tuple[list[str], dict[str, object]]:
    desk = where.desk
    going_on = ["--session", resume] if resume else []
    argv = [str(PI), "--mode", "rpc", "--model", case.model, *going_on, *case.flags]
    sent: list[str] = []
    with running(argv, desk.project, desk.environment()) as program:
        _send(program, sent, {"id": "1", "type": "get_state"})
        said = list(_until(program, "response"))
        if said:
            _send(program, sent, {"id": "2", "type": "prompt", "message": case.prompt})
            if case.interrupted:
                wait_until(lambda: bool(where.standin.requests))
                _send(program, sent, {"id": "3", "type": "abort"})
            said += _until(program, "agent_settled")
        program.finish()
        said += program.rest() if said else []
        beside: dict[str, object] = {
            "argv": argv,
            "exit": program.exit,
            "stderr": program.complaints(),
        }
    return said, beside | {"stdin": sent}


def _send(program: Conversation, sent: list[str], command: dict[str, Any]) -> None:
    sent.append(json.dumps(command))
    program.send(sent[-1])


def _until(program: Conversation, kind: str) -> list[str]:
    said = []
    for line in program.rest():
        said.append(line)
        if json.loads(line)["type"] == kind:
            break
    return said
