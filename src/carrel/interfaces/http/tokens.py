"""Tokens, for administrators."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.domain.access import Scope, ScopeKind
from carrel.interfaces.http.documenting import errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.admin import NewTokenView, TokenBody, TokenList, TokenView
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.views import token_view

router = APIRouter(tags=["tokens"])


@router.post(
    "/v1/tokens", status_code=201, response_model=NewTokenView, responses=errors("space_invalid")
)
async def create_token(request: Request, body: TokenBody) -> Response:
    kind, _, value = body.scope.partition(":")
    token, secret = await serving(request).services.tokens.create(
        caller(request), body.name, Scope(ScopeKind(kind), value), body.ttl_s
    )
    return answer({**token_view(token), "secret": secret}, 201)


@router.get("/v1/tokens", response_model=TokenList, responses=errors())
async def list_tokens(request: Request) -> Response:
    found = await serving(request).services.tokens.list(caller(request))
    return answer({"tokens": [token_view(token) for token in found]})


@router.delete("/v1/tokens/{token}", response_model=TokenView, responses=errors("token_not_found"))
async def revoke_token(request: Request, token: str) -> Response:
    revoked = await serving(request).services.tokens.revoke(caller(request), token)
    return answer(token_view(revoked))
