"""Requests: what was asked for, what became of it, and what was made."""

from __future__ import annotations

import os
import time

from carrel.cli import values
from carrel.cli.call import VerbCall, each, invalid
from carrel.cli.output import AnswerTable, clean, fields
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.terminal import check_stream, write_stream
from carrel.cli.values import age_of, seconds_of, size_text, time_text
from carrel.cli.verbs.spaces import CHANGE_LETTERS, pages
from carrel.client.http import HttpRequest, operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGE = 50
FILES_PAGE = 10_000
REQUEST = Argument("request")
SERIES = Argument("series")
OUT = Option("--out FOLDER", "Put the files there; the folder is made.")
FORCE = Option("--force", "Replace files that are there already.")


# How requests are shown


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"


def _state(request: dict[str, Any]) -> str:
    """With its place while it waits, and whether what was made is all."""
    if request["place"]:
        return f"{request['state']} ({request['place']}.)"
    return f"{request['state']}, not complete" if request["complete"] is False else request["state"]


def _kept(request: dict[str, Any]) -> str:
    """How long it is kept, in a word or two."""
    if request["series"]:
        return f"{request['series']} {request['version'] or ''}".rstrip()
    until = request["retained_until"]
    if until and request["workspace"] == "there":
        return f"{time_text(seconds_of(until) - time.time())} more"
    return "-" if request["workspace"] in ("none", "gone") else str(request["workspace"])


def _retention(request: dict[str, Any]) -> str:
    if request["series"]:
        return f"version {request['version'] or '?'} of {request['series']}"
    until = request["retained_until"]
    return f"{request['policy']}, until {until}" if until else str(request["policy"])


REQUESTS = AnswerTable(
    "requests",
    {
        "ID": "request_id",
        "STATE": _state,
        "AGE": lambda one: age_of(one["created_at"]),
        "AGENT": "frontend",
        "KEPT": _kept,
        "FILES": lambda one: str(one["total_files"]) if one["complete"] is not None else "-",
        "INSTRUCTIONS": lambda one: _first_line(one["instructions"]),
    },
    shrink=("INSTRUCTIONS", "KEPT"),
    empty="There are no requests.",
)
VERSIONS = AnswerTable(
    "versions",
    {
        "VERSION": lambda one: str(one["version"]),
        "ID": "request_id",
        "AGE": lambda one: age_of(one["created_at"]),
        "FILES": lambda one: str(one["total_files"]),
        "COMPLETE": lambda one: "yes" if one["complete"] else "no",
        "THERE": lambda one: {"there": "yes", "gone": "no"}.get(one["workspace"], one["workspace"]),
        "INSTRUCTIONS": lambda one: _first_line(one["instructions"]),
    },
    shrink=("INSTRUCTIONS", "ID"),
)
MADE = AnswerTable(
    "files",
    {
        "": lambda file: CHANGE_LETTERS.get(file["change"], "?"),
        "LINES": lambda file: "-" if file["lines"] is None else str(file["lines"]),
        "SIZE": lambda file: "-" if file["change"] == "deleted" else size_text(file["bytes"]),
        "LANGUAGE": "language",
        "FILE": "path",
    },
    shrink=("LANGUAGE", "FILE"),
    empty="Nothing has changed there.",
)


def _describe(request: dict[str, Any]) -> str:
    failure = request["failure"]
    pairs = [
        ("id", request["request_id"]),
        ("key", request["key"] if request["key"] != request["request_id"] else ""),
        ("state", _state(request)),
        ("problem", clean(f"{failure['step']}: {failure['message']}") if failure else ""),
        ("hint", clean(failure["hint"]) if failure else ""),
        ("for", clean(request["owner"])),
        ("agent", clean(f"{request['frontend']} {request['model']}".strip())),
        ("instructions", clean(_first_line(request["instructions"]))),
        ("kept", _retention(request)),
        ("workspace", f"{request['workspace']} {clean(request['workspace_path'])}".rstrip()),
        ("space", request["space_id"]),
        ("created", f"{request['created_at']} ({age_of(request['created_at'])} ago)"),
        ("ended", request["ended_at"] or ""),
    ]
    pairs += [("note", clean(note)) for note in request["notes"]]
    text = fields(pairs)
    result = request["result"]
    return text if result is None else f"{text}\n\n{describe_result(result)}"


