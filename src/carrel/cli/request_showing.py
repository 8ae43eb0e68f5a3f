"""How requests and what they have made are shown to people."""

from __future__ import annotations

import time

from carrel.cli.layout import clean, table
from carrel.cli.showing import age_of, fields
from carrel.cli.values import seconds_of, size_text, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

FILE_HEADS = ("", "LINES", "SIZE", "LANGUAGE", "FILE")
LETTERS = {"added": "A", "modified": "M", "deleted": "D"}


def files_table(files: Iterable[dict[str, Any]]) -> str:
    rows = [
        (
            LETTERS.get(file["change"], "?"),
            "-" if file["lines"] is None else str(file["lines"]),
            "-" if file["change"] == "deleted" else size_text(file["bytes"]),
            file["language"] or "-",
            file["path"],
        )
        for file in files
    ]
    return table(FILE_HEADS, rows, shrink=(3, 4)) if rows else ""


def verdict(result: dict[str, Any]) -> str:
    """Whether it is what was wanted, in a sentence, and why not."""
    total, check = result["total_files"], result["check"]
    count = f"{total} {'file' if total == 1 else 'files'}"
    if result["complete"]:
        return f"Complete: {count}."
    reasons = []
    if not total:
        reasons.append("nothing was made")
    if result["needs_research"]:
        reasons.append("something is missing")
    if check is not None and not check["passed"]:
        reasons.append(f"the check {_check_text(check)}")
    return f"Not complete: {', '.join(reasons) or 'the agent did not say so'} ({count})."


def _check_text(check: dict[str, Any]) -> str:
    if check["reason"] != "exited":
        return f"ended by {check['reason']}"
    return f"ended with {check['code']}"


def result_lines(result: dict[str, Any]) -> list[str]:
    """For people, in the order in which they want to know."""
    lines = [_paragraph(result["summary"])] if result["summary"].strip() else []
    if files := files_table(result["files"]):
        lines.append(files)
    if (more := result["total_files"] - len(result["files"])) > 0:
        lines.append(f"… and {more} more")
    lines += [clean(f"missing: {one}") for one in result["needs_research"]]
    check = result["check"]
    if check is not None and check["output"].strip():
        lines += ["check:", _paragraph(check["output"])]
    return [*lines, verdict(result)]


def _paragraph(text: str) -> str:
    return "\n".join(clean(line) for line in text.strip().splitlines())


def describe(request: dict[str, Any]) -> str:
    failure = request["failure"]
    pairs = [
        ("id", request["request_id"]),
        ("key", request["key"] if request["key"] != request["request_id"] else ""),
        ("state", state_of(request)),
        ("problem", clean(f"{failure['step']}: {failure['message']}") if failure else ""),
        ("hint", clean(failure["hint"]) if failure else ""),
        ("for", clean(request["owner"])),
        ("agent", clean(f"{request['frontend']} {request['model']}".strip())),
        ("instructions", clean(first_line(request["instructions"]))),
        ("kept", _kept(request)),
        ("workspace", f"{request['workspace']} {clean(request['workspace_path'])}".rstrip()),
        ("space", request["space_id"]),
        ("created", f"{request['created_at']} ({age_of(request['created_at'])} ago)"),
        ("ended", request["ended_at"] or ""),
    ]
    pairs += [("note", clean(note)) for note in request["notes"]]
    return fields(pairs)


def state_of(request: dict[str, Any]) -> str:
    """With its place while it waits, and whether what was made is all."""
    if request["place"]:
        return f"{request['state']} ({request['place']}.)"
    return f"{request['state']}, not complete" if request["complete"] is False else request["state"]


def _kept(request: dict[str, Any]) -> str:
    if request["series"]:
        return f"version {request['version'] or '?'} of {request['series']}"
    until = request["retained_until"]
    return f"{request['policy']}, until {until}" if until else str(request["policy"])


def kept_of(request: dict[str, Any]) -> str:
    """In a word or two."""
    if request["series"]:
        return f"{request['series']} {request['version'] or ''}".rstrip()
    until = request["retained_until"]
    if until and request["workspace"] == "there":
        return f"{time_text(seconds_of(until) - time.time())} more"
    return "-" if request["workspace"] in ("none", "gone") else str(request["workspace"])


def first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"
