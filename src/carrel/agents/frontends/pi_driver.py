"""One turn by Pi: a line for each command, and lines that tell what it does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from carrel.agents.children import Child, child
from carrel.agents.environing import environment
from carrel.agents.frontends import lines, requests
from carrel.agents.frontends.pi_folder import PiFolder, configure, open_folder
from carrel.agents.frontends.pi_stream import PiTranslator, problem_of
from carrel.agents.listening import Inbox, listening
from carrel.agents.permitting import Permissions, permission_of
from carrel.domain.agents import Permission, Seat, Stage, TurnRequest, TurnResult
from carrel.domain.errors import AgentCrashed, ContinuationNotFound, FrontendNotInstalled

READ_ONLY = "read,grep,find,ls"
"""Its tools that need no permission."""

QUIET = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}


class PiDriver:
    """Implements `Driver`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        mode = permission_of(request, seat)
        folder = open_folder(request, seat)
        env = environment(request, seat, QUIET) | {"PI_CODING_AGENT_DIR": str(folder.agent)}
        # The project's own settings and extensions are not loaded: nobody is there to be asked.
        argv = [*self._argv, "--mode", "rpc", "--no-approve", *configure(folder, request, env)]
        if mode is not Permission.SANDBOXED:
            argv += ["--tools", READ_ONLY]
        try:
            async with child(argv, seat.workspace, env) as pi:
                turn = _Turn(pi, stage)
                async with listening(stage, Permissions(mode, stage), turn.inbox, turn.interrupt):
                    return await turn.run(folder, requests.prompt(request, seat))
        except FileNotFoundError as error:
            raise FrontendNotInstalled(f"Pi cannot be started: {error}") from error


class _Turn:
    def __init__(self, pi: Child, stage: Stage) -> None:
        self._pi = pi
        self._stage = stage
        self._translator = PiTranslator()
        self.inbox = Inbox()
        self._started = False
        self._interrupted = False

    async def interrupt(self) -> None:
        """Not before it has begun: that would stop nothing."""
        self._interrupted = True
        if self._started:
            await self._send({"type": "abort"})

    async def run(self, folder: PiFolder, prompt: str) -> TurnResult:
        await self._meet(folder)
        said: str | None = prompt
        while said is not None:
            self._started = False
            await self._send({"type": "prompt", "message": said})
            await self._follow()
            told, result = self._translator.settled()
            said = self.inbox.next() if result.success else None
        for one in told:
            self._stage.tell(one)
        return result

    async def _meet(self, folder: PiFolder) -> None:
        """Whether this is the conversation that was asked for."""
        await self._send({"type": "get_state"})
        while (event := await self._next()).get("command") != "get_state":
            self._tell(event)
        file = lines.text(event, "data", "sessionFile")
        if folder.session is not None and Path(file) != folder.session:
            raise ContinuationNotFound("Pi began another conversation.", came=file)
        model = lines.text(event, "data", "model", "id")
        self._stage.tell(lines.log(f"Pi with {model}", folder.key))

    async def _follow(self) -> None:
        while (event := await self._next()).get("type") != "agent_settled":
            self._tell(event)
            if event.get("type") == "agent_start":
                self._started = True
                if self._interrupted:
                    await self._send({"type": "abort"})
            if event.get("command") == "prompt" and not lines.flag(event, "success"):
                raise problem_of(lines.text(event, "error"))

    def _tell(self, event: lines.Object) -> None:
        for told in self._translator.event(event):
            self._stage.tell(told)

    async def _send(self, command: dict[str, str]) -> None:
        self._pi.stdin.write(json.dumps(command).encode() + b"\n")
        try:
            await self._pi.stdin.drain()
        except ConnectionError:
            return  # It is gone; what it said last tells why.

    async def _next(self) -> lines.Object:
        while line := await self._line():
            event = lines.decode(line)
            if event is not None:
                return event
            self._stage.tell(lines.raw(line.rstrip()))
        ending = await self._pi.ending("Pi")
        if "No session found" in self._pi.said:
            raise ContinuationNotFound("Pi has no such conversation.")
        raise ending

    async def _line(self) -> bytes:
        try:
            return await self._pi.stdout.readline()
        except ValueError as error:
            raise AgentCrashed("Pi wrote a line that is too long to be read.") from error
