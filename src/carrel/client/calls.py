"""Every question one can ask the daemon: the request, and how its answer is read.

The sync and the async client send the same calls and differ only in the waiting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypedDict, TypeVar

from carrel.client import models
from carrel.client.projects import describe
from carrel.client.requests import LONG_S, Request, asking, run_path, space_path, telling
from carrel.client.wire import segment
from carrel.domain.agents import Attachment, Continuation
from carrel.domain.limits import Limits
from carrel.domain.spaces import Retention

T = TypeVar("T")
Project = str | os.PathLike[str] | None
PAGE = 200
WAIT_S = 30.0
"""How long one request waits for the end of a command; then it is asked again."""


@dataclass(frozen=True)
class Call(Generic[T]):
    request: Request
    decode: Callable[[Any], T]


class SpaceOptions(TypedDict, total=False):
    """All that can be said about a new space, beside its project."""

    name: str
    ref: str
    base: str
    exclude: Sequence[str]
    max_bytes: int
    max_files: int
    runtime: str
    driver: str
    network: str
    tier: str
    limits: Limits
    labels: Mapping[str, str]
    env: Mapping[str, str]
    retention: Retention
    description: str
    agent: str
    mcp: Sequence[str]


class TurnOptions(TypedDict, total=False):
    """All that can be said about a turn, beside what is to be done."""

    frontend: str
    model: str
    session: str
    continuation: Continuation
    permission: str
    env: Mapping[str, str]
    attachments: Sequence[Attachment]
    system_prompt: str
    timeout_s: float
    answer_s: float


def turn_content(prompt: str, options: TurnOptions) -> dict[str, Any]:
    content: dict[str, Any] = {"prompt": prompt, **options}
    if "continuation" in content:
        content["continuation"] = asdict(content["continuation"])
    if "env" in content:
        content["env"] = dict(content["env"])
    if "attachments" in content:
        content["attachments"] = [_attached(one) for one in content["attachments"]]
    return content


def _attached(one: Attachment) -> dict[str, str]:
    folder = "context" if one.in_context else "tree"
    return {"path": one.path, "folder": folder, "media_type": one.media_type}


def space_content(project: Project, options: SpaceOptions) -> dict[str, Any]:
    content: dict[str, Any] = dict(options)
    ref = content.pop("ref", None)
    if "base" not in content:
        content["project"] = describe(project, ref)
    for name in ("limits", "retention"):
        if name in content:
            content[name] = asdict(content[name])
    for name in ("labels", "env"):
        if name in content:
            content[name] = dict(content[name])
    for name in ("exclude", "mcp"):
        if name in content:
            content[name] = list(content[name])
    return content


class CommandOptions(TypedDict, total=False):
    """`env` is added to the space's own; `cwd` is relative to the tree."""

    env: Mapping[str, str]
    cwd: str
    timeout_s: float | None


def command_content(argv: Sequence[str], options: CommandOptions) -> dict[str, Any]:
    content: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "env" in content:
        content["env"] = dict(content["env"])
    return {"argv": list(argv), **content}


# The daemon


def info() -> Call[models.Info]:
    return _one(asking("/v1/info"), models.Info)


def doctor() -> Call[models.Diagnosis]:
    return _one(asking("/v1/doctor", timeout_s=LONG_S), models.Diagnosis)


def collect(dry_run: bool) -> Call[models.Report]:
    request = telling("POST", "/v1/gc", {"dry_run": dry_run}, timeout_s=LONG_S)
    return _one(request, models.Report)


def bases() -> Call[list[models.Base]]:
    return _list(asking("/v1/bases"), "bases", models.Base)


def make_base(project: Project, ref: str | None, exclude: Sequence[str]) -> Call[models.Base]:
    content = {"project": describe(project, ref), "exclude": list(exclude)}
    return _one(telling("POST", "/v1/bases", content, timeout_s=LONG_S, again=True), models.Base)


def tokens() -> Call[list[models.Token]]:
    return _list(asking("/v1/tokens"), "tokens", models.Token)


def create_token(scope: str, name: str, ttl_s: float | None) -> Call[models.NewToken]:
    content = {"scope": scope, "name": name, "ttl_s": ttl_s}
    return _one(telling("POST", "/v1/tokens", content), models.NewToken)


def revoke_token(token: str) -> Call[None]:
    return Call(Request("DELETE", f"/v1/tokens/{segment(token)}"), _nothing)


# Spaces


