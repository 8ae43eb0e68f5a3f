"""Spaces."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from carrel.domain.errors import MessageInvalid
from carrel.domain.limits import Limits
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Retention, SpaceQuery, SpaceRequest, SpaceState
from carrel.interfaces.http.creating import stream_creation
from carrel.interfaces.http.documenting import CHANGING, EVENT_STREAM, PROJECT, SPACE, errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.spaces import (
    NewSpace,
    ProjectBody,
    RemovalView,
    RetentionBody,
    SpaceList,
    SpaceUpdate,
    SpaceView,
    StateName,
    StopBody,
)
from carrel.interfaces.http.serving import caller, serving
from carrel.service.spaces import GRACE_S, Update

router = APIRouter(tags=["spaces"])
_BACK_ENDS = (
    "tree_unavailable",
    "tree_damaged",
    "sandbox_unavailable",
    "isolation_unproven",
    "launcher_unavailable",
    "limits_unavailable",
)


@router.post(
    "/v1/spaces",
    status_code=201,
    response_model=SpaceView,
    responses={
        **errors(
            *("space_invalid", "name_taken", "idempotency_key_reused"),
            *("server_not_found", "server_not_installed", *PROJECT, *_BACK_ENDS),
        ),
        200: {"description": "`progress`, then `space` or `problem`", "content": EVENT_STREAM},
    },
)
async def create_space(
    request: Request,
    body: NewSpace,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    idempotency_key: Annotated[str, Header(max_length=255, pattern=r"^[ -~]*$")] = "",
) -> Response:
    here = serving(request)
    wanted = space_request(body)
    if "text/event-stream" in accept:
        return stream_creation(here, caller(request), wanted, idempotency_key)
    begun = time.perf_counter()
    space = await here.services.spaces.create(caller(request), wanted, key=idempotency_key)
    here.metrics.create.observe(time.perf_counter() - begun)
    return answer(await here.views.one(space), 201)


@router.get("/v1/spaces", response_model=SpaceList, responses=errors())
async def list_spaces(
    request: Request,
    state: Annotated[list[StateName], Query(max_length=8)] = [],  # noqa: B006
    label: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
    name: Annotated[str, Query(max_length=255)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    after: Annotated[str, Query(max_length=255)] = "",
) -> Response:
    here = serving(request)
    query = SpaceQuery(
        states=frozenset(SpaceState(one) for one in state),
        labels=dict(_label(one) for one in label),
        name=name,
        limit=limit,
        after=after,
    )
    page = await here.services.spaces.list(caller(request), query)
    spaces = await here.views.many(page.spaces)
    return answer({"spaces": spaces, "next": page.next, "total": page.total})


@router.get("/v1/spaces/{space}", response_model=SpaceView, responses=errors(*SPACE))
async def show_space(request: Request, space: str) -> Response:
    here = serving(request)
    return answer(await here.views.one(await here.services.spaces.get(caller(request), space)))


@router.patch(
    "/v1/spaces/{space}",
    response_model=SpaceView,
    responses=errors(*SPACE, "space_invalid", "name_taken", "state_conflict"),
)
async def update_space(request: Request, space: str, body: SpaceUpdate) -> Response:
    here = serving(request)
    update = Update(
        name=body.name,
        labels=body.labels,
        retention=None if body.retention is None else _retention(body.retention),
        description=body.description,
    )
    changed = await here.services.spaces.update(caller(request), space, update)
    return answer(await here.views.one(changed))


@router.post(
    "/v1/spaces/{space}/stop",
    response_model=SpaceView,
    responses=errors(*SPACE, *CHANGING, "launcher_unavailable"),
)
async def stop_space(request: Request, space: str, body: StopBody | None = None) -> Response:
    here = serving(request)
    grace_s = GRACE_S if body is None else body.grace_s
    stopped = await here.services.spaces.stop(caller(request), space, grace_s)
    return answer(await here.views.one(stopped))


@router.post(
    "/v1/spaces/{space}/start",
    response_model=SpaceView,
    responses=errors(
        *SPACE, *CHANGING, "launcher_unavailable", "limits_unavailable", "isolation_unproven"
    ),
)
async def start_space(request: Request, space: str) -> Response:
    here = serving(request)
    started = await here.services.spaces.start(caller(request), space)
    return answer(await here.views.one(started))


@router.delete(
    "/v1/spaces/{space}",
    response_model=RemovalView,
    responses=errors(*SPACE, *CHANGING, "unexported_changes", "launcher_unavailable"),
)
async def remove_space(
    request: Request, space: str, force: Annotated[bool, Query()] = False
) -> Response:
    here = serving(request)
    removal = await here.services.spaces.remove(caller(request), space, force=force)
    return answer(await here.views.removal(removal))


def space_request(body: NewSpace) -> SpaceRequest:
    if body.base is not None and body.project is not None:
        raise MessageInvalid(
            "A space starts from a project or from a base.", hint="Leave one of them out."
        )
    return SpaceRequest(
        project=project_of(body.project),
        base_id=body.base or "",
        name=body.name or "",
        exclude=tuple(body.exclude),
        max_bytes=body.max_bytes,
        max_files=body.max_files,
        runtime=body.runtime,
        driver=body.driver,
        network=Network(body.network or Network.NONE),
        network_asked=body.network is not None,
        agent=body.agent or "",
        mcp=tuple(body.mcp),
        tier=body.tier,
        limits=Limits(**dict(body.limits)),
        labels=body.labels,
        env=body.env,
        retention=_retention(body.retention),
        description=body.description,
    )


def project_of(body: ProjectBody | None) -> Project:
    if body is None:
        return Project(ProjectKind.EMPTY)
    return Project(ProjectKind(body.kind), body.location, body.ref)


def _retention(body: RetentionBody) -> Retention:
    return Retention(body.ttl_s, body.idle_s, body.keep_s, body.discard)


def _label(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not (key and found):
        raise MessageInvalid("A label is key=value.", hint="Such as team=blue.", field="label")
    return key, value
