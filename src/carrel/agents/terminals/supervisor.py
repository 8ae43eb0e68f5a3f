"""The supervisor of an agent in a terminal. It runs in the space, so that it needs no daemon.

start ──► runs ──► ends with 0 ─────────────────► done
            │ ──► fails ──► pause of 2^n s ──► start, with the same conversation
            │         └──► the fifth in a row ──► gives up
            └──► is stopped ────────────────────► done
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.agents.events import failed
from carrel.agents.frontends.lines import (
    Object,
    decode,
    encode,
    log,
    mapping,
    text,
    tool_call,
    tool_result,
)
from carrel.agents.terminals.hook import FOLDER, SOCKET
from carrel.agents.terminals.tmux import PaneEnd, Tmux
from carrel.agents.turns import too_late
from carrel.domain.errors import AgentCrashed, CarrelError, ContinuationNotFound, Interrupted
from carrel.domain.keys import named_like_key
from carrel.domain.turns import (
    KEY,
    Activity,
    AgentEventType,
    AgentSetup,
    Continuation,
    ControlKind,
    Stage,
    Told,
    TurnRequest,
    TurnResult,
)

INTERRUPT = "C-c"
REFUSALS = 2
"""So often it may end without a word instead of going on with a conversation."""


class TerminalSupervisor:
    """Implements `Driver`. `first` starts the agent, `again` goes on with a conversation."""

    def __init__(
        self,
        first: Sequence[str],
        again: Sequence[str] = (),
        silent: bool = False,
        unit_s: float = 1.0,
    ) -> None:
        self._first = tuple(first)
        self._again = tuple(again)
        self._silent = silent
        self._backoff = Backoff(unit_s)

    async def __call__(self, request: TurnRequest, setup: AgentSetup, stage: Stage) -> TurnResult:
        folder = Path(setup.state) / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        screen = Tmux(folder, setup.workspace)
        stop = asyncio.Event()
        agent = AgentState(stage, screen, request.continuation, stop)
        async with hearing(folder, agent.heard) as catch_up, screen:
            tasks = [
                asyncio.ensure_future(agent.speak()),
                asyncio.ensure_future(self._listen(stage, screen, agent, stop)),
            ]
            try:
                return await self._supervise(stage, screen, agent, stop, catch_up)
            except CarrelError as error:
                return failed(error)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                agent.close()

    async def _supervise(
        self,
        stage: Stage,
        screen: Tmux,
        agent: AgentState,
        stop: asyncio.Event,
        catch_up: Callable[[], None],
    ) -> TurnResult:
        clock = asyncio.get_running_loop().time
        while True:
            argv = self._command(agent)
            agent.starts(resumed=argv != self._first)
            began = clock()
            await screen.show(argv)
            _tell(stage, "started", "The agent has started.", resumed=argv != self._first)
            end = await self._ended(screen, agent, stop)
            if agent.lost is not None:
                return failed(agent.lost)
            if end is None:
                await screen.end()
                return failed(Interrupted("The agent was stopped."))
            # What it told before it ended has come by now, and may not be heard yet.
            catch_up()
            agent.ended()
            if end.code == 0:
                _tell(stage, "ended", "The agent has ended.", code=0)
                return TurnResult(True, agent.said)
            pause = self._backoff.failed(clock() - began)
            self._crashed(stage, end, pause)
            if pause is None:
                return failed(_gave_up(end, self._backoff.failures))
            if await _unless(stop, asyncio.sleep(pause, True)) is None:
                return failed(Interrupted("The agent was stopped."))

    async def _ended(self, screen: Tmux, agent: AgentState, stop: asyncio.Event) -> PaneEnd | None:
        still = asyncio.ensure_future(screen.still()) if self._silent else None
        if still is not None:
            still.add_done_callback(lambda task: None if task.cancelled() else agent.is_up())
        try:
            end: PaneEnd | None = await _unless(stop, screen.ended())
            return end
        finally:
            if still is not None:
                still.cancel()

    def _command(self, agent: AgentState) -> tuple[str, ...]:
        """A conversation that has begun is gone on with, whoever began it, unless the agent
        shows that it does not have it: it may have died before it wrote anything down."""
        if not agent.begun or not agent.key or not self._again or agent.refused >= REFUSALS:
            return self._first
        return tuple(agent.key if word == KEY else word for word in self._again)

    @staticmethod
    def _crashed(stage: Stage, end: PaneEnd, pause: float | None) -> None:
        then = "Carrel gives up." if pause is None else f"It starts again in {pause:g} s."
        lines = [redacted(line) for line in end.lines]
        text = f"The agent {how(end)}. {then}"
        _tell(stage, "crashed", text, code=end.code, signal=end.signal, lines=lines, pause_s=pause)

    @staticmethod
    async def _listen(stage: Stage, screen: Tmux, agent: AgentState, stop: asyncio.Event) -> None:
        while True:
            control = await stage.control()
            with contextlib.suppress(CarrelError):
                match control.kind:
                    case ControlKind.INPUT:
                        agent.say(control.text)
                    case ControlKind.INTERRUPT:
                        await screen.press(INTERRUPT)
                    case ControlKind.STOP:
                        stop.set()
                    case ControlKind.PERMISSION:
                        text = "It is answered in its terminal: carrel attach."
                        stage.tell(Told(AgentEventType.LOG, {"text": text}))


def how(end: PaneEnd) -> str:
    if end.signal is not None:
        return f"was killed by signal {end.signal}"
    return "ended with its terminal" if end.code is None else f"ended with {end.code}"


def _gave_up(end: PaneEnd, failures: int) -> AgentCrashed:
    lines = [redacted(line) for line in end.lines]
    return AgentCrashed(
        f"The agent {how(end)}, the failure number {failures} in a row: Carrel gives up.",
        hint="Read the last lines of its screen, then run `carrel attach` again.",
        code=end.code,
        signal=end.signal,
        lines=lines,
    )


def _tell(stage: Stage, what: str, text: str, **more: object) -> None:
    stage.tell(Told(AgentEventType.LOG, {"text": text, "supervision": what, **more}))


async def _unless(stop: asyncio.Event, work: Any) -> Any:
    """What comes of the work; None when it is to stop before."""
    stopping, working = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(work)
    try:
        await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (stopping, working):
            task.cancel()
        await asyncio.wait({stopping, working})


# What is known of the agent, by what its hooks tell

_READY = (Activity.IDLE, Activity.INPUT, Activity.WORKING)
"""When it can be spoken to: a question about a permission would take the words for its
answer."""
MAX_WHAT = 500


class AgentState:
    """What is known of the agent, and what is to be said to it. `stop` is set when another
    conversation answers than the one that was asked for."""

    def __init__(
        self, stage: Stage, screen: Tmux, asked: Continuation | None, stop: asyncio.Event
    ) -> None:
        self._stage = stage
        self._screen = screen
        self._stop = stop
        self._asked = asked.key if asked else ""
        self._activity = Activity.NONE
        self._shown = Activity.NONE
        self._heard: deque[HookReport] = deque()
        self._pending: deque[str] = deque()
        self._news = asyncio.Event()
        self.key = self._asked
        self.begun = False
        """Something was said in it: a restart goes on with it."""
        self.refused = 0
        """How often it ended without a word when it was to go on with a conversation."""
        self._resuming = False
        self.said = ""
        self.lost: ContinuationNotFound | None = None

    # From the agent

    def heard(self, told: Object) -> None:
        found = heard(told)
        self._resuming, self.refused = False, 0
        if found.key and not self._is_ours(found.key):
            return
        self.key = found.key or self.key
        self.begun = self.begun or found.begun
        self._activity = found.activity or self._activity
        for event in found.events:
            if event.payload.get("role") == "assistant":
                # Now: who listens may be told only later, when the agent has ended already.
                self.said = str(event.payload["text"])
        self._heard.append(found)
        self._news.set()

    def _is_ours(self, key: str) -> bool:
        """The first conversation that shows is the one that was asked for; later ones were
        begun by a person."""
        if self._asked and key != self._asked:
            self.lost = ContinuationNotFound(
                "The agent began another conversation than the requested one.",
                asked=self._asked,
                came=key,
            )
            self._stop.set()
        self._asked = ""
        return self.lost is None

    def is_up(self) -> None:
        """Takes it for started, by the look of its screen, unless it has told more itself."""
        if self._activity is Activity.NONE:
            self.heard({"hook_event_name": "SessionStart"})

    def starts(self, *, resumed: bool) -> None:
        self._resuming = resumed

    def ended(self) -> None:
        """It has ended: until it reports again nothing can be said to it."""
        self._activity = Activity.NONE
        self.refused += self._resuming

    # To the agent, and to who listens

    def say(self, text: str) -> None:
        self._pending.append(text)
        self._news.set()

    async def speak(self) -> None:
        """Tells what changed, and types what is to be said when it can be."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._heard:
                found = self._heard.popleft()
                self._pass_on(found)
                await self._show(found)
            while self._pending and self._activity in _READY:
                await self._type(self._pending.popleft())

    def _pass_on(self, found: HookReport) -> None:
        for event in found.events:
            self._stage.tell(event)

    async def _show(self, found: HookReport) -> None:
        if found.activity is None or found.activity is self._shown:
            return
        self._shown = found.activity
        payload: dict[str, object] = {
            "activity": found.activity.value,
            "attached": await self._screen.attached(),
        }
        if found.what:
            payload["what"] = found.what[:MAX_WHAT]
        self._stage.tell(Told(AgentEventType.STATE, payload, self.key))

    async def _type(self, text: str) -> None:
        try:
            await self._screen.type(text)
        except CarrelError as error:
            self._stage.tell(log(f"What was said could not be typed: {error.message}"))

    def close(self) -> None:
        """Passes on what was reported last, and tells what was never said to it."""
        for found in self._heard:
            self._pass_on(found)
        while self._pending:
            self._stage.tell(too_late(self._pending.popleft()))


