"""Requests, as the contract has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from carrel.api.types import requests as types
from carrel.api.types.common import members, moment, moment_or_none, shared
from carrel.api.types.runs import Done
from carrel.api.types.spaces import ProjectBody
from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid
from carrel.domain.limits import Limits
from carrel.domain.projects import Project, ProjectKind, project_named
from carrel.domain.requests import (
    DAY_S,
    Check,
    Generate,
    Keeping,
    Policy,
    Request,
    RequestAnswer,
    RequestQuery,
    Webhook,
    Workspace,
)
from carrel.service.access import concealed, is_owner
from carrel.service.operations.spaces import project_of
from carrel.service.requests import Requests
from carrel.service.requests.book import SHOWN_CHARACTERS
from carrel.service.requests.view import file_view, outcome
from carrel.service.shared import CallerSlots

BRIEF = 4
"""Requests whose details, of some megabytes, are read at the same time only to be left out."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
_RESULT = ("complete", "summary", "files", "total_files", "needs_research", "check", "usage")


class RequestOperations:
    def __init__(self, requests: Requests, data: str) -> None:
        self._requests = requests
        self._data = data
        self._turns = CallerSlots(BRIEF)

    async def submit(self, caller: Caller, new: types.NewRequest, key: str) -> types.RequestInfo:
        """`key` is the name of it that came beside the body."""
        return await self._brief(caller, await self._requests.submit(caller, generate(new, key)))

    async def list(self, caller: Caller, asked: types.RequestListQuery) -> types.RequestList:
        """Newest first."""
        query = RequestQuery(
            owner=asked.owner,
            series=asked.series,
            live=asked.live,
            limit=asked.limit + 1,
            before=asked.before,
        )
        found = await self._requests.list(caller, query)
        following = found[asked.limit - 1].key if len(found) > asked.limit else ""
        return types.RequestList(
            requests=tuple(self._listed(caller, one) for one in found[: asked.limit]),
            next=following,
        )

    async def cancel(self, caller: Caller, request: str) -> types.RequestInfo:
        """Nothing of it runs, and its workspace is gone, when this is answered. What has ended
        stays as it is."""
        return await self._brief(caller, await self._requests.cancel(caller, request))

    async def answer(self, caller: Caller, request: str, said: types.RequestAnswerBody) -> Done:
        """To what its agent asks."""
        await self._requests.answer(caller, request, answer_of(said))
        return Done()

    async def extend(
        self, caller: Caller, request: str, asked: types.ExtendBody
    ) -> types.RequestInfo:
        """So long from now on what is retained stays."""
        seconds = _span(asked, "body")
        if seconds is None:
            raise MessageInvalid(
                "The time is missing.", hint="Give `seconds` or `for`.", field="body.seconds"
            )
        return await self._brief(caller, await self._requests.extend(caller, request, seconds))

    async def done(self, caller: Caller, request: str) -> types.RequestInfo:
        """Its files were fetched: what was held for that goes."""
        return await self._brief(caller, await self._requests.done(caller, request))

    async def remove(self, caller: Caller, request: str) -> types.RequestInfo:
        """Ends it if it has not; nothing of it is left but its record."""
        return await self._brief(caller, await self._requests.remove(caller, request))

    async def files(
        self, caller: Caller, request: str, asked: types.MadeQuery
    ) -> types.ResultFileList:
        """What is not as it was, in the order of paths."""
        found = await self._requests.files(caller, request, asked.after, asked.limit + 1)
        shown = [file_view(file) for file in found.files[: asked.limit]]
        following = found.files[asked.limit - 1].path if len(found.files) > asked.limit else ""
        return types.ResultFileList(
            files=cast(Any, tuple(shown)), total=found.total, next=following
        )

    async def versions(self, caller: Caller, series: str) -> types.VersionList:
        """Newest first."""
        found = await self._requests.versions(caller, series)
        return types.VersionList(versions=tuple(self._listed(caller, one) for one in found))

    async def info(self, caller: Caller, request: Request) -> types.RequestInfo:
        """All of it, what its files hold included."""
        return self._told(caller, await self._requests.with_details(request))

    async def _brief(self, caller: Caller, request: Request) -> types.RequestInfo:
        """All but what its files hold: who changed something did not ask for that."""
        async with self._turns.of(caller.account):
            return self._told(caller, await self._requests.with_details(request), content=False)

    def _told(self, caller: Caller, request: Request, *, content: bool = True) -> types.RequestInfo:
        result = None
        if request.result is not None:
            told = outcome(request, "", content=content).data
            result = types.ResultInfo(**{name: cast(Any, told[name]) for name in _RESULT})
        whole = {"instructions": request.asked.instructions, "result": result}
        return types.RequestInfo(**{**self._members(caller, request), **whole})

    def _listed(self, caller: Caller, request: Request) -> types.ListedRequest:
        return types.ListedRequest(**self._members(caller, request))

    def _members(self, caller: Caller, request: Request) -> dict[str, Any]:
        """Never values of variables, nor the secret of a webhook."""
        asked, result = request.asked, request.result
        shows_path = request.workspace is Workspace.THERE and is_owner(caller)
        told = {
            "place": self._requests.place(request),
            "instructions": asked.instructions[:SHOWN_CHARACTERS],
            "policy": asked.keeping.policy,
            "series": asked.keeping.series,
            "workspace_path": self._requests.path_of(request) if shows_path else "",
            "created_at": moment(request.created_at),
            "updated_at": moment(request.updated_at),
            "ended_at": moment_or_none(request.ended_at),
            "delivered_at": moment_or_none(request.delivered_at),
            "retained_until": moment_or_none(request.retained_until),
            "env": tuple(sorted(asked.env)),
            "webhook": "" if asked.webhook is None else _shown(asked.webhook.url),
            "complete": None if result is None else result.complete,
            "total_files": 0 if result is None else result.total,
            "failure": concealed(caller, self._data, request.failure),
            "notes": concealed(caller, self._data, request.notes),
        }
        kind = types.ListedRequest
        return {**shared(asked, kind), **shared(request, kind), **told}


