"""carrel hub follow: messages as they come."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.output import flush
from carrel.cli.speaking import NAME, hub_place, message_line, space_of
from carrel.cli.spec import MANY, SPACES, TEXT, WHOLE, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.client.hub_sync import Hub

VERB = Verb(
    "Print messages as they come, until Ctrl-C.",
    details="A consumer gets all that it has not printed yet, also what came while it was away.",
    options=(
        Option("--space", kind=MANY, metavar="SPACE", completes=SPACES, help="Only of this one."),
        Option("--type", kind=MANY, metavar="TYPE", help="Only of this type; * fits anything."),
        Option("--from", kind=WHOLE, metavar="SEQ", help="First what is kept after that number."),
        Option("--consumer", kind=TEXT, metavar="NAME", help="A name that goes on where it was."),
    ),
)


def run(call: Call) -> int:
    import msgspec

    from carrel.client.hub_sync import Hub

    after, consumer = call.whole("from"), call.text("consumer")
    _check(after, consumer)
    # Inside a space nobody but the hub can be asked, and it knows ids.
    inside = hub_place(call).inside
    spaces = [one if inside else space_of(call, one, "") for one in call.texts("space")]
    hub = Hub(
        data=call.text("data"),
        url=call.text("url"),
        autostart=not call.flag("no_start"),
        kind="cli",
        name=NAME,
        types=call.texts("type") or ["*"],
        spaces=spaces or ["*"],
        consumer=consumer,
        auto_ack=True,
    )
    with hub:
        if after is not None:
            _replay(call, hub, spaces, after)
        for message in hub:
            if call.json:
                call.say(msgspec.json.encode(message).decode())
            else:
                call.say(message_line(msgspec.to_builtins(message)))
            flush()
    return 0


def _check(after: int | None, consumer: str) -> None:
    if after is not None and consumer:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "A consumer goes on where it was.", hint="Give --from or --consumer, not both."
        )


def _replay(call: Call, hub: Hub, spaces: list[str], after: int) -> None:
    """Numbers are of one space; each has its own."""
    for space in spaces or [space_of(call, "", hub.space)]:
        hub.replay(space, seq=after)
