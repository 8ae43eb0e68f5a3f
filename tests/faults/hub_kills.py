"""A daemon that is killed while clients publish: what was acknowledged is there, once.

python -m tests.faults.hub_kills [--moments 100] [--messages 10000] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from carrel.client import AsyncClient
from carrel.daemon import control, places
from tests.folders import remove_folder
from tests.load.clearing import end_everything

CLIENTS = 8
WINDOW = 64
"""Envelopes of one client that wait for their answers."""
TOGETHER = 20
"""Messages in one envelope, of every other client."""
LONGEST_S = 1.0
"""From the first message to the kill, at most: ten thousand take about as long."""
END_S = 30.0
ANSWER_S = 60.0
TYPE = "buffer_custom_note"


@dataclass
class Ledger:
    """What was acknowledged, by its number; and all that was ever sent, with what was said
    together."""

    acknowledged: dict[int, str] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    together: list[list[str]] = field(default_factory=list)


class Publisher:
    """`size` messages go in one envelope."""

    def __init__(self, data: Path, space: str, name: str, ledger: Ledger, size: int) -> None:
        self._path = f"{places.folder(data)}/hub.sock"
        self._space = space
        self._name = name
        self._ledger = ledger
        self._size = size
        self._open: dict[str, list[str]] = {}
        """What each envelope said, by its id."""

    async def publish(self, count: int) -> None:
        """So many, or until the daemon is gone."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            await self._publish(count, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _publish(
        self, count: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        register = {"type": "client_register", "id": "r", "payload": {"kind": "app"}}
        writer.write(json.dumps(register).encode() + b"\n")
        await reader.readuntil(b"\n")
        room = asyncio.Semaphore(WINDOW)
        reading = asyncio.create_task(self._read(count, reader, room))
        try:
            for first in range(0, count, self._size):
                await room.acquire()
                if reading.done():
                    break
                numbers = range(first, min(first + self._size, count))
                writer.write(self._envelope([f"{self._name}-{number}" for number in numbers]))
                await writer.drain()
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _envelope(self, names: list[str]) -> bytes:
        self._ledger.sent.update(names)
        self._ledger.together.append(names)
        self._open[names[0]] = names
        messages = [
            {"type": TYPE, "id": name, "payload": {"name": name, "text": "x" * 100}}
            for name in names
        ]
        envelope = dict(messages[0])
        if self._size > 1:
            payload = {"messages": messages}
            envelope = {"type": "buffer_publish", "id": names[0], "payload": payload}
        return json.dumps({**envelope, "space": self._space}).encode() + b"\n"

    async def _read(
        self, count: int, reader: asyncio.StreamReader, room: asyncio.Semaphore
    ) -> None:
        try:
            while count:
                answer = json.loads(await reader.readuntil(b"\n"))
                if answer["type"] == "heartbeat":
                    continue
                assert answer["type"] == "response", answer
                data, names = answer["payload"]["data"], self._open.pop(answer["reply_to"])
                first = data["first"] if self._size > 1 else data["seq"]
                for seq, name in enumerate(names, first):
                    assert seq not in self._ledger.acknowledged, f"{seq} was given twice"
                    self._ledger.acknowledged[seq] = name
                count -= len(names)
                room.release()
        finally:
            # Whoever waits for room looks up.
            room.release()


async def kept(data: Path, space: str) -> list[tuple[int, str, str]]:
    """The whole log of the space: number, type, and name."""
    path = f"{places.folder(data)}/hub.sock"
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 22)
    subscriptions = {"types": ["*"], "spaces": [space]}
    register = {"kind": "app", "subscriptions": subscriptions}
    for type, payload in (("client_register", register), ("buffer_replay", {"space": space})):
        writer.write(json.dumps({"type": type, "id": type, "payload": payload}).encode() + b"\n")
    found: list[tuple[int, str, str]] = []
    last: int | None = None
    async with asyncio.timeout(ANSWER_S):
        while last is None or len(found) < last:
            envelope = json.loads(await reader.readuntil(b"\n"))
            if envelope.get("reply_to") == "buffer_replay":
                last = envelope["payload"]["data"]["replay_to"][space]
            elif "seq" in envelope and last is not None:
                name = envelope["payload"].get("name", "")
                found.append((envelope["seq"], envelope["type"], name))
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return found