# Hooks' reports as events. Pure: the same report gives the same events.

_ACTIVITY = {
    "SessionStart": Activity.IDLE,
    "UserPromptSubmit": Activity.WORKING,
    "PreToolUse": Activity.WORKING,
    "PostToolUse": Activity.WORKING,
    "PostToolUseFailure": Activity.WORKING,
    "PermissionRequest": Activity.WAITING,
    "Stop": Activity.INPUT,
    "StopFailure": Activity.INPUT,
}
_NOTIFIED = {
    "permission_prompt": Activity.WAITING,
    "idle_prompt": Activity.INPUT,
    "elicitation_dialog": Activity.INPUT,
}
_ASKS = ("AskUserQuestion", "ExitPlanMode", "ask_user")
"""Tools that wait for a person."""


@dataclass(frozen=True)
class HookReport:
    """What one hook told. `activity` is None when nothing is known of it; `begun` says that there
    is a conversation to go on with; `what` is what it waits for, or said."""

    events: tuple[Told, ...] = ()
    activity: Activity | None = None
    key: str = ""
    begun: bool = False
    what: str = ""


def heard(told: Object) -> HookReport:
    name, key = text(told, "hook_event_name"), text(told, "session_id")
    activity = _ACTIVITY.get(name)
    if name == "Notification":
        activity = _NOTIFIED.get(text(told, "notification_type"))
    tool = text(told, "tool_name")
    if name in ("PreToolUse", "PermissionRequest") and tool.endswith(_ASKS):
        activity = Activity.INPUT
    said = text(told, "last_assistant_message") or text(told, "message") or tool
    begun = name not in ("", "SessionStart", "SessionEnd")
    return HookReport(_events(name, told, key), activity, key, begun, said)


