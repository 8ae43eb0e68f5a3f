"""What the hub must do, each with an id. Every one has a test, on both transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

REQUIRED = {
    "register.first": "Nothing is taken from a client that has not said who it is.",
    "register.answer": "A registration is answered with id, heartbeat and sync policy.",
    "register.once": "A client registers once.",
    "register.kinds": "An agent is bound to a space; inside one there is nobody else.",
    "register.never_system": "No client is the system.",
    "register.in_time": "Who does not register in time is cut off.",
    "register.most": "Beyond the most clients there may be, one is refused with a code.",
    "update.subscriptions": "Subscriptions can be changed.",
    "publish.acknowledged": "A kept message is answered with its number and the sync policy.",
    "publish.dense": "Numbers are dense for each space, whoever publishes.",
    "publish.silent": "What has no id is kept too, and answered only when it is wrong.",
    "publish.many": "Many messages at once are kept one after the other, all of them or none.",
    "publish.live": "A live message reaches those who listen now, and is not kept.",
    "publish.sender": "The sender is who it is, and a forged one is refused.",
    "publish.checked": "Payloads that do not fit their type are refused.",
    "publish.unknown": "Unknown types are refused, custom ones are not.",
    "subscribe.types": "One hears the types that one asked for, with wildcards.",
    "subscribe.spaces": "One hears the spaces that one asked for.",
    "subscribe.all": "`*` is every space that one may see.",
    "subscribe.order": "Messages of a space come in the order of their numbers.",
    "access.agent": "An agent speaks of and hears its own space only.",
    "access.ide": "An editor speaks to the spaces it is connected to.",
    "access.label": "A token for a label sees the spaces with that label only.",
    "access.unknown": "A space that may not be seen is as one that is not there.",
    "access.people": "Agents do not answer for people.",
    "consume.again": "What a consumer has not acknowledged comes again, in order.",
    "consume.cursor": "What it has acknowledged does not, also after a restart of the hub.",
    "consume.forward": "A cursor does not go back.",
    "consume.new": "A new consumer gets all that is kept.",
    "consume.added": "A consumer that adds a space gets what it has not acknowledged there.",
    "consume.replaced": "A consumer that comes again takes its own place.",
    "consume.owner": "A name is its owner's: the same one of somebody else is another consumer.",
    "consume.only": "Only a consumer acknowledges.",
    "replay.seq": "A passing client replays after a number, and goes on live without a gap.",
    "replay.since": "… and from a time.",
    "replay.all": "… of all its spaces.",
    "request.answered": "A request gets the answer of one client, once.",
    "request.deadline": "A request that nobody answers ends with a timeout.",
    "request.late": "Late, second and foreign answers are dropped and counted.",
    "request.nobody": "Without a receiver a request is refused at once.",
    "request.gone": "When its receiver goes, a request is refused at once.",
    "request.capability": "A request goes to a client that can answer it.",
    "request.kinds": "Types for agents and editors go to agents and editors.",
    "heartbeat.ours": "The hub is heard from when it has nothing to say.",
    "heartbeat.theirs": "A client that is silent is cut off.",
    "leave.said": "A client can say that it leaves.",
    "leave.told": "Others are told of a client that has gone, and why.",
    "leave.daemon": "When the hub ends, clients are told.",
    "limit.rate": "Who is too fast is told when to come again.",
    "limit.flood": "Who does not slow down is cut off.",
    "limit.size": "What is too large is refused, and the connection ended.",
    "limit.slow": "Who does not read is cut off, and holds up nobody.",
    "garbage.json": "What is no envelope is refused, and the client goes on.",
    "look.clients": "One sees who is connected to what one may see.",
    "look.status": "The hub says how it is.",
}

covered: dict[str, set[str]] = {}
Test = TypeVar("Test", bound=Callable[..., object])


def shows(*ids: str) -> Callable[[Test], Test]:
    """Marks the test that shows these."""

    def mark(test: Test) -> Test:
        for one in ids:
            assert one in REQUIRED, one
            covered.setdefault(one, set()).add(getattr(test, "__name__", ""))
        return test

    return mark