def kill(data: Path) -> None:
    found = control.status(data)
    descriptor = os.pidfd_open(found.pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], END_S)[0]
    finally:
        os.close(descriptor)


async def one_moment(data: Path, space: str, ledger: Ledger, name: str, plan: Plan) -> None:
    publishers = [
        Publisher(data, space, f"{name}-{n}", ledger, TOGETHER if n % 2 else 1)
        for n in range(CLIENTS)
    ]
    work = asyncio.gather(*(one.publish(plan.messages // CLIENTS) for one in publishers))
    await asyncio.sleep(plan.chance.uniform(0.0, LONGEST_S))
    await asyncio.to_thread(kill, data)
    await work
    await asyncio.to_thread(control.start, data)
    check(await kept(data, space), ledger)


def check(found: list[tuple[int, str, str]], ledger: Ledger) -> None:
    """Dense from the first number; all that was acknowledged is there, at its place; nothing
    is there twice, nothing that nobody sent, and what was said together is whole."""
    odd = [one for place, one in enumerate(found, 1) if one[0] != place]
    assert not odd, f"{len(odd)} of {len(found)} out of place, such as {odd[:5]}"
    notes = {seq: name for seq, type, name in found if type == TYPE}
    lost = {seq: name for seq, name in ledger.acknowledged.items() if notes.get(seq) != name}
    assert not lost, f"{len(lost)} lost, such as {sorted(lost.items())[:5]}"
    names = list(notes.values())
    assert len(names) == len(set(names)), "something is there twice"
    assert set(names) <= ledger.sent
    at = {name: seq for seq, name in notes.items()}
    for some in ledger.together:
        seqs = [at[name] for name in some if name in at]
        whole = list(range(seqs[0], seqs[0] + len(some))) if seqs else []
        assert seqs == whole, f"{seqs} of {some}"


@dataclass(frozen=True)
class Plan:
    moments: int
    messages: int
    chance: random.Random


async def run(data: Path, plan: Plan) -> Ledger:
    """Raises what went wrong, AssertionErrors included. The daemon runs already."""
    ledger = Ledger()
    async with AsyncClient(data=data, autostart=False) as client:
        space = await client.create()
    for moment in range(plan.moments):
        await one_moment(data, space.id, ledger, f"m{moment}", plan)
    return ledger


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[Path]:
    """With room for all that is published, and no brake."""
    data = folder / "data"
    places.make_folder(data)
    config = folder / "config.toml"
    config.write_text("hub_messages = 0\nhub_bytes = 0\nhub_rate = 1000000.0\n")
    before = os.environ.get("CARREL_CONFIG")
    os.environ["CARREL_CONFIG"] = str(config)
    try:
        control.start(data)
        yield data
    finally:
        if before is None:
            del os.environ["CARREL_CONFIG"]
        else:
            os.environ["CARREL_CONFIG"] = before
        control.stop(data)
        end_everything(data)
        remove_folder(data)


def main() -> int:
    parser = argparse.ArgumentParser(description="Publishing to a daemon that is killed.")
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    print(f"{given.moments} moments, {given.messages} messages, seed {given.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="carrel-hub-kills-"))
    folder.chmod(0o711)
    begun = time.monotonic()
    try:
        with daemon(folder) as data:
            plan = Plan(given.moments, given.messages, random.Random(given.seed))
            ledger = asyncio.run(run(data, plan))
    except BaseException:
        traceback.print_exc()
        print("FAILED")
        return 1
    finally:
        remove_folder(folder)
    seconds = time.monotonic() - begun
    print(f"{len(ledger.sent)} sent, {len(ledger.acknowledged)} acknowledged in {seconds:.0f} s")
    print("every acknowledged message is there once, in order, with no gap")
    return 0


if __name__ == "__main__":
    sys.exit(main())
