"""carrel request cancel: nothing of it runs any more, and nothing of it stays."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.requesting import REQUEST, request_path
from carrel.cli.spec import Verb
from carrel.client.requests import LONG_S, telling

VERB = Verb("End a request that is under way; its workspace goes.", REQUEST)


def run(call: Call) -> int:
    path = request_path(call.text("request"), "cancel")
    found = call.link.json(telling("POST", path, timeout_s=LONG_S, again=True))
    if call.json:
        call.show(found)
    elif found["state"] != "cancelled":
        call.note(f"It has ended before: {found['state']}.")
    return 0
