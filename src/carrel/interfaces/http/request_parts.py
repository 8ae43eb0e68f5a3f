"""Requests, from JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from carrel.domain.errors import MessageInvalid
from carrel.domain.limits import Limits
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.requests import (
    DAY_S,
    Check,
    Frame,
    Generate,
    Keeping,
    Older,
    Policy,
    Request,
    RequestAnswer,
    Webhook,
    Workspace,
)
from carrel.domain.runtimes import Network
from carrel.interfaces.http.encoding import moment, moment_or_none
from carrel.interfaces.http.models.requests import (
    AnswerBody,
    CheckBody,
    ExtendBody,
    GenerateBody,
    KeepingBody,
    WebhookBody,
)
from carrel.interfaces.http.models.spaces import ProjectBody
from carrel.interfaces.http.spaces import project_of
from carrel.interfaces.http.views import View
from carrel.service.requests import Requests
from carrel.service.requests.viewing import outcome

SHOWN_CHARACTERS = 500
"""Of instructions, in lists."""
_SCHEMES = ("http://", "https://", "ssh://", "git://", "git+ssh://", "ssh+git://", "file://")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
_RESULT = ("complete", "summary", "files", "total_files", "needs_research", "check", "usage")


def asked_of(body: GenerateBody, key: str = "") -> Generate:
    """`key` is the name of it that came beside the body. Raises `MessageInvalid`."""
    if key and body.request_id not in ("", key):
        raise MessageInvalid(
            "Idempotency-Key and request_id are not the same.",
            hint="Leave one of them out.",
            field="request_id",
        )
    limits = body.limits.model_dump(exclude={"tier", "timeout_s"})
    named = isinstance(body.context, dict)
    return Generate(
        instructions=body.instructions,
        request_id=body.request_id or key,
        owner=body.owner,
        tool=body.tool,
        project=_project(body.project),
        workspace_path=body.workspace_path or "",
        frontend=body.frontend or "",
        model=body.model,
        architecture=_architecture(body.architecture),
        context="" if named else str(body.context or ""),
        context_files=body.context if isinstance(body.context, dict) else {},
        keeping=_keeping(body.retention),
        tier=body.limits.tier,
        limits=Limits(**limits),
        timeout_s=body.limits.timeout_s,
        check=_check(body.check),
        network=None if body.network is None else Network(body.network),
        runtime=body.runtime,
        env=body.env,
        labels=body.labels,
        content=body.content,
        webhook=_webhook(body.webhook),
        tied=body.tied,
    )


def _project(body: str | ProjectBody | None) -> Project | None:
    if not body:
        return None
    if isinstance(body, ProjectBody):
        project = project_of(body)
        return None if project.kind is ProjectKind.EMPTY else project
    host, colon, path = body.partition(":")
    address = body.startswith(_SCHEMES) or (colon and host and path and "/" not in host)
    return Project(ProjectKind.GIT if address else ProjectKind.FOLDER, body)


def _architecture(body: str | Mapping[str, Any] | None) -> str:
    if body is None or isinstance(body, str):
        return body or ""
    try:
        return json.dumps(body, indent=2, ensure_ascii=False)
    except (RecursionError, ValueError):
        raise MessageInvalid(
            "The architecture cannot be written down.",
            hint="Send it as text.",
            field="architecture",
        ) from None


def _keeping(body: str | KeepingBody) -> Keeping:
    if isinstance(body, str):
        return Keeping(policy=Policy(body))
    seconds = span_of(body, "retention")
    usual = Policy.EPHEMERAL if seconds is None else Policy.RETAIN
    policy = Policy(body.policy or (Policy.VERSIONED if body.series else usual))
    if seconds is not None and policy is not Policy.RETAIN:
        raise MessageInvalid(
            f"What is {policy} has no time.",
            hint="Leave `seconds` and `for` out, or ask for `retain`.",
            field="retention.seconds" if body.for_ is None else "retention.for",
        )
    return Keeping(
        policy=policy,
        seconds=DAY_S if seconds is None else seconds,
        series=body.series,
        newest=body.newest,
        older=Older(body.older),
        hold_s=body.hold_s,
    )


def span_of(body: KeepingBody | ExtendBody, where: str = "body") -> float | None:
    """The time that was said in one of two ways."""
    if body.seconds is not None and body.for_ is not None:
        raise MessageInvalid(
            "`seconds` and `for` say the same.", hint="Leave one of them out.", field=f"{where}.for"
        )
    return body.seconds if body.for_ is None else float(body.for_[:-1]) * _UNITS[body.for_[-1]]


def _check(body: str | list[str] | CheckBody | None) -> Check | None:
    if body is None:
        return None
    if isinstance(body, CheckBody):
        return Check(_argv(body.command), body.timeout_s)
    return Check(_argv(body))


def _argv(command: str | list[str]) -> tuple[str, ...]:
    return ("sh", "-c", command) if isinstance(command, str) else tuple(command)


def _webhook(body: str | WebhookBody | None) -> Webhook | None:
    if body is None:
        return None
    return Webhook(body) if isinstance(body, str) else Webhook(body.url, body.secret)


def answer_of(body: AnswerBody) -> RequestAnswer:
    if body.text is not None and body.answer is not None:
        raise MessageInvalid(
            "`text` and `answer` say the same.", hint="Leave one of them out.", field="answer"
        )
    text = body.text if body.text is not None else body.answer
    if text is None and body.allow is None:
        raise MessageInvalid("There is no answer.", hint="Give `text` or `allow`.", field="text")
    return RequestAnswer(text=text or "", id=body.id, allow=body.allow)


# What is told


def frame_view(frame: Frame) -> View:
    said: View = {"type": str(frame.kind), "request_id": frame.request_id}
    if frame.seq:
        said["seq"] = frame.seq
    return {**said, **frame.data}


def request_view(requests: Requests, request: Request) -> View:
    """All of it; see `summary_view`."""
    result = None
    if request.result is not None:
        told = outcome(request).data
        result = {name: told[name] for name in _RESULT}
    whole = {"instructions": request.asked.instructions, "result": result}
    return {**summary_view(requests, request), **whole}


def summary_view(requests: Requests, request: Request) -> View:
    """Never values of variables, nor the secret of a webhook."""
    asked, result = request.asked, request.result
    there = request.workspace is Workspace.THERE
    return {
        "request_id": request.request_id,
        "key": request.key,
        "caller": request.caller,
        "owner": asked.owner,
        "state": request.state,
        "place": requests.place(request),
        "tool": asked.tool,
        "instructions": asked.instructions[:SHOWN_CHARACTERS],
        "project": asked.project,
        "frontend": asked.frontend,
        "model": asked.model,
        "policy": asked.keeping.policy,
        "series": asked.keeping.series,
        "version": request.version,
        "space_id": request.space_id,
        "workspace": request.workspace,
        "workspace_path": requests.path_of(request) if there else "",
        "run_id": request.run_id,
        "check_run_id": request.check_run_id,
        "created_at": moment(request.created_at),
        "updated_at": moment(request.updated_at),
        "ended_at": moment_or_none(request.ended_at),
        "delivered_at": moment_or_none(request.delivered_at),
        "retained_until": moment_or_none(request.retained_until),
        "archive_bytes": request.archive_bytes,
        "labels": asked.labels,
        "env": sorted(asked.env),
        "webhook": "" if asked.webhook is None else _shown(asked.webhook.url),
        "told": request.told,
        "complete": None if result is None else result.complete,
        "total_files": 0 if result is None else result.total,
        "failure": request.failure,
        "notes": request.notes,
    }


def _shown(url: str) -> str:
    """Without what may be a secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
