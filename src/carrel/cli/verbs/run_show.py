"""carrel run show: all about one command."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.showing import describe_run
from carrel.cli.spec import RUN, Verb
from carrel.client.requests import asking, run_path

VERB = Verb("Show all about a command.", RUN)


def run(call: Call) -> int:
    found = call.link.json(asking(run_path(call.text("run"))))
    if call.json:
        call.show(found)
    else:
        call.say(describe_run(found))
    return 0
