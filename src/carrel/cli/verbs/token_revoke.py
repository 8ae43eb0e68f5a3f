"""carrel token revoke: from now on it opens nothing."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import Request
from carrel.client.wire import segment

VERB = Verb("Revoke a token, by its id or name.", Argument("token"))


def run(call: Call) -> int:
    token = call.link.json(Request("DELETE", f"/v1/tokens/{segment(call.text('token'))}"))
    if call.json:
        call.show(token)
    else:
        call.say(token["id"])
    return 0
