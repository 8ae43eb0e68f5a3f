"""carrel instance show: all about one instance, its token too for who asked for it."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.instancing import describe
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import asking, instance_path

VERB = Verb("Show one instance: where it is, what holds it, why it ended.", Argument("instance"))


def run(call: Call) -> int:
    instance = call.link.json(asking(instance_path(call.text("instance"))))
    if call.json:
        call.show(instance)
    else:
        call.say(describe(instance))
    return 0
