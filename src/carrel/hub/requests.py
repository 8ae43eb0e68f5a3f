"""Requests on the hub: from client to client, and to Carrel itself. Each gets one answer, in time
or not at all."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from carrel.domain.errors import (
    CarrelError,
    DeadlinePassed,
    MessageInvalid,
    NoReceiver,
    RateLimited,
)
from carrel.hub import types
from carrel.hub.client import Client
from carrel.hub.clients import ConnectedClients
from carrel.hub.envelopes import Received, Sent, encode, message_id

if TYPE_CHECKING:
    from carrel.hub.hub import HubServer

DEADLINE_MS = 30_000
MAX_DEADLINE_MS = 3_600_000
"""What takes longer is answered with `pending`, and its outcome is a message of its own."""
MAX_OPEN = 1000
"""Of one client: it waits for its answers."""
MAX_OPEN_SYSTEM = 32
"""Requests to the system of one client: each may make a whole space."""
MAX_SYSTEM_OF_ACCOUNT = 8 * MAX_OPEN_SYSTEM
"""Also of clients that have gone: what they asked for goes on, such as a wait of an hour."""

System = Callable[[Client, str, str, Any], Awaitable[object]]
"""Who asks, of which space, the type and the payload."""
_log = logging.getLogger("carrel.hub")


@dataclass(frozen=True)
class Open:
    """`original` is the id that the asker gave it."""

    asker: Client
    receiver: Client
    original: str
    timer: asyncio.TimerHandle


class OpenQuestions:
    def __init__(self) -> None:
        self._open: dict[str, Open] = {}
        self._asked: dict[str, int] = {}
        self.late = 0
        """Answers that nobody waited for any more."""

    def __len__(self) -> int:
        return len(self._open)

    def open_of(self, client: Client) -> int:
        return self._asked.get(client.client_id, 0)

    def add(
        self,
        asker: Client,
        receiver: Client,
        original: str,
        seconds: float,
        passed: Callable[[Open], None],
    ) -> str:
        """Gives the id under which the receiver knows it."""
        number = f"rq_{secrets.token_hex(8)}"

        def expire() -> None:
            found = self._take(number)
            if found is not None:
                passed(found)

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        self._open[number] = Open(asker, receiver, original, timer)
        self._asked[asker.client_id] = self.open_of(asker) + 1
        return number

    def answered(self, number: str, by: Client) -> Open | None:
        """The request, once; None when it is not there (any more) or was not put to this
        client."""
        found = self._open.get(number)
        if found is None or found.receiver is not by:
            self.late += 1
            return None
        return self._take(number)

    def drop(self, client: Client) -> Iterator[Open]:
        """Its client has gone: those that it asked, and those that were put to it. The
        latter are given, for their askers to be told."""
        for number, one in list(self._open.items()):
            if one.asker is client:
                self._take(number)
            elif one.receiver is client:
                self._take(number)
                yield one

    def _take(self, number: str) -> Open | None:
        found = self._open.pop(number, None)
        if found is None:
            return None
        found.timer.cancel()
        left = self.open_of(found.asker) - 1
        if left:
            self._asked[found.asker.client_id] = left
        else:
            self._asked.pop(found.asker.client_id, None)
        return found


class HubRequests:
    """What clients of one hub ask for, and who answers."""

    def __init__(self, hub: HubServer, clients: ConnectedClients) -> None:
        self._hub = hub
        self._clients = clients
        self._open = OpenQuestions()
        self._asking: Counter[str] = Counter()
        """Requests to the system that are not answered, by account."""
        self.system: System | None = None
        """Answers requests that are put to Carrel itself."""

    def ask(self, client: Client, received: Received, to: str) -> None:
        """Puts it to another client, of this kind or with this id."""
        _check_id(received)
        if self._open.open_of(client) >= MAX_OPEN:
            raise RateLimited("Too many requests wait for an answer.", hint="Wait for some.")
        milliseconds = received.deadline_ms or DEADLINE_MS
        if not 0 < milliseconds <= MAX_DEADLINE_MS:
            raise MessageInvalid(f"A deadline is at most {MAX_DEADLINE_MS} ms.", hint="Shorten it.")
        receiver = self._clients.receiver(client, received, to)
        if receiver is None:
            raise no_receiver(to, received.space)
        number = self._open.add(client, receiver, received.id, milliseconds / 1000, self._passed)
        body = Sent(
            received.type,
            number,
            time.time(),
            client.sender,
            received.payload,
            received.space,
            deadline_ms=milliseconds,
        )
        self._hub.push(receiver, encode(body))

    def _passed(self, one: Open) -> None:
        error = DeadlinePassed("Nobody answered in time.", hint="Ask again, or allow more time.")
        self._hub.refuse(one.asker, error, one.original)

    def answer(self, client: Client, received: Received) -> None:
        types.parse(types.Response, received.payload)
        found = self._open.answered(received.reply_to, client)
        if found is None:
            self._hub.respond(client, received.id, {"dropped": True})
            return
        body = Sent(
            "response",
            received.id or message_id(),
            time.time(),
            client.sender,
            received.payload,
            reply_to=found.original,
        )
        self._hub.push(found.asker, encode(body))
        self._hub.respond(client, received.id, {"dropped": False})

    def gone(self, client: Client) -> None:
        """Who waits for an answer of it hears that none comes."""
        for one in self._open.drop(client):
            error = NoReceiver("The client that was asked has disconnected.", hint="Ask again.")
            self._hub.refuse(one.asker, error, one.original)

    def ask_system(self, client: Client, received: Received, type: types.Type) -> None:
        assert type.payload is not None
        payload = types.parse(type.payload, received.payload)
        _check_id(received)
        if self.system is None:
            raise NoReceiver(
                "This daemon does not answer requests on the hub.", hint="Check its log."
            )
        account = client.identity.counts_for
        if client.asking >= MAX_OPEN_SYSTEM or self._asking[account] >= MAX_SYSTEM_OF_ACCOUNT:
            raise RateLimited("Too many requests wait for an answer.", hint="Wait for some.")
        client.asking += 1
        self._asking[account] += 1
        client.unsettled += len(received.payload)
        self._hub.spawn(self._serve(client, received, payload, self.system))

    async def _serve(
        self, client: Client, received: Received, payload: Any, system: System
    ) -> None:
        hub, number = self._hub, received.id
        try:
            answer = await system(client, received.space, received.type, payload)
            hub.respond(client, number, answer)
        except CarrelError as error:
            hub.refuse(client, error, number)
        except Exception:
            _log.exception("a request to the system failed")
            hub.refuse(client, CarrelError("Something went wrong in the daemon."), number)
        finally:
            client.asking -= 1
            self._asking[client.identity.counts_for] -= 1
            # Accounts come and go.
            self._asking += Counter()
            client.settle(len(received.payload))

    def status(self) -> dict[str, object]:
        return {"requests": len(self._open), "late_answers": self._open.late}


def _check_id(received: Received) -> None:
    if not received.id:
        raise MessageInvalid("A request needs an id, so that it can be answered.", hint="Set `id`.")


def no_receiver(kind: str, space: str) -> NoReceiver:
    return NoReceiver(f"No {kind[:40]} is connected to {space}.", hint="Start one, and ask again.")
