"""The frontends of this machine, and the keys that they are given."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.interfaces.http.documenting import errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.agents import (
    CredentialBody,
    CredentialList,
    CredentialName,
    FrontendList,
    FrontendView,
)
from carrel.interfaces.http.serving import caller, serving

router = APIRouter(tags=["agents"])


@router.get("/v1/agents", response_model=FrontendList, responses=errors())
async def list_frontends(request: Request) -> Response:
    """What is installed, and how to install what is not."""
    return answer({"frontends": await serving(request).services.keyring.found(caller(request))})


@router.post(
    "/v1/agents/{name}/install",
    response_model=FrontendView,
    responses=errors("unsupported_frontend", "frontend_not_installed"),
)
async def install_frontend(request: Request, name: str) -> Response:
    """A pinned version, into Carrel's own folder; at once when it is there already."""
    here, who = serving(request), caller(request)
    return answer(await here.services.keyring.install(who, name))


@router.get("/v1/credentials", response_model=CredentialList, responses=errors())
async def list_credentials(request: Request) -> Response:
    return await _names(request)


@router.put(
    "/v1/credentials/{name}", response_model=CredentialList, responses=errors("message_invalid")
)
async def set_credential(request: Request, name: CredentialName, body: CredentialBody) -> Response:
    await serving(request).services.keyring.set(caller(request), name, body.value)
    return await _names(request)


@router.delete(
    "/v1/credentials/{name}",
    response_model=CredentialList,
    responses=errors("credential_not_found"),
)
async def remove_credential(request: Request, name: CredentialName) -> Response:
    await serving(request).services.keyring.remove(caller(request), name)
    return await _names(request)


async def _names(request: Request) -> Response:
    names = await serving(request).services.keyring.names(caller(request))
    return answer({"credentials": names})
