"""Messages and events: send, ask for and follow what people, agents and editors say, and what
happens to spaces."""

from __future__ import annotations

import json
import time

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import AnswerTable, clean, flush, shown
from carrel.cli.spec import Argument, Option, Verb
from carrel.client.address import HubAddress, find_hub
from carrel.client.hub_line import HubLine, ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from carrel.client.hub import Hub

NAME = "carrel"
ID_LENGTH = 15
"""Of a space's id, `sp_` and twelve characters."""
UNREADABLE = "event.unreadable"
ONLY_SPACE = Option("--space SPACE...", "Print only those of this space.")


def _space_option(help: str) -> Option:
    return Option("--space SPACE", help)


# Which hub, which space, what is said


def hub_place(call: VerbCall) -> HubAddress:
    return find_hub(data=call.text("data"), url=call.text("url"))


def _connect(call: VerbCall) -> HubLine:
    return HubLine(hub_place(call), start=not call.flag("no_start"))


def space_id(call: VerbCall, word: str, inside: str) -> str:
    """The id of the space that is meant: the one that this runs in, unless it is said."""
    if not word and not inside:
        raise invalid("Which space is meant?", hint="Name it: --space SPACE")
    if not word or inside or (word.startswith("sp_") and len(word) == ID_LENGTH):
        return word or inside
    return str(call.ask("spaces.show", word)["id"])


def payload_of(text: str) -> dict[str, Any]:
    """Reads an object of JSON; `-` is what comes on standard input. `MessageInvalid`."""
    if text == "-":
        import sys

        text = sys.stdin.read()
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise invalid(
            "The payload is not a JSON object.", hint="""Write it in quotes: '{"text": "hello"}'"""
        )
    return found


def _publish(call: VerbCall, **more: Any) -> Any:
    """Sends the message of this call, and gives what the hub answers."""
    payload = payload_of(call.text("payload"))
    with _connect(call).open(NAME) as line:
        space = space_id(call, call.text("space"), line.space)
        envelope = {"type": call.text("type"), "space": space, "payload": payload}
        return line.ask({**envelope, **call.content(), **more})


# How messages and events are shown


def message_line(message: Mapping[str, Any]) -> str:
    """One line for people. Live messages have no number."""
    sender = (message.get("sender") or {}).get("kind") or "-"
    at = message.get("ts") or 0.0
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    head = f"{message.get('seq') or '-'} {moment}.{int(at * 1000) % 1000:03d}Z"
    words = _words(message.get("payload") or {})
    space = message.get("space") or "-"
    return clean(f"{head} {space} {sender} {message['type']} {words}").rstrip()


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if " " in text and not text.startswith(("[", "{")) else text


# Verbs of the hub


@Verb(
    Argument("type"),
    Argument("payload", required=False),
    _space_option("Send it to this space."),
    Option("--reply-to ID", "Answer the message with this id.", to="reply_to"),
)
def hub_send(call: VerbCall) -> None:
    """Send one message to a space; types that begin with buffer_ are kept.

    The payload is a JSON object, - for standard input. Types: docs/hub.md.
    """
    data = _publish(call)
    if call.json or not isinstance(data, dict):
        call.show(data)
    elif "seq" in data:
        call.say(f"Kept as number {data['seq']}.")
    elif "delivered" in data:
        call.say(f"Heard by {data['delivered']}.")
    else:
        call.show(data)


@Verb(
    Argument("type"),
    Argument("payload", required=False),
    _space_option("Ask a client that is connected to this space."),
    Option("--to KIND", "Ask an agent, ide, app, cli, or a client by its id.", to="to"),
    Option("--deadline TIME", "Wait this long (30s)."),
)
def hub_request(call: VerbCall) -> None:
    """Ask an agent, editor or application, and print its answer as JSON.

    The payload is a JSON object, - for standard input. Types: docs/hub.md.
    """
    seconds = call.number("deadline")
    deadline = {} if seconds is None else {"deadline_ms": max(1, round(seconds * 1000))}
    call.show(_publish(call, **deadline))


@Verb(
    ONLY_SPACE,
    Option("--type TYPE...", "Print only this type; * matches anything."),
    Option("--from SEQ", "Print first what is kept after this number.", kind="whole"),
    Option("--consumer NAME", "Go on where this consumer stopped."),
)
def hub_follow(call: VerbCall) -> None:
    """Print messages as they come, until Ctrl-C.

    A consumer gets all that it has not printed yet, also what came while it was not
    connected.
    """
    import msgspec

    from carrel.client.hub import Hub

    after, consumer = call.whole("from"), call.text("consumer")
    if after is not None and consumer:
        raise invalid(
            "--from and --consumer cannot be used together.",
            hint="Give one of them: a consumer continues where it stopped.",
        )
    # Inside a space nobody but the hub can be asked, and it knows ids.
    inside = hub_place(call).inside
    spaces = [one if inside else space_id(call, one, "") for one in call.texts("space")]
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
                call.say(shown(msgspec.json.encode(message).decode()))
            else:
                call.say(message_line(msgspec.to_builtins(message)))
            flush()


