"""What the daemon tells of requests."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from carrel.client.models import Record, decode
from carrel.domain.agents import NOTHING_SPENT, Usage
from carrel.domain.projects import Project
from carrel.domain.requests import Checked, FrameKind, Policy, RequestState, Workspace
from carrel.domain.trees import EntryType

Data = bytes
OUTCOMES = (FrameKind.RESULT, FrameKind.ERROR)


class ResultFile(Record, frozen=True, kw_only=True):
    """One entry that is not as it was: added, modified or deleted."""

    path: str
    change: str
    bytes: int = 0
    lines: int | None = None
    language: str = ""
    type: EntryType = EntryType.FILE
    executable: bool = False
    text: str | None = None
    base64: str | None = None

    @property
    def data(self) -> Data | None:
        """What is in it, where the result says."""
        if self.text is not None:
            return self.text.encode("utf-8", "surrogateescape")
        return None if self.base64 is None else b64decode(self.base64)


class RequestResult(Record, frozen=True, kw_only=True):
    """`complete`: the agent ended well, something was made, nothing is missing and the check
    passed. `files` are the first of `total_files`."""

    complete: bool
    summary: str = ""
    files: tuple[ResultFile, ...] = ()
    total_files: int = 0
    needs_research: tuple[str, ...] = ()
    check: Checked | None = None
    usage: Usage = NOTHING_SPENT
    space_id: str = ""
    workspace: Workspace = Workspace.NONE
    retained_until: float | None = None
    """Seconds since 1970."""
    series: str = ""
    version: int = 0


class RequestFailure(Record, frozen=True, kw_only=True):
    """Why there is no result."""

    code: str
    message: str
    step: str = ""
    retriable: bool = False
    hint: str = ""


class RequestFrame(Record, frozen=True, kw_only=True):
    """One thing that is heard of a request; which members say something depends on `type`.
    `raw` is all of it as it came."""

    type: FrameKind
    request_id: str = ""
    seq: int = 0
    """It grows; 0: live, and not told again."""
    place: int = 0
    space_id: str = ""
    workspace_path: str = ""
    progress: float = 0.0
    message: str = ""
    event: dict[str, Any] | None = None
    id: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()
    permission: dict[str, Any] | None = None
    result: RequestResult | None = None
    failure: RequestFailure | None = None
    raw: Mapping[str, Any] = msgspec.field(default_factory=dict)


def frame_of(content: Mapping[str, Any]) -> RequestFrame:
    """Raises `DaemonUnavailable` for what cannot be read."""
    more: dict[str, Any] = {"raw": content}
    if content.get("type") == FrameKind.RESULT:
        more["result"] = decode(content, RequestResult)
    elif content.get("type") == FrameKind.ERROR:
        more["failure"] = decode(content, RequestFailure)
    return msgspec.structs.replace(decode(content, RequestFrame), **more)


class RequestInfo(Record, frozen=True, kw_only=True):
    """The record of one. `result` is not in lists."""

    request_id: str
    key: str
    state: RequestState
    caller: str = ""
    owner: str = ""
    place: int = 0
    tool: str = ""
    instructions: str = ""
    project: Project | None = None
    frontend: str = ""
    model: str = ""
    policy: Policy = Policy.EPHEMERAL
    series: str = ""
    version: int = 0
    space_id: str = ""
    workspace: Workspace = Workspace.NONE
    workspace_path: str = ""
    run_id: str = ""
    check_run_id: str = ""
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    delivered_at: datetime | None = None
    retained_until: datetime | None = None
    archive_bytes: int = 0
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    env: tuple[str, ...] = ()
    webhook: str = ""
    told: int = 0
    complete: bool | None = None
    total_files: int = 0
    failure: RequestFailure | None = None
    notes: tuple[str, ...] = ()
    result: RequestResult | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


@dataclass
class Saved:
    """What was put into a folder, and what was left out, with the reason."""

    folder: str
    files: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def skip(self, path: str, why: str) -> None:
        self.skipped.append((path, why))
