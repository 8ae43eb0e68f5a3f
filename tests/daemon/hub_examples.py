"""Examples of what goes over the hub's wire, and the page of the documentation that has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from carrel.hub.types import CUSTOM_PREFIXES
from tests.hub.rig import WAIT_S, Envelope, Peer, Wire

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hub-messages.md"
SAID, HEARD = "→", "←"
WIDTH = 96
"""Of a line of JSON in the page, where it can be broken."""
AT = 1767323045.6
"""Stands for every time."""
LOCAL = 41234
"""Stands for every port that the system has chosen."""
_IDS = re.compile(r"(sp|ru|in|ss)_[a-z2-7]{12}|(cl|rq)_[0-9a-f]{16}|(ms)_[0-9a-f]{11,}|(ev)_[0-9]+")
_SECTION = re.compile(r"^### `(\S+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^([→←]) (\w+)\n\n```json\n(.*?)```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """One envelope: sent by `who`, or heard by it."""

    arrow: str
    who: str
    text: str


Examples = dict[str, list[Example]]


# Recording


class Tape:
    """What clients say and hear, by the section of the page that it is an example for."""

    def __init__(self) -> None:
        self._noted: dict[str, list[tuple[str, str, Envelope]]] = {}
        self._names: dict[str, str] = {}
        self._section = ""
        self.heard: set[str] = set()
        """Types that came, noted or not."""

    def name(self, real: str, shown: str) -> None:
        """In the page `real`, which no other run has, is `shown`."""
        self._names[real] = shown

    @contextlib.contextmanager
    def example(self, section: str) -> Iterator[None]:
        """All that goes over tapped wires meanwhile, but for the hub's heartbeats."""
        self._section = section
        try:
            yield
        finally:
            self._section = ""

    def passed(self, arrow: str, who: str, data: bytes) -> None:
        envelope: Envelope = json.loads(data)
        if arrow == HEARD:
            self.heard.add(envelope["type"])
            if envelope["type"] == "heartbeat":
                return
        if self._section:
            self.note(self._section, arrow, who, envelope)

    def note(self, section: str, arrow: str, who: str, envelope: Envelope) -> None:
        self._noted.setdefault(section, []).append((arrow, who, envelope))

    def examples(self) -> Examples:
        return {
            section: [
                Example(arrow, who, shown(stable(envelope, self._names)))
                for arrow, who, envelope in noted
            ]
            for section, noted in self._noted.items()
        }


class TappedWire:
    """Implements `Wire`."""

    def __init__(self, wire: Wire, who: str, tape: Tape) -> None:
        self._wire, self._who, self._tape = wire, who, tape

    async def send(self, data: bytes) -> None:
        self._tape.passed(SAID, self._who, data)
        await self._wire.send(data)

    async def receive(self) -> bytes:
        data = await self._wire.receive()
        self._tape.passed(HEARD, self._who, data)
        return data

    async def close(self) -> None:
        await self._wire.close()

    def stop_reading(self) -> None:
        self._wire.stop_reading()


class Speaker(Peer):
    """A client on a tapped wire. Fields that say nothing are left out."""

    def __init__(self, wire: Wire, who: str, tape: Tape) -> None:
        super().__init__(TappedWire(wire, who, tape))
        self.who = who
        self._tape = tape

    async def send(self, type: str, payload: Any = None, **fields: Any) -> str:
        number = str(fields.pop("id", next(self._ids)))
        envelope: Envelope = {"type": type, "id": number, **fields, "payload": payload}
        told = {key: value for key, value in envelope.items() if value not in ("", None)}
        await self.wire.send(json.dumps(told).encode())
        return number

    async def register(self, **payload: Any) -> None:
        told = await self.ask("client_register", payload)
        self._tape.name(told["client_id"], f"cl_{self.who}…")

    async def hear(self, type: str, fits: Callable[[Any], bool] = lambda _: True) -> Envelope:
        """The next of that type with a payload that fits; others are passed over."""
        while True:
            found = await self.receive()
            if found["type"] == type and fits(found["payload"]):
                return found

    async def beat(self) -> Envelope:
        """The hub's next heartbeat."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found: Envelope = json.loads(await self.wire.receive())
                if found["type"] == "heartbeat":
                    return found

    async def leave(self) -> None:
        """The hub has forgotten it when this returns."""
        await self.send("client_disconnect")
        await self.ended()


# Showing


def stable(value: Any, names: Mapping[str, str]) -> Any:
    """The same in every run: without the ids, times and paths of this one."""
    if isinstance(value, dict):
        told = {stable(key, names): stable(one, names) for key, one in value.items()}
        return {**told, "local": LOCAL} if "local" in told else told
    if isinstance(value, list):
        return [stable(one, names) for one in value]
    if isinstance(value, float) and value > 1e9:
        return AT
    if not isinstance(value, str):
        return value
    for real, name in names.items():
        value = value.replace(real, name)
    return _IDS.sub(lambda found: f"{found[0].partition('_')[0]}_…", value)


def shown(value: Any, column: int = 0) -> str:
    """As JSON that begins in that column, with as much on a line as fits."""
    flat = json.dumps(value, ensure_ascii=False)
    if column + len(flat) <= WIDTH or not value or not isinstance(value, dict | list):
        return flat
    lines: list[str] = []
    for key, one in _parts(value):
        part = key + shown(one, column + 1 + len(key))
        together = f"{lines[-1]}, {part}" if lines else ""
        if lines and "\n" not in together and column + len(together) + 2 <= WIDTH:
            lines[-1] = together
        else:
            lines.append(part)
    inside = f",\n{' ' * column} ".join(lines)
    return f"{flat[0]}{inside}{flat[-1]}"


def _parts(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        yield from (("", one) for one in value)
    else:
        yield from ((f"{json.dumps(key, ensure_ascii=False)}: ", one) for key, one in value.items())


# The page


def section_of(type: str) -> str:
    """All types that begin as custom ones do have one together."""
    for prefix in CUSTOM_PREFIXES:
        if type.startswith(prefix):
            return f"{prefix}*"
    return type


def read_page() -> Examples:
    """Its examples, by section; every block of JSON in it is one."""
    text = PAGE.read_text()
    found = [
        (section, [Example(arrow, who, block.rstrip("\n")) for arrow, who, block in blocks])
        for section, body in _SECTION.findall(text)
        for blocks in [_BLOCK.findall(body)]
    ]
    assert len(dict(found)) == len(found), "a section is there twice"
    assert sum(len(examples) for _, examples in found) == text.count("```json")
    return dict(found)


def write_page(examples: Examples) -> None:
    """Puts other JSON into the blocks that are there; all else in the page stays."""

    def section(found: re.Match[str]) -> str:
        texts = iter(examples.get(found[1], []))

        def block(old: re.Match[str]) -> str:
            new = next(texts, None)
            if new is None:
                return old[0]
            return f"{old[1]} {old[2]}\n\n```json\n{new.text}\n```"

        return _BLOCK.sub(block, found[0])

    PAGE.write_text(_SECTION.sub(section, PAGE.read_text()))