def spaces(
    states: Iterable[str], labels: Mapping[str, str], name: str, after: str
) -> Call[tuple[list[models.SpaceInfo], str]]:
    """A page, and where the next begins."""
    query: list[tuple[str, object]] = [("limit", PAGE)]
    query += [("state", state) for state in states]
    query += [("label", f"{key}={value}") for key, value in labels.items()]
    query += [(key, value) for key, value in (("name", name), ("after", after)) if value]
    return Call(asking("/v1/spaces", query), _page)


def _page(content: Any) -> tuple[list[models.SpaceInfo], str]:
    return models.decode(content["spaces"], list[models.SpaceInfo]), content.get("next") or ""


def space(word: str) -> Call[models.SpaceInfo]:
    return _one(asking(space_path(word)), models.SpaceInfo)


def update(
    word: str,
    name: str | None,
    labels: Mapping[str, str] | None,
    retention: Retention | None,
) -> Call[models.SpaceInfo]:
    content: dict[str, object] = {}
    if name is not None:
        content["name"] = name
    if labels is not None:
        content["labels"] = dict(labels)
    if retention is not None:
        content["retention"] = asdict(retention)
    return _one(telling("PATCH", space_path(word), content), models.SpaceInfo)


def stop(word: str, grace_s: float) -> Call[models.SpaceInfo]:
    content = {"grace_s": grace_s}
    request = telling("POST", space_path(word, "stop"), content, timeout_s=LONG_S, again=True)
    return _one(request, models.SpaceInfo)


def start(word: str) -> Call[models.SpaceInfo]:
    request = telling("POST", space_path(word, "start"), timeout_s=LONG_S, again=True)
    return _one(request, models.SpaceInfo)


def remove(word: str, force: bool) -> Call[models.Removal]:
    request = Request("DELETE", space_path(word), [("force", force)], timeout_s=LONG_S)
    return _one(request, models.Removal)


def changes(word: str) -> Call[list[models.Change]]:
    request = asking(space_path(word, "changes"), timeout_s=LONG_S)
    return _list(request, "changes", models.Change)


def usage(word: str) -> Call[models.Usage]:
    return _one(asking(space_path(word, "usage"), timeout_s=LONG_S), models.Usage)


def usage_of_all() -> Call[list[models.Usage]]:
    return _list(asking("/v1/usage", timeout_s=LONG_S), "usage", models.Usage)


def verify(word: str) -> Call[models.Proof]:
    request = telling("POST", space_path(word, "verify"), timeout_s=LONG_S, again=True)
    return _one(request, models.Proof)


def trash() -> Call[list[models.Trashed]]:
    return _list(asking("/v1/trash"), "trash", models.Trashed)


def undelete(word: str) -> Call[models.SpaceInfo]:
    request = telling("POST", f"/v1/trash/{segment(word)}/restore", timeout_s=LONG_S)
    return _one(request, models.SpaceInfo)


# Runs


def start_run(word: str, content: Mapping[str, object]) -> Call[models.RunInfo]:
    return _one(telling("POST", space_path(word, "runs"), content), models.RunInfo)


def runs(word: str) -> Call[list[models.RunInfo]]:
    return _list(asking(space_path(word, "runs")), "runs", models.RunInfo)


def run(run_id: str) -> Call[models.RunInfo]:
    return _one(asking(run_path(run_id)), models.RunInfo)


def wait(run_id: str, timeout_s: float) -> Call[models.RunInfo]:
    query = [("timeout_s", timeout_s)]
    return _one(asking(run_path(run_id, "wait"), query, timeout_s=LONG_S), models.RunInfo)


def waits(timeout_s: float | None) -> Iterator[float]:
    """How long each of several requests is to wait, until the time is over."""
    if timeout_s is None:
        while True:
            yield WAIT_S
    until = time.monotonic() + timeout_s
    left = timeout_s
    while True:
        yield max(0.0, min(left, WAIT_S))
        left = until - time.monotonic()
        if left <= 0:
            return


def output(run_id: str, stream: str, offset: int) -> Request:
    return Request(
        "GET", run_path(run_id, "output"), [("stream", stream), ("offset", offset)], again=True
    )


def signal(run_id: str, name: str) -> Call[None]:
    content = {"signal": name.upper().removeprefix("SIG")}
    return Call(telling("POST", run_path(run_id, "signal"), content), _nothing)


# Agents


def start_turn(word: str, content: Mapping[str, object]) -> Call[models.Turn]:
    # It may wait for the servers of its space.
    request = telling("POST", space_path(word, "turns"), content, timeout_s=LONG_S)
    return _one(request, models.Turn)