def generate(new: types.NewRequest, key: str = "") -> Generate:
    """Raises `MessageInvalid`."""
    if key and new.request_id not in ("", key):
        raise MessageInvalid(
            "Idempotency-Key and request_id are not the same.",
            hint="Leave one of them out.",
            field="request_id",
        )
    limits = members(new.limits)
    tier, timeout_s = limits.pop("tier"), limits.pop("timeout_s")
    named = isinstance(new.context, dict)
    understood = {
        "request_id": new.request_id or key,
        "project": _project(new.project),
        "workspace_path": new.workspace_path or "",
        "frontend": new.frontend or "",
        "architecture": _architecture(new.architecture),
        "context": "" if named else str(new.context or ""),
        "context_files": new.context if named else {},
        "keeping": _keeping(new.retention),
        "tier": tier,
        "limits": Limits(**limits),
        "timeout_s": timeout_s,
        "check": _check(new.check),
        "webhook": _webhook(new.webhook),
    }
    return Generate(**{**shared(new, Generate), **understood})


def _project(said: str | ProjectBody | None) -> Project | None:
    if not said:
        return None
    if isinstance(said, ProjectBody):
        project = project_of(said)
        return None if project.kind is ProjectKind.EMPTY else project
    return project_named(said)


def _architecture(said: str | Mapping[str, Any] | None) -> str:
    if said is None or isinstance(said, str):
        return said or ""
    try:
        return json.dumps(said, indent=2, ensure_ascii=False)
    except (RecursionError, ValueError):
        raise MessageInvalid(
            "The architecture cannot be stored.",
            hint="Send it as text.",
            field="architecture",
        ) from None


def _keeping(said: Policy | types.KeepingBody) -> Keeping:
    if isinstance(said, Policy):
        return Keeping(policy=said)
    seconds = _span(said, "retention")
    usual = Policy.EPHEMERAL if seconds is None else Policy.RETAIN
    policy = said.policy or (Policy.VERSIONED if said.series else usual)
    if seconds is not None and policy is not Policy.RETAIN:
        raise MessageInvalid(
            f"The policy {policy} takes no time.",
            hint="Leave `seconds` and `for` out, or use the policy `retain`.",
            field="retention.seconds" if said.for_ is None else "retention.for",
        )
    return Keeping(
        policy=policy,
        seconds=DAY_S if seconds is None else seconds,
        series=said.series,
        newest=said.newest,
        older=said.older,
        hold_s=said.hold_s,
    )


def _span(said: types.KeepingBody | types.ExtendBody, where: str) -> float | None:
    """The time that was said in one of two ways."""
    if said.seconds is not None and said.for_ is not None:
        raise MessageInvalid(
            "`seconds` and `for` cannot be used together.",
            hint="Leave one of them out.",
            field=f"{where}.for",
        )
    return said.seconds if said.for_ is None else float(said.for_[:-1]) * _UNITS[said.for_[-1]]


def _check(said: str | tuple[str, ...] | types.CheckBody | None) -> Check | None:
    if said is None:
        return None
    if isinstance(said, types.CheckBody):
        return Check(_argv(said.command), said.timeout_s)
    return Check(_argv(said))


def _argv(command: str | tuple[str, ...]) -> tuple[str, ...]:
    return ("sh", "-c", command) if isinstance(command, str) else command


def _webhook(said: str | types.WebhookBody | None) -> Webhook | None:
    if said is None:
        return None
    return Webhook(said) if isinstance(said, str) else Webhook(said.url, said.secret)


def answer_of(said: types.RequestAnswerBody) -> RequestAnswer:
    if said.text is not None and said.answer is not None:
        raise MessageInvalid(
            "`text` and `answer` cannot be used together.",
            hint="Leave one of them out.",
            field="answer",
        )
    text = said.text if said.text is not None else said.answer
    if text is None and said.allow is None:
        raise MessageInvalid("There is no answer.", hint="Give `text` or `allow`.", field="text")
    return RequestAnswer(text=text or "", id=said.id, allow=said.allow)


def _shown(url: str) -> str:
    """Without what may be a secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
