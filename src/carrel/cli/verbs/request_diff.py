"""carrel request diff: how two versions of a series differ."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.output import flush
from carrel.cli.requesting import series_path
from carrel.cli.spec import WHOLE, Argument, Option, Verb
from carrel.cli.terminal import write_all
from carrel.client.requests import LONG_S, Answer, Request

VERB = Verb(
    "Show how two versions of a series differ, as git does.",
    Argument("series"),
    details="Without numbers: the newest against the one before it.",
    options=(
        Option("--from", kind=WHOLE, metavar="N", help="The earlier one; 0 is nothing at all."),
        Option("--to", kind=WHOLE, metavar="N", help="The later one."),
    ),
)


def run(call: Call) -> int:
    query = [(one, call.whole(one)) for one in ("from", "to") if call.whole(one) is not None]
    request = Request("GET", series_path(call.text("series"), "diff"), query, timeout_s=LONG_S)
    with call.link.open(request) as stream:
        if stream.head.status >= 400:
            Answer(stream.head, stream.read()).check()
        if call.json:
            call.show({"diff": stream.read().decode("utf-8", "replace")})
            return 0
        flush()
        for piece in stream:
            write_all(1, piece)
    return 0
