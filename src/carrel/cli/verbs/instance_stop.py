"""carrel instance stop: instances are let go, and nothing of them runs any more."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.instancing import release
from carrel.cli.many import each
from carrel.cli.spec import TEXT, Argument, Option, Verb

VERB = Verb(
    "Release instances; one that is shared ends with the last who has it.",
    Argument("instance", many=True),
    options=(
        Option(
            "--hold", kind=TEXT, metavar="HOLD", help="Of one that is shared: give up this share."
        ),
    ),
)


def run(call: Call) -> int:
    def stop(instance: str) -> object:
        status = release(call, instance, call.text("hold"))
        if not call.json:
            call.say(f"{instance} {status}")
        return {"instance_id": instance, "status": status}

    return each(call, call.texts("instance"), stop, quiet=True)
