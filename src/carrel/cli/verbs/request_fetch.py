"""carrel request fetch: what a request has made, taken out of its workspace."""

from __future__ import annotations

import os

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.cli.output import flush
from carrel.cli.requesting import FORCE, OUT, REQUEST, request_path
from carrel.cli.spec import FILES, TEXT, Argument, Option, Verb
from carrel.cli.terminal import write_all
from carrel.client.requests import LONG_S, Answer, Request
from carrel.client.wire import segment

VERB = Verb(
    "Fetch what a request has made: one file, all of them, or an archive.",
    REQUEST,
    Argument("path", required=False),
    details=(
        "A path is printed. With --out all files go into that folder, and nothing anywhere else; "
        "what is there already stays, unless --force is given. What was deleted is not deleted "
        "there."
    ),
    options=(
        OUT,
        FORCE,
        Option(
            "--archive", kind=TEXT, metavar="FILE", completes=FILES, help="Write a tar.gz; - too."
        ),
        Option("--all", help="Everything that is there, not only what changed."),
        Option("--done", help="They are not needed any more there."),
    ),
)


def run(call: Call) -> int:
    path, out, archive = call.text("path"), call.text("out"), call.text("archive")
    if sum(map(bool, (path, out, archive))) != 1:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid("What is to be fetched?", hint="Give a path, --out or --archive.")
    if out:
        _save(call, out)
    elif path:
        where = request_path(call.text("request"), "files", *map(segment, path.split("/")))
        _stream(call, Request("GET", where, timeout_s=LONG_S), "-")
    else:
        query = [("all", "true")] if call.flag("all") else []
        where = request_path(call.text("request"), "archive")
        _stream(call, Request("GET", where, query, timeout_s=LONG_S), archive)
    if call.flag("done"):
        from carrel.cli.requesting import done

        done(call, call.text("request"))
    return 0


def _save(call: Call, out: str) -> None:
    from carrel.cli.saving import save, saved_view

    saved = save(call, call.text("request"), out, everything=call.flag("all"))
    if call.json:
        call.show(saved_view(saved))
        return
    for name in saved.files:
        call.say(clean(name))


def _stream(call: Call, request: Request, target: str) -> None:
    """To standard output, or into a new file."""
    with call.link.open(request) as stream:
        if stream.head.status >= 400:
            Answer(stream.head, stream.read()).check()
        flush()
        if target == "-":
            for piece in stream:
                write_all(1, piece)
            return
        kind = os.O_TRUNC if call.flag("force") else os.O_EXCL
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | kind, 0o666)
        try:
            for piece in stream:
                write_all(descriptor, piece)
        finally:
            os.close(descriptor)
