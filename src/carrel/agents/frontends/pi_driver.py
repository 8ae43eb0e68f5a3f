"""One turn by Pi: a line for each command, and lines that tell what it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from carrel.agents.answering import Answers
from carrel.agents.children import Child, child
from carrel.agents.environing import environment
from carrel.agents.frontends import lines, pi_asking, requests
from carrel.agents.frontends.pi_folder import PiFolder, configure, open_folder
from carrel.agents.frontends.pi_stream import PiTranslator, problem_of
from carrel.agents.listening import Inbox, listening
from carrel.agents.permitting import Permissions, permission_of
from carrel.agents.results import failed
from carrel.agents.talking import Talk
from carrel.domain.agents import Permission, Seat, Stage, TurnRequest, TurnResult
from carrel.domain.errors import (
    AgentCrashed,
    ContinuationNotFound,
    FrontendNotInstalled,
    Interrupted,
)

QUIET = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}
DIALOGS = frozenset({"select", "confirm", "input", "editor"})


class PiDriver:
    """Implements `Driver`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, seat), stage, request.answer_s)
        folder = open_folder(request, seat)
        for server in seat.servers:
            stage.tell(lines.log(f"The MCP server {server.name} is left out: Pi takes none."))
        env = environment(request, seat, QUIET) | {"PI_CODING_AGENT_DIR": str(folder.agent)}
        # The project's own settings and extensions are not loaded: nobody is there to be asked.
        argv = [*self._argv, "--mode", "rpc", "--no-approve", *configure(folder, request, env)]
        argv += _permission(permissions.mode, folder)
        try:
            async with child(argv, seat.workspace, env) as pi:
                turn = _Turn(pi, stage, permissions)
                listens = listening(stage, permissions, turn.inbox, turn.interrupt)
                async with turn.answers, listens:
                    return await turn.run(folder, requests.prompt(request, seat))
        except FileNotFoundError as error:
            raise FrontendNotInstalled(f"Pi cannot be started: {error}") from error


def _permission(mode: Permission, folder: PiFolder) -> list[str]:
    match mode:
        case Permission.SANDBOXED:
            return []
        case Permission.DENY:
            return ["--tools", ",".join(pi_asking.READS)]
    file = folder.agent / pi_asking.FILE
    file.write_text(pi_asking.EXTENSION)
    return ["--no-extensions", "--extension", str(file)]


class _Turn:
    def __init__(self, pi: Child, stage: Stage, permissions: Permissions) -> None:
        self._pi = pi
        self._talk = Talk(pi, stage, "Pi")
        self._stage = stage
        self._permissions = permissions
        self._translator = PiTranslator()
        self.answers = Answers()
        self.inbox = Inbox()
        self._asks = False
        self._started = False
        self._interrupted = False

    async def interrupt(self) -> None:
        """Not before it has begun: that would stop nothing."""
        self._interrupted = True
        if self._started:
            await self._talk.send({"type": "abort"})

    async def run(self, folder: PiFolder, prompt: str) -> TurnResult:
        await self._meet(folder)
        said: str | None = prompt
        while said is not None:
            self._started = False
            await self._talk.send({"type": "prompt", "message": said})
            await self._follow()
            told, result = self._translator.settled()
            said = self.inbox.next() if result.success else None
        for one in told:
            self._stage.tell(one)
        if self._interrupted and not result.success:
            return failed(Interrupted("The turn was interrupted."))
        return result

    async def _meet(self, folder: PiFolder) -> None:
        """Whether this is the conversation that was asked for, and whether it asks."""
        await self._talk.send({"type": "get_state"})
        while (event := await self._next()).get("command") != "get_state":
            self._tell(event)
        file = lines.text(event, "data", "sessionFile")
        if folder.session is not None and Path(file) != folder.session:
            raise ContinuationNotFound("Pi began another conversation.", came=file)
        if self._permissions.mode is Permission.ASK and not self._asks:
            raise AgentCrashed("Pi did not load the extension that asks for permissions.")
        model = lines.text(event, "data", "model", "id")
        self._stage.tell(lines.log(f"Pi with {model}", folder.key))

    async def _follow(self) -> None:
        while (event := await self._next()).get("type") != "agent_settled":
            self._tell(event)
            if event.get("type") == "agent_start":
                self._started = True
                if self._interrupted:
                    await self._talk.send({"type": "abort"})
            if event.get("command") == "prompt" and not lines.flag(event, "success"):
                raise problem_of(lines.text(event, "error"))

    def _tell(self, event: lines.Object) -> None:
        if event.get("type") == "extension_ui_request":
            self._asks = self._asks or pi_asking.is_there(event)
            if event.get("method") in DIALOGS:
                self.answers.begin(lines.text(event, "id"), self._answer(event))
            return
        for told in self._translator.event(event):
            self._stage.tell(told)

    async def _answer(self, event: lines.Object) -> None:
        await self._talk.send(await pi_asking.answer(event, self._permissions))

    async def _next(self) -> lines.Object:
        try:
            return await self._talk.next()
        except AgentCrashed as error:
            if "No session found" in self._pi.said:
                raise ContinuationNotFound("Pi has no such conversation.") from error
            raise
