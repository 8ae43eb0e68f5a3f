"""carrel request extend: what is kept for a time is kept longer."""

from __future__ import annotations

from carrel.cli import values
from carrel.cli.call import Call
from carrel.cli.requesting import REQUEST, request_path
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import telling

VERB = Verb("Keep the workspace of a request for so long from now on.", REQUEST, Argument("time"))


def run(call: Call) -> int:
    try:
        seconds = values.seconds(call.text("time"))
    except ValueError as error:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(str(error)) from None
    body = {"seconds": seconds}
    found = call.link.json(telling("POST", request_path(call.text("request"), "extend"), body))
    call.show(found) if call.json else call.say(found["retained_until"])
    return 0