def _events(name: str, told: Object, key: str) -> tuple[Told, ...]:
    id, tool = text(told, "tool_use_id"), text(told, "tool_name")
    match name:
        case "UserPromptSubmit":
            return (_said(text(told, "prompt"), "user", key),)
        case "Stop" if text(told, "last_assistant_message"):
            return (_said(text(told, "last_assistant_message"), "assistant", key),)
        case "PreToolUse":
            return (tool_call(id, tool, mapping(told, "tool_input"), key),)
        case "PostToolUse":
            return (tool_result(id, _shown(told.get("tool_response")), False, key),)
        case "PostToolUseFailure":
            return (tool_result(id, _shown(told.get("error")), True, key),)
        case _:
            return ()


def _said(said: str, role: str, key: str) -> Told:
    return Told(AgentEventType.MESSAGE, {"text": said, "role": role}, key)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else encode(value)


# The socket that hooks write to

MAX_DATAGRAM = 1 << 20


@asynccontextmanager
async def hearing(
    folder: Path, heard: Callable[[Object], None]
) -> AsyncIterator[Callable[[], None]]:
    """Calls `heard` for each report of a hook while the block runs. The function that it gives
    reads at once what has come. What is no JSON object is dropped: anybody in the space may write
    there."""
    place = folder / SOCKET
    place.unlink(missing_ok=True)
    listener = _bound(folder)
    loop = asyncio.get_running_loop()

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                told = decode(listener.recv(MAX_DATAGRAM))
                if told is not None:
                    heard(told)

    loop.add_reader(listener, read)
    try:
        yield read
    finally:
        loop.remove_reader(listener)
        listener.close()
        place.unlink(missing_ok=True)


def _bound(folder: Path) -> socket.socket:
    """By a descriptor of the folder: its path may be too long for a socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    here = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{here}/{SOCKET}")
    except OSError:
        listener.close()
        raise
    finally:
        os.close(here)
    return listener


# Keys on the screen are not written down

LEAST = 8
"""Characters of what can be a key: shorter values are words."""


def redacted(line: str, env: Mapping[str, str] | None = None) -> str:
    """The line without the values of variables that are named like keys."""
    for name, value in (os.environ if env is None else env).items():
        if len(value) >= LEAST and named_like_key(name):
            line = line.replace(value, f"<{name}>")
    return line


# When an agent that failed is started again

GIVE_UP = 5
"""Failures in a row."""
STEADY_S = 60.0
"""One that ran so long did not fail to start: what comes then is the first failure of a row."""


class Backoff:
    """Counts failures. `unit_s` is what stands for a second."""

    def __init__(self, unit_s: float = 1.0) -> None:
        self._unit_s = unit_s
        self.failures = 0

    def failed(self, ran_s: float) -> float | None:
        """The pause before the next start, 2^n seconds after the n-th failure; None: no
        more."""
        self.failures = 1 if ran_s >= STEADY_S else self.failures + 1
        if self.failures >= GIVE_UP:
            return None
        return self._unit_s * float(2**self.failures)
