"""carrel logs: what a command wrote."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.output import flush
from carrel.cli.spec import RUNS, SPACE, TEXT, Option, Verb
from carrel.cli.terminal import write_all
from carrel.client.exchange import STDERR, STDOUT, Exchange
from carrel.client.requests import Request, asking, run_path, space_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Print the output of a space's newest command.",
    SPACE,
    options=(
        Option("--run", kind=TEXT, metavar="RUN", completes=RUNS, help="Of this one instead."),
        Option("-f", "--follow", help="And what comes, to the command's end."),
    ),
)


def run(call: Call) -> int:
    found = _run(call)
    if found is None:
        call.note("Nothing has run in it.")
        return 0
    flush()
    if call.json:
        return _show(call, found)
    if call.flag("follow"):
        _follow(call, found["id"])
    else:
        for stream, target in (("stdout", 1), ("stderr", 2)):
            for piece in _pieces(call, found["id"], stream):
                write_all(target, piece)
    return 0


def _run(call: Call) -> dict[str, Any] | None:
    space = call.link.json(asking(space_path(call.text("space"))))
    if word := call.text("run"):
        found: dict[str, Any] = call.link.json(asking(run_path(word)))
        return found
    runs = call.link.json(asking(space_path(space["id"], "runs"), [("limit", 1)]))["runs"]
    return runs[0] if runs else None


def _follow(call: Call, run_id: str) -> None:
    from carrel.client.streaming import RunStream

    with RunStream(call.link, Exchange.attaching(run_id)).open() as stream:
        for output in stream:
            write_all({STDOUT: 1, STDERR: 2}[output.stream], output.data)


def _pieces(call: Call, run_id: str, stream: str) -> Any:
    offset = 0
    while True:
        query = [("stream", stream), ("offset", offset)]
        answer = call.link.ask(Request("GET", run_path(run_id, "output"), query)).check()
        if not answer.body:
            return
        yield answer.body
        offset = int(answer.head.headers["carrel-offset"]) + len(answer.body)


def _show(call: Call, found: dict[str, Any]) -> int:
    texts = {
        stream: b"".join(_pieces(call, found["id"], stream)).decode("utf-8", "replace")
        for stream in ("stdout", "stderr")
    }
    call.show({"run": found, **texts})
    return 0