def turns(word: str) -> Call[list[models.Turn]]:
    return _list(asking(space_path(word, "turns")), "turns", models.Turn)


def turn(turn_id: str, wait_s: float = 0.0) -> Call[models.Turn]:
    query = [("wait_s", wait_s)]
    return _one(asking(_turn_path(turn_id), query, timeout_s=LONG_S), models.Turn)


def interrupt(turn_id: str) -> Call[models.Turn]:
    return _one(telling("POST", f"{_turn_path(turn_id)}/interrupt"), models.Turn)


def stop_turn(turn_id: str) -> Call[models.Turn]:
    return _one(telling("POST", f"{_turn_path(turn_id)}/stop"), models.Turn)


def terminal(word: str, read_only: bool) -> Call[models.Attaching]:
    query = [("read_only", str(read_only).lower())]
    return _one(asking(space_path(word, "terminal"), query), models.Attaching)


def queue_input(turn_id: str, text: str) -> Call[models.Turn]:
    return _one(telling("POST", f"{_turn_path(turn_id)}/input", {"text": text}), models.Turn)


def decide(turn_id: str, permission: str, allow: bool) -> Call[models.Turn]:
    path = f"{_turn_path(turn_id)}/permissions/{segment(permission)}"
    return _one(telling("POST", path, {"allow": allow}), models.Turn)


def _turn_path(turn_id: str) -> str:
    return f"/v1/turns/{segment(turn_id)}"


def context(word: str) -> Call[list[models.ContextFile]]:
    return _list(asking(space_path(word, "context")), "files", models.ContextFile)


def put_context(word: str, name: str, data: bytes) -> Call[None]:
    headers = [("Content-Type", "application/octet-stream")]
    return Call(Request("PUT", _context_path(word, name), body=data, headers=headers), _nothing)


def remove_context(word: str, name: str) -> Call[None]:
    return Call(Request("DELETE", _context_path(word, name)), _nothing)


def _context_path(word: str, name: str) -> str:
    return space_path(word, "context", segment(name))


def agents() -> Call[list[models.FoundFrontend]]:
    request = asking("/v1/agents", timeout_s=LONG_S)
    return _list(request, "frontends", models.FoundFrontend)


# Files


def stat(word: str, path: str) -> Call[models.File]:
    return _one(asking(space_path(word, "files", "stat"), [("path", path)]), models.File)


def list_files(word: str, path: str) -> Call[list[models.File]]:
    request = asking(space_path(word, "files", "list"), [("path", path)])
    return _list(request, "entries", models.File)


def read(word: str, path: str, start: int = 0, end: int | None = None) -> Request:
    """Of its bytes, or those from `start` up to (not with) `end`."""
    headers: list[tuple[str, str]] = []
    if start or end is not None:
        headers = [("Range", f"bytes={start}-{'' if end is None else end - 1}")]
    return Request("GET", space_path(word, "files"), [("path", path)], headers=headers)


def write(
    word: str, path: str, data: bytes | Iterable[bytes], mode: int | None = None
) -> Call[None]:
    query: list[tuple[str, object]] = [("path", path)]
    if mode is not None:
        query.append(("mode", f"{mode:03o}"))
    headers = [("Content-Type", "application/octet-stream")]
    request = Request("PUT", space_path(word, "files"), query, body=data, headers=headers)
    return Call(request, _nothing)


def delete(word: str, path: str, recursive: bool) -> Call[None]:
    query: list[tuple[str, object]] = [("path", path), ("recursive", recursive)]
    return Call(Request("DELETE", space_path(word, "files"), query), _nothing)


def move(word: str, source: str, target: str, replace: bool) -> Call[None]:
    content = {"source": source, "target": target, "replace": replace}
    return Call(telling("POST", space_path(word, "files", "move"), content), _nothing)


def mkdir(word: str, path: str, mode: int, parents: bool) -> Call[None]:
    content = {"path": path, "mode": f"{mode:03o}", "parents": parents}
    return Call(telling("POST", space_path(word, "files", "mkdir"), content), _nothing)


# Reading answers


def _one(request: Request, kind: type[T]) -> Call[T]:
    return Call(request, lambda content: models.decode(content, kind))


def _list(request: Request, member: str, kind: type[T]) -> Call[list[T]]:
    return Call(request, lambda content: models.decode(content[member], list[kind]))  # type: ignore[valid-type]


def _nothing(_content: Any) -> None:
    """The answer only says that it is done."""
