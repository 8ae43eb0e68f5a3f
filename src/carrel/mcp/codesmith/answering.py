"""What the client gets: the result of a request, or why there is none."""

from __future__ import annotations

import json

from carrel.mcp.codesmith.telling import name_of, plain
from carrel.mcp.codesmith.tool import MOST_FILES, TEXT_BYTES, TEXTS_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from carrel.client.request_models import RequestFrame, RequestResult, ResultFile
    from carrel.mcp.codesmith.session import Called
    from carrel.mcp.handshake import Message


def answer(
    result: RequestResult, name: str, path: str | None, questions: Sequence[str]
) -> tuple[Message, bool]:
    """With a workspace of its own the text of what was made is in it, as far as that can be.
    Also whether all of it is: else the rest has to be fetched."""
    files, left = [], 0 if path else TEXTS_BYTES
    whole = True
    for file in result.files[:MOST_FILES]:
        view = _view(file)
        size = len(file.text.encode("utf-8", "replace")) if file.text is not None else 0
        if file.text is not None and size <= min(left, TEXT_BYTES):
            view["text"] = file.text
            left -= size
        elif file.change != "deleted":
            whole = False
        files.append(view)
    whole = whole and result.total_files == len(files)
    missing = [*result.needs_research, *questions]
    content = {
        "files": files,
        "total_files": result.total_files,
        "complete": result.complete and not missing,
        "needs_research": missing,
        "summary": result.summary,
        "workspace_path": path,
        "check": _check(result),
        "request_id": name,
        "notes": [] if whole or path else [_fetching(name)],
    }
    return content, whole or path is not None


def _view(file: ResultFile) -> dict[str, Any]:
    return {
        "path": name_of(file.path),
        "change": file.change,
        "lines": file.lines,
        "bytes": file.bytes,
        "language": file.language,
        "type": str(file.type),
        "executable": file.executable,
    }


def _check(result: RequestResult) -> dict[str, Any] | None:
    found = result.check
    if found is None:
        return None
    return {
        "passed": found.passed,
        "code": found.code,
        "reason": found.reason,
        "output": found.output,
        "seconds": found.seconds,
    }


def _fetching(name: str) -> str:
    return (
        "Not every file has its text here. For ten minutes all of them can be had:"
        f" carrel request fetch {name} --out FOLDER"
    )


def outcome_lines(outcome: RequestFrame) -> Iterator[str]:
    """For people: how it ended, and each file with its lines."""
    result, failure = outcome.result, outcome.failure
    if result is None:
        yield f"failed: {failure.message} ({failure.code})" if failure else "failed"
        return
    for file in result.files:
        yield f"{file.change} {plain(name_of(file.path))}{_lines(file)}"
    if result.total_files > len(result.files):
        yield f"and {result.total_files - len(result.files)} more"
    for one in result.needs_research:
        yield f"missing: {one}"
    if result.check is not None:
        yield f"check: {'passed' if result.check.passed else 'failed'}"
    total = result.total_files
    count = f"{total} {'file' if total == 1 else 'files'}"
    yield f"{'complete' if result.complete else 'not complete'}: {count}"


def _lines(file: ResultFile) -> str:
    if file.lines is None:
        return "" if file.change == "deleted" else f", {file.bytes} bytes"
    return f", {file.lines} {'line' if file.lines == 1 else 'lines'}"


def refusal(error: Any) -> Message:
    """As errors are told everywhere: code, sentence, what to do."""
    content = {"code": error.code, "message": error.message, "hint": error.hint}
    return {**as_result(content), "isError": True}


def as_result(content: Message) -> Message:
    """Also as text, for clients that know nothing else."""
    text = json.dumps(content, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": content,
        "isError": False,
    }


def response(called: Called, result: Message, about: Message) -> Message:
    """The answer to a call, as its version of the protocol has it."""
    more = {"resultType": "complete", "_meta": about} if called.modern else {}
    return {"jsonrpc": "2.0", "id": called.id, "result": {**result, **more}}
