"""A turn whose agent runs: how it is spoken to, attached to and ended."""

from __future__ import annotations

import asyncio
import contextlib

from carrel.domain.agents import Prepared
from carrel.domain.errors import CarrelError, StateConflict, UnsupportedFrontend
from carrel.domain.turns import Control, ControlKind, Turn
from carrel.service.runs import Inputs, Runs
from carrel.service.turn_follower import Followed, encode_control

UP_S = 20.0
"""For a terminal to come up, on a busy machine."""
GRACE_S = 5.0
"""From asking an agent to stop to the signal, and from that to the kill."""
KILL = 9


class LiveTurn:
    def __init__(
        self, turn: Turn, prepared: Prepared, followed: Followed, runs: Runs, inputs: Inputs
    ) -> None:
        self.turn = turn
        self.prepared = prepared
        self.followed = followed
        self.ended = asyncio.Event()
        self.interrupted = False
        self.task: asyncio.Task[None] | None = None
        """Follows it to its end."""
        self.ending: asyncio.Task[None] | None = None
        self._runs = runs
        self._inputs = inputs

    @property
    def since(self) -> float:
        """When it began to do what it does now."""
        return self.followed.waiting.since or self.turn.created_at

    def control(self, control: Control) -> None:
        """More input, or the answer to a permission. Raises `UnsupportedFrontend` when the frontend
        does not listen while it works, `StateConflict` when the turn does not wait for that
        permission, or reads nothing: what it was told is kept until it does."""
        if not self.prepared.duplex:
            raise UnsupportedFrontend(
                f"{self.turn.frontend} takes no input while it works.",
                hint="Interrupt it, or wait for its end.",
            )
        run_id, waiting = self.turn.run_id, self.followed.waiting
        if control.kind is ControlKind.PERMISSION and not waiting.may_answer(control.id):
            raise StateConflict(
                f"The turn {run_id} does not wait for the permission {control.id[:80]!r}.",
                hint="See what waits for you: carrel inbox",
            )
        target = self._inputs.of(run_id)
        if target is not None and target.is_full:
            raise StateConflict(
                f"The agent of {run_id} has not read its earlier input yet.",
                hint="Wait, or interrupt it.",
            )
        self.say(control)

    def say(self, control: Control) -> None:
        target = self._inputs.of(self.turn.run_id)
        if target is not None:
            target.push(encode_control(control))

    def end(self, number: int, control: Control) -> None:
        """It is asked, where it listens; then signalled, then killed."""
        self.interrupted = True
        if self.ending is None:
            self.ending = asyncio.create_task(self._stop(number, control))

    async def _stop(self, number: int, control: Control) -> None:
        if self.prepared.duplex:
            self.say(control)
            await asyncio.sleep(GRACE_S)
        for signal in (number, KILL):
            with contextlib.suppress(CarrelError):
                await self._runs.signal(self.turn.run_id, signal)
            await asyncio.sleep(GRACE_S)

    async def is_up(self, space: str) -> None:
        """Returns when its terminal can be attached to. Raises `StateConflict`."""
        waits = [self.followed.waiting.up.wait(), self.ended.wait()]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, timeout=UP_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self.ended.is_set() or not self.followed.waiting.up.is_set():
            error = self.turn.result.error if self.turn.result else None
            why = error.message if error else "It has not come up yet."
            raise StateConflict(
                f"There is no terminal to attach to: {why}",
                hint=f"See `carrel turns {space}`.",
            )