def _replay(call: VerbCall, hub: Hub, spaces: list[str], after: int) -> None:
    """Numbers are of one space; each has its own."""
    for space in spaces or [space_id(call, "", hub.space)]:
        hub.replay(space, seq=after)


@Verb(_space_option("Print those of this space."))
def hub_dump(call: VerbCall) -> None:
    """Print all kept messages of a space, one JSON object a line."""
    with _connect(call) as line:
        line.open(NAME, types=["*"])
        space = space_id(call, call.text("space"), line.space)
        payload = {"space": space, "seq": 0}
        last = line.ask({"type": "buffer_replay", "payload": payload})["replay_to"][space]
        if last:
            _print_until(call, line, space, last)


def _print_until(call: VerbCall, line: HubLine, space: str, last: int) -> None:
    """Prints what was kept when the hub answered; what comes later is not waited for."""
    for text in line.lines():
        message = _read_message(text, space)
        if message.get("space") == space and message.get("seq"):
            unreadable = message["type"] == UNREADABLE
            call.say(json.dumps(message) if unreadable else shown(text.decode("utf-8", "replace")))
            if message["seq"] >= last:
                return
    raise ended()


def _read_message(text: bytes, space: str) -> dict[str, Any]:
    """One that no parser takes is told as such, as in `carrel events`. Its number is found all the
    same: it stands behind what is wrong with it, where no string can have such quotes."""
    try:
        message: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        after = text.rpartition(b'"space":"%b","seq":' % space.encode())[2]
        digits = after.partition(b",")[0].removesuffix(b"}")
        seq = int(digits) if digits.isdigit() else 0
        message = {"type": UNREADABLE, "space": space, "seq": seq, "bytes": len(text)}
    return message


CLIENTS = AnswerTable(
    "clients",
    {
        "CLIENT": "client_id",
        "KIND": "kind",
        "NAME": "name",
        "SPACE": "space",
        "CONSUMER": "consumer",
        "TYPES": lambda one: " ".join(one["types"]) or "-",
        "SPACES": lambda one: " ".join(one["spaces"]) or "-",
    },
    shrink=("SPACES", "TYPES", "NAME"),
)


@Verb(_space_option("List those of this space."))
def hub_clients(call: VerbCall) -> None:
    """List the clients that are connected to the hub."""
    with _connect(call).open(NAME) as line:
        word = call.text("space")
        payload = {"space": space_id(call, word, line.space)} if word else {}
        clients = line.ask({"type": "client_list", "payload": payload})["clients"]
    call.answer({"clients": clients}, CLIENTS)


# For scripts in a space: silent when it went well


@Verb(
    Argument("message"),
    Option(
        "--category info|warn|error|milestone|question",
        "Say what it is (info).",
        to="category",
    ),
    Option("--percent N", "Say how much is done, 0 to 100.", kind="number", to="percent"),
)
def log(call: VerbCall) -> None:
    """Inside a space: report how far the work is."""
    _publish_inside(call, "buffer_taskspace_progress")


@Verb(
    Argument("message"),
    Option("--priority low|medium|high|urgent", "Say how urgent it is (medium).", to="priority"),
    Option("--action TEXT...", "Suggest what the user could do.", to="suggested_actions"),
)
def notify(call: VerbCall) -> None:
    """Inside a space: tell the user something."""
    _publish_inside(call, "buffer_taskspace_signal_user")


def _publish_inside(call: VerbCall, type: str) -> None:
    where = hub_place(call)
    if not where.inside:
        raise invalid(
            "This command works only inside a space.",
            hint=f"Outside, use: carrel hub send --space SPACE {type} JSON",
        )
    payload = {"message": call.text("message"), **call.content()}
    with HubLine(where).open(NAME) as line:
        data = line.ask({"type": type, "space": line.space, "payload": payload})
    call.answer(data)


# Events


@Verb(
    Option("-f, --follow", "Go on until Ctrl-C."),
    ONLY_SPACE,
    Option("--type TYPE...", "Print only those of this type."),
    Option("--after N", "Print only those after number N."),
)
def events(call: VerbCall) -> None:
    """Print what happened to spaces, a line each; with -f, what happens from now on.

    With -f and --after N, what happened after that number comes first. --json prints each
    event whole, with its number.
    """
    from carrel.cli.event_text import EventLines

    lines = EventLines(call)
    for event in _follow_events(call) if call.flag("follow") else _read_events(call):
        call.say(json.dumps(event) if call.json else lines.line(event))
        if call.flag("follow"):
            flush()


def _read_events(call: VerbCall) -> Iterator[dict[str, Any]]:
    after = call.whole("after") or 0
    query = [("space", one) for one in call.texts("space")]
    query += [("type", one) for one in call.texts("type")]
    while True:
        page = [*query, ("after", after), ("limit", 1000)]
        answer = call.ask("events.read", query=page, again=True)
        yield from answer["events"]
        if answer["next"] == after:
            return
        after = answer["next"]


def _follow_events(call: VerbCall) -> Iterator[dict[str, Any]]:
    import msgspec

    from carrel.client.events import watch_events

    spaces, types = call.texts("space"), call.texts("type")
    for event in watch_events(call.link, call.whole("after"), spaces, types):
        yield msgspec.to_builtins(event)
