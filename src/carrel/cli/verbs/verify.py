"""carrel verify: tries to break out of a space, from inside."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import loud, table
from carrel.cli.spec import SPACE, Option, Verb
from carrel.client.requests import LONG_S, space_path, telling

VERB = Verb(
    "Try to break out of a space, and say how each attempt went.",
    SPACE,
    details="The exit code is 8 when an attempt succeeded.",
    options=(Option("-v", "--verbose", help="Every attempt, not only those that succeeded."),),
)
UNSOUND = 8
HEADS = ("ATTEMPT", "RESULT", "DETAIL")


def run(call: Call) -> int:
    path = space_path(call.text("space"), "verify")
    proof = call.link.json(telling("POST", path, timeout_s=LONG_S, again=True))
    code = 0 if proof["holds"] else UNSOUND
    if call.json:
        call.show(proof)
        return code
    attempts = proof["attempts"]
    shown = [one for one in attempts if call.flag("verbose") or not one["refused"]]
    rows = [
        (one["name"], "refused" if one["refused"] else "SUCCEEDED !", one["detail"])
        for one in shown
    ]
    if rows:
        call.say(table(HEADS, rows, shrink=(2,), marked="!"))
    refused = sum(one["refused"] for one in attempts)
    if proof["holds"]:
        call.say(f"{proof['runtime']} holds: {refused} of {len(attempts)} attempts were refused.")
    else:
        broken = f"{len(attempts) - refused} of {len(attempts)} attempts succeeded."
        call.say(loud(f"{proof['runtime']} does not hold:") + f" {broken}")
    return code