def describe_result(result: dict[str, Any]) -> str:
    """For people, in the order in which they want to know."""
    lines = [_paragraph(result["summary"])] if result["summary"].strip() else []
    if files := MADE(result):
        lines.append(files)
    if (more := result["total_files"] - len(result["files"])) > 0:
        lines.append(f"… and {more} more")
    lines += [clean(f"missing: {one}") for one in result["needs_research"]]
    check = result["check"]
    if check is not None and check["output"].strip():
        lines += ["check:", _paragraph(check["output"])]
    return "\n".join([*lines, _verdict(result)])


def _paragraph(text: str) -> str:
    return "\n".join(clean(line) for line in text.strip().splitlines())


def _verdict(result: dict[str, Any]) -> str:
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
        exited = check["reason"] == "exited"
        how = f"ended with {check['code']}" if exited else f"ended by {check['reason']}"
        reasons.append(f"the check {how}")
    return f"Not complete: {', '.join(reasons) or 'the agent did not say so'} ({count})."


# Verbs

request_show = Verb(
    REQUEST,
    help="Show one request: its state, what it made, why it failed.",
    ask="requests.show",
    text=_describe,
)
request_versions = Verb(
    SERIES,
    help="List the versions of a series, newest first.",
    ask="requests.versions",
    text=VERSIONS,
)


@Verb(
    Option("--live", "List only those that have not ended."),
    Option("--owner NAME", "List only those for this owner."),
    Option("--series NAME", "List only versions of this series."),
    Option("--limit N", f"List at most this many ({PAGE})."),
    Option("-q, --quiet", "Print ids only."),
)
def request_ls(call: VerbCall) -> None:
    """List requests, newest first."""
    query: list[tuple[str, object]] = [("limit", call.whole("limit") or PAGE)]
    query += [(name, call.text(name)) for name in ("owner", "series") if call.text(name)]
    query += [("live", "true")] if call.flag("live") else []
    answer = call.ask("requests.list", query=query)
    if call.flag("quiet") and not call.json:
        for one in answer["requests"]:
            call.say(one["request_id"])
        return
    call.answer(answer, REQUESTS)
    if answer["next"] and not call.json:
        call.note(f"There are more: --limit {2 * len(answer['requests'])}")


@Verb(REQUEST)
def request_cancel(call: VerbCall) -> None:
    """Cancel a request; its workspace is removed."""
    found = call.ask("requests.cancel", call.text("request"))
    call.answer(found)
    if found["state"] != "cancelled" and not call.json:
        call.note(f"It has ended before: {found['state']}.")


@Verb(
    REQUEST,
    Argument("answer", required=False),
    Option("--id QUESTION", "Answer this question, when there are several."),
    Option("--allow", "Give it the permission that it asks for."),
    Option("--deny", "Deny it the permission that it asks for."),
)
def request_answer(call: VerbCall) -> None:
    """Answer what the agent of a request asks."""
    if sum((call.flag("allow"), call.flag("deny"), bool(call.text("answer")))) != 1:
        raise invalid("Exactly one answer is needed.", hint="Give a text, --allow or --deny.")
    body: dict[str, object] = {"id": call.text("id")} if call.text("id") else {}
    if call.text("answer"):
        body["text"] = call.text("answer")
    else:
        body["allow"] = call.flag("allow")
    call.answer(call.ask("requests.answer", call.text("request"), content=body))


@Verb(REQUEST, Argument("time"))
def request_extend(call: VerbCall) -> None:
    """Keep the workspace of a request for this long from now on."""
    try:
        body = {"seconds": values.seconds(call.text("time"))}
    except ValueError as error:
        raise invalid(str(error)) from None
    found = call.ask("requests.extend", call.text("request"), content=body)
    call.answer(found, lambda request: request["retained_until"])


