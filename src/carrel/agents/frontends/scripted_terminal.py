"""The scripted agent in a terminal: each line that is typed is a turn of it.

`exit` or the end of the input leaves it. It tells what it does as other agents do: by hooks.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from carrel.agents import wire
from carrel.agents.frontends.scripted import AGAIN
from carrel.agents.frontends.scripted_driver import ScriptedDriver
from carrel.agents.requests import with_values
from carrel.agents.terminals import hook
from carrel.agents.turns import conduct
from carrel.domain.turns import (
    AgentEventType,
    AgentSetup,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Provider,
    Told,
)

PROMPT = "scripted> "
LEAVE = "exit"


class Person:
    """Implements `Stage` for the person at the terminal."""

    def __init__(self, setup: AgentSetup) -> None:
        self._folder = f"{setup.state}/{hook.FOLDER}"
        self._controls: asyncio.Queue[Control] = asyncio.Queue()
        self._asked = ""
        self.key = ""
        self.lines: asyncio.Queue[str | None] = asyncio.Queue()
        """What was typed; None at the end."""

    def tell(self, told: Told) -> None:
        self.key = told.key or self.key
        payload = told.payload
        match told.type:
            case AgentEventType.MESSAGE:
                print(payload["text"], flush=True)
            case AgentEventType.TOOL_CALL:
                self.hook("PreToolUse", **_tool(payload), tool_input=payload["input"])
            case AgentEventType.TOOL_RESULT:
                print(payload["output"], flush=True)
                self.hook("PostToolUse", **_tool(payload), tool_response=payload["output"])
            case AgentEventType.PERMISSION if "decision" not in payload:
                self._asked = str(payload["id"])
                print(f"{payload['name']}? [y/n] ", end="", flush=True)
                self.hook("PermissionRequest", tool_name=payload["name"])

    async def control(self) -> Control:
        return await self._controls.get()

    def typed(self, line: str | None) -> None:
        """An answer, when something was asked."""
        if self._asked and line is not None:
            allow = line.strip().lower() in ("y", "yes")
            control = Control(ControlKind.PERMISSION, id=self._asked, allow=allow)
            self._asked = ""
            self._controls.put_nowait(control)
        else:
            self.lines.put_nowait(line)

    def interrupt(self) -> None:
        print("^C", flush=True)
        self._controls.put_nowait(Control.interrupt())

    def hook(self, event: str, **more: object) -> None:
        told = {"hook_event_name": event, "session_id": self.key, **more}
        with contextlib.suppress(OSError):  # Somebody may have started it by hand.
            hook.send(self._folder, msgspec.json.encode(told))


def _tool(payload: Mapping[str, object]) -> dict[str, object]:
    return {"tool_use_id": payload["id"], "tool_name": payload.get("name", "")}


async def talk(start: wire.Start, key: str) -> None:
    person = Person(start.setup)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, person.interrupt)
    threading.Thread(target=_read, args=(loop, person), daemon=True).start()
    person.key = key
    person.hook("SessionStart", source="resume" if key else "startup")
    said: str | None = start.request.prompt
    while said is not None and said.strip() != LEAVE:
        if said.strip():
            await _turn(start, person, said)
        print(PROMPT, end="", flush=True)
        said = await person.lines.get()


async def _turn(start: wire.Start, person: Person, said: str) -> None:
    person.hook("UserPromptSubmit", prompt=said)
    asked = Continuation(Provider.ANY, person.key) if person.key else None
    request = replace(start.request, prompt=said, continuation=asked, mode=InteractionMode.HEADLESS)
    result = await conduct(ScriptedDriver(own_process=True), request, start.setup, person)
    if result.error is not None:
        print(f"{result.error.code}: {result.error.message}", flush=True)
    last = result.final_output or (result.error.message if result.error else "")
    person.hook("Stop", last_assistant_message=last)


def _read(loop: asyncio.AbstractEventLoop, person: Person) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(person.typed, line.rstrip("\n"))
    loop.call_soon_threadsafe(person.typed, None)


def main(file: str, key: str = "", how: str = "") -> None:
    start = wire.read_start(Path(file).read_bytes())
    if how == AGAIN:
        start = replace(start, request=replace(start.request, prompt=""))
    asyncio.run(talk(replace(start, setup=with_values(start.setup)), key))


if __name__ == "__main__":
    main(*sys.argv[1:])
