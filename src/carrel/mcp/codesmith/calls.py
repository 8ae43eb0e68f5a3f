"""Calls of the tool that are under way, each in a thread."""

from __future__ import annotations

import contextlib
import threading

from carrel.client.sync import Client
from carrel.domain.errors import Capacity, CarrelError, MessageInvalid
from carrel.mcp.codesmith.answering import refusal, response
from carrel.mcp.codesmith.telling import LAST_S
from carrel.mcp.codesmith.tool import NAME, options_of
from carrel.mcp.codesmith.work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from carrel.mcp.codesmith.session import Called
    from carrel.mcp.codesmith.telling import Log, Mouth
    from carrel.mcp.handshake import Message

AT_ONCE = 64
"""Calls, each of which has a thread and a connection. The daemon has them wait for their turn."""


class Calls:
    """Those that are under way, by the ids that their client gave them."""

    def __init__(
        self,
        mouth: Mouth,
        log: Log,
        about: Message,
        usual: Mapping[str, object],
        place: dict[str, Any],
    ) -> None:
        self.mouth = mouth
        self.log = log
        self.about = about
        self.usual = usual
        self.client = Client(**place)
        self._work: dict[int | str, Work] = {}
        self._lock = threading.Lock()
        self._finishing = 0
        self._finished = threading.Condition()

    def begin(self, called: Called) -> None:
        if called.id in self._work:
            # Its answer could not be told from the other's.
            self.log(f"passed over a call whose id is in use: {called.id!r}")
            return
        try:
            if called.name != NAME:
                raise MessageInvalid(
                    f"There is no tool {called.name[:80]!r} here.", hint="List the tools."
                )
            if len(self._work) >= AT_ONCE:
                raise Capacity(f"{AT_ONCE} calls are under way.", hint="Wait for one of them.")
            work = Work(self, called, {**self.usual, **options_of(called.arguments)})
        except CarrelError as error:
            self.log(f"refused: {error.message}")
            self.answer(called, refusal(error))
            return
        self._work[called.id] = work
        threading.Thread(target=work.run, name=f"call {called.id}", daemon=True).start()

    def give_up(self, id: int | str) -> None:
        with self._lock:
            work = self._work.pop(id, None)
        if work is not None:
            work.given_up = True
            # The one that reads is not kept waiting for the daemon.
            threading.Thread(target=work.cancel, name=f"cancel {id}", daemon=True).start()

    def end(self, work: Work, result: Message) -> None:
        """Nobody waits for what was given up, and its id may be another's by now."""
        with self._lock:
            wanted = self._work.get(work.called.id) is work
            if wanted:
                del self._work[work.called.id]
        if wanted:
            self.answer(work.called, result)

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """What is done in it is waited for a moment when the client has gone."""
        with self._finished:
            self._finishing += 1
        try:
            yield
        finally:
            with self._finished:
                self._finishing -= 1
                self._finished.notify_all()

    def finish(self) -> None:
        with self._finished:
            self._finished.wait_for(lambda: not self._finishing, LAST_S)

    def answer(self, called: Called, result: Message) -> None:
        self.mouth.say(response(called, result, self.about))
