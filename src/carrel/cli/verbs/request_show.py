"""carrel request show: all about one request, and what it made."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.request_showing import describe, result_lines
from carrel.cli.requesting import REQUEST, request_path
from carrel.cli.spec import Verb
from carrel.client.requests import asking

VERB = Verb("Show one request: how it is, what it made, why it failed.", REQUEST)


def run(call: Call) -> int:
    request = call.link.json(asking(request_path(call.text("request"))))
    if call.json:
        call.show(request)
        return 0
    call.say(describe(request))
    if request["result"] is not None:
        call.say("\n" + "\n".join(result_lines(request["result"])))
    return 0
