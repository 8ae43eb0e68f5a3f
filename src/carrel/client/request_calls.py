"""Every question about requests: see `calls`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from carrel.client import models
from carrel.client.calls import PAGE, Call, Project
from carrel.client.projects import describe
from carrel.client.request_models import RequestInfo, ResultFile
from carrel.client.requests import LONG_S, Request, asking, telling
from carrel.client.wire import quote, segment
from carrel.domain.limits import Limits
from carrel.domain.requests import Keeping, Policy

FILES_PAGE = 1000


class RequestOptions(TypedDict, total=False):
    """All that can be said about a request, beside what is to be made and its project; see
    docs/requests.md."""

    request_id: str
    owner: str
    tool: str
    ref: str
    workspace_path: str
    frontend: str
    model: str
    architecture: str | Mapping[str, object]
    context: str | Mapping[str, str]
    retention: str | Mapping[str, object] | Keeping
    tier: str
    limits: Limits
    timeout_s: float
    check: str | Sequence[str] | Mapping[str, object]
    content: bool
    webhook: str | Mapping[str, str]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    network: str
    runtime: str
    tied: bool


def new_request_id() -> str:
    """So that asking again after a lost connection makes no second workspace."""
    return f"py-{secrets.token_hex(12)}"


def request_content(instructions: str, project: Project, options: RequestOptions) -> dict[str, Any]:
    content: dict[str, Any] = {"instructions": instructions, **options}
    content["request_id"] = options.get("request_id") or new_request_id()
    ref = content.pop("ref", None)
    if project is not None:
        content["project"] = describe(project, ref)
    if "workspace_path" in content:
        content["workspace_path"] = os.path.abspath(os.path.expanduser(content["workspace_path"]))
    limits = asdict(content["limits"]) if "limits" in content else {}
    for name in ("tier", "timeout_s"):
        if (said := content.pop(name, None)) is not None:
            limits[name] = said
    if limits:
        content["limits"] = limits
    for name in ("architecture", "context", "retention", "check", "webhook", "labels", "env"):
        if name in content:
            content[name] = _plain(content[name])
    return content


def _plain(value: object) -> object:
    if isinstance(value, Keeping):
        return _keeping(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value if isinstance(value, str) else list(value)  # type: ignore[call-overload]


def _keeping(keeping: Keeping) -> dict[str, object]:
    """Only what says something under its policy."""
    content: dict[str, object] = {"policy": keeping.policy}
    if keeping.policy is Policy.RETAIN:
        content["seconds"] = keeping.seconds
    elif keeping.policy is Policy.VERSIONED:
        content |= {"series": keeping.series, "newest": keeping.newest, "older": keeping.older}
    else:
        content["hold_s"] = keeping.hold_s
    return content


def request_path(request_id: str, *rest: str) -> str:
    return "/".join(("/v1/requests", segment(request_id), *rest))


def submit(content: Mapping[str, object]) -> Call[RequestInfo]:
    """Asked again after a broken connection: it has a name."""
    return Call(telling("POST", "/v1/requests", content, again=True), _info)


def get(request_id: str, wait_s: float) -> Call[RequestInfo]:
    request = asking(request_path(request_id), [("wait", wait_s)], timeout_s=LONG_S)
    return Call(request, _info)


def page(
    live: bool | None, owner: str, series: str, before: str
) -> Call[tuple[list[RequestInfo], str]]:
    query: list[tuple[str, object]] = [("limit", PAGE)]
    named = (("live", live), ("owner", owner or None), ("series", series or None))
    query += [(name, value) for name, value in named if value is not None]
    query += [("before", before)] if before else []

    def read(told: Any) -> tuple[list[RequestInfo], str]:
        return models.decode(told["requests"], list[RequestInfo]), told.get("next") or ""

    return Call(asking("/v1/requests", query), read)


def change(request_id: str, what: str, content: object = None) -> Call[RequestInfo]:
    """`cancel`, `done` or `extend`; each may be said twice."""
    request = telling("POST", request_path(request_id, what), content, timeout_s=LONG_S, again=True)
    return Call(request, _info)


def answer(request_id: str, text: str, id: str, allow: bool | None) -> Call[None]:
    content: dict[str, object] = {"id": id, "allow": allow}
    if allow is None:
        content["text"] = text
    return Call(telling("POST", request_path(request_id, "answer"), content), lambda _told: None)


def remove(request_id: str) -> Call[RequestInfo]:
    request = Request("DELETE", request_path(request_id), timeout_s=LONG_S, again=True)
    return Call(request, _info)


def files(request_id: str, after: str) -> Call[tuple[list[ResultFile], str]]:
    query: list[tuple[str, object]] = [("limit", FILES_PAGE)]
    query += [("after", after)] if after else []

    def read(told: Any) -> tuple[list[ResultFile], str]:
        return models.decode(told["files"], list[ResultFile]), told.get("next") or ""

    return Call(asking(request_path(request_id, "files"), query, timeout_s=LONG_S), read)


def fetch(request_id: str, path: str) -> Request:
    return Request("GET", request_path(request_id, "files", quote(path)), timeout_s=LONG_S)


def archive(request_id: str, everything: bool) -> Request:
    query = [("all", everything)]
    return Request("GET", request_path(request_id, "archive"), query, timeout_s=LONG_S)


def versions(series: str) -> Call[list[RequestInfo]]:
    request = asking(f"/v1/series/{segment(series)}/versions")
    return Call(request, lambda told: models.decode(told["versions"], list[RequestInfo]))


def diff(series: str, before: int | None, after: int | None) -> Request:
    named = (("from", before), ("to", after))
    query = [(name, value) for name, value in named if value is not None]
    return Request("GET", f"/v1/series/{segment(series)}/diff", query, timeout_s=LONG_S)


def _info(content: Any) -> RequestInfo:
    return models.decode(content, RequestInfo)
