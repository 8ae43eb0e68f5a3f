"""Commands: to their end, without waiting, and what became of them."""

from __future__ import annotations

import base64
import binascii
import signal as signals
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from carrel.domain.errors import DaemonUnavailable, MessageInvalid
from carrel.domain.runs import RunRecord, Stream
from carrel.domain.runtimes import Command
from carrel.interfaces.http.closing import while_wanted
from carrel.interfaces.http.documenting import BINARY, COMMAND, RUN, SPACE, errors
from carrel.interfaces.http.encoding import answer, bytes_answer
from carrel.interfaces.http.models.runs import (
    ExecBody,
    ExecView,
    RunBody,
    RunList,
    RunView,
    SignalBody,
)
from carrel.interfaces.http.outputs import read_on, tail
from carrel.interfaces.http.serving import Serving, caller, serving
from carrel.interfaces.http.views import run_view

MAX_WAIT_S = 60.0
MAX_READ = 1 << 20

router = APIRouter(tags=["runs"])


@router.post("/v1/spaces/{space}/exec", response_model=ExecView, responses=errors(*COMMAND))
async def exec_command(request: Request, space: str, body: ExecBody) -> Response:
    here = serving(request)
    record = await _start(request, space, body)
    try:
        record = await while_wanted(
            request, here.closing, here.services.runs.wait(record.run_id, None)
        )
    except DaemonUnavailable as error:
        error.details["run"] = run_view(record)
        raise
    out, err = await tail(here.services.runs, record, body.max_output_bytes)
    return answer(
        {
            "run": run_view(record),
            **_shown("stdout", out.data, body.base64),
            **_shown("stderr", err.data, body.base64),
            "truncated": out.truncated or err.truncated,
        }
    )


@router.post(
    "/v1/spaces/{space}/runs", status_code=201, response_model=RunView, responses=errors(*COMMAND)
)
async def start_run(request: Request, space: str, body: RunBody) -> Response:
    return answer(run_view(await _start(request, space, body)), 201)


@router.get("/v1/spaces/{space}/runs", response_model=RunList, responses=errors(*SPACE))
async def list_runs(
    request: Request, space: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Response:
    services = serving(request).services
    found = await services.spaces.get(caller(request), space)
    records = await services.store.runs(found.space_id, limit=limit)
    return answer({"runs": [run_view(_newest(serving(request), one)) for one in records]})


@router.get("/v1/runs/{run}", response_model=RunView, responses=errors(*RUN))
async def show_run(request: Request, run: str) -> Response:
    return answer(run_view(await serving(request).run(caller(request), run)))


@router.get("/v1/runs/{run}/wait", response_model=RunView, responses=errors(*RUN))
async def wait_for_run(
    request: Request,
    run: str,
    timeout_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] = MAX_WAIT_S,
) -> Response:
    here = serving(request)
    record = await here.run(caller(request), run)
    try:
        record = await while_wanted(request, here.closing, here.services.runs.wait(run, timeout_s))
    except DaemonUnavailable:
        # As it is, and the daemon that comes next is asked again.
        record = _newest(here, record)
    return answer(run_view(record))


@router.post("/v1/runs/{run}/signal", response_model=RunView, responses=errors(*RUN, *COMMAND))
async def signal_run(request: Request, run: str, body: SignalBody) -> Response:
    here = serving(request)
    record = await here.run(caller(request), run)
    await here.services.runs.signal(run, signals.Signals[f"SIG{body.signal}"])
    return answer(run_view(_newest(here, record)))


@router.get(
    "/v1/runs/{run}/output",
    response_class=Response,
    responses={
        **errors(*RUN),
        200: {
            "description": "Bytes",
            "content": {"application/octet-stream": BINARY},
            "headers": {
                "Carrel-Offset": {
                    "description": "Where they begin",
                    "required": True,
                    "schema": {"type": "integer"},
                },
                "Carrel-Ended": {
                    "description": "Whether no more will come",
                    "required": True,
                    "schema": {"type": "string", "enum": ["true", "false"]},
                },
            },
        },
    },
)
async def read_output(
    request: Request,
    run: str,
    stream: Annotated[Literal["stdout", "stderr"], Query()] = "stdout",
    offset: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_READ)] = MAX_READ,
) -> Response:
    here = serving(request)
    # Asked before it is read: what is written in between is not the last then.
    record = await here.run(caller(request), run)
    piece, ended = await read_on(here.services.runs, record, Stream(stream), offset, limit)
    headers = {"Carrel-Offset": str(piece.offset), "Carrel-Ended": "true" if ended else "false"}
    return bytes_answer(piece.data, headers)


async def _start(request: Request, word: str, body: RunBody) -> RunRecord:
    """What it is to read is written in the background: it may read it late, or never."""
    here = serving(request)
    given = _stdin(body)
    space = await here.services.spaces.existing(caller(request), word)
    command = Command(
        argv=tuple(body.argv),
        env=body.env,
        cwd=body.cwd,
        stdin=given is not None,
        timeout_s=body.timeout_s,
    )
    begun = time.perf_counter()
    record = await here.services.runs.start(space.space_id, command)
    here.metrics.exec.observe(time.perf_counter() - begun)
    if given is not None:
        put_all(here, record, given)
    return record


def put_all(here: Serving, record: RunRecord, data: bytes) -> None:
    """All of its standard input, at once."""
    target = here.inputs.of(record.run_id)
    if target is not None:
        target.push(data)
        target.end()


def _stdin(body: RunBody) -> bytes | None:
    if body.stdin is not None and body.stdin_base64 is not None:
        raise MessageInvalid("There is one standard input.", hint="Give stdin or stdin_base64.")
    if body.stdin is not None:
        return body.stdin.encode("utf-8", "surrogateescape")
    if body.stdin_base64 is None:
        return None
    try:
        return base64.b64decode(body.stdin_base64, validate=True)
    except (binascii.Error, ValueError):
        raise MessageInvalid("stdin_base64 is no base64.", field="body.stdin_base64") from None


def _newest(here: Serving, record: RunRecord) -> RunRecord:
    """A command that runs is known better than it is written down."""
    live = here.services.runs.live(record.run_id)
    return record if live is None else live.record


def _shown(name: str, data: bytes, as_base64: bool) -> dict[str, str]:
    if as_base64:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
    return {name: data.decode("utf-8", "replace")}