@Verb(Argument("request", many=True))
def request_rm(call: VerbCall) -> int:
    """Remove the workspaces and archives of requests; those under way are ended."""
    words = call.texts("request")
    return each(call, words, lambda one: call.ask("requests.remove", one), names=False)


# What was made


@Verb(REQUEST)
def request_files(call: VerbCall) -> None:
    """List the files that a request has made or changed."""
    query: list[tuple[str, object]] = [("limit", FILES_PAGE)]
    files = pages(call, "requests.files", "files", call.text("request"), query=query)
    call.answer({"files": files, "total": len(files)}, MADE)


@Verb(
    REQUEST,
    Argument("path", required=False),
    OUT,
    FORCE,
    Option("--archive FILE", "Write a tar.gz; - is standard output."),
    Option("--all", "Fetch everything that is there, not only what changed."),
    Option("--done", "Say that the files are not needed any more."),
)
def request_fetch(call: VerbCall) -> None:
    """Fetch what a request has made: one file, all of them, or an archive.

    A file named by PATH is printed. With --out all files go into that folder, and nothing
    anywhere else; existing files stay, unless --force is given. Nothing is deleted there.
    """
    name = call.text("request")
    path, out, archive = call.text("path"), call.text("out"), call.text("archive")
    if sum(map(bool, (path, out, archive))) != 1:
        raise invalid(
            "Exactly one thing to fetch is needed.", hint="Give a path, --out or --archive."
        )
    if out:
        saved = save(call, name, out, everything=call.flag("all"))
        call.answer(saved, lambda saved: "\n".join(map(clean, saved["files"])))
    elif path:
        _download(call, operation("requests.fetch", name, path), "-")
    else:
        query = [("all", "true")] if call.flag("all") else []
        _download(call, operation("requests.archive", name, query=query), archive)
    if call.flag("done"):
        call.ask("requests.done", name)


def _download(call: VerbCall, request: HttpRequest, target: str) -> None:
    """To standard output, or into a new file, which is not made for an error."""
    with call.link.open(request) as stream:
        if target == "-":
            write_stream(stream, 1)
            return
        check_stream(stream)
        kind = os.O_TRUNC if call.flag("force") else os.O_EXCL
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | kind, 0o666)
        try:
            write_stream(stream, descriptor)
        finally:
            os.close(descriptor)


def check_folder(out: str) -> None:
    """Said before anybody has worked for it. `PathWrongKind`."""
    if out and os.path.lexists(out) and not os.path.isdir(out):
        from carrel.domain.errors import PathWrongKind

        raise PathWrongKind(
            f"{out} is not a folder.", hint="Name a folder, or a path that does not exist yet."
        )


def save(call: VerbCall, request: str, out: str, *, everything: bool = False) -> dict[str, Any]:
    """Puts the files of a request into a folder of this machine, and tells what was left out.
    `PathExists` when something is there already."""
    from carrel.client.requests import Requests

    check_folder(out)
    saved = Requests(call.link).save(
        request, out, everything=everything, replace=call.flag("force")
    )
    for name, why in saved.skipped:
        call.note(clean(f"left out: {name}: {why}"))
    skipped = [{"path": name, "why": why} for name, why in saved.skipped]
    return {"folder": saved.folder, "files": list(saved.files), "skipped": skipped}


@Verb(
    SERIES,
    Option("--from N", "The earlier version; 0 is an empty one."),
    Option("--to N", "The later version."),
)
def request_diff(call: VerbCall) -> None:
    """Show how two versions of a series differ, as git does.

    Without numbers it compares the newest with the one before.
    """
    query = [(one, call.whole(one)) for one in ("from", "to") if call.whole(one) is not None]
    request = operation("requests.diff", call.text("series"), query=query)
    if call.json:
        diff = call.link.ask(request).check().body
        call.show({"diff": diff.decode("utf-8", "replace")})
        return
    with call.link.open(request) as stream:
        write_stream(stream, 1)
