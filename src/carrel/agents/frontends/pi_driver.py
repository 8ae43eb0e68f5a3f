"""One turn by Pi in its RPC mode: a line for each command, and lines that tell what it does."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.agents import requests
from carrel.agents.events import failed
from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object
from carrel.agents.processes import ChildProcess, JsonLines, PendingAnswers, child
from carrel.agents.requests import environment
from carrel.agents.turns import InputQueue, Permissions, listening, permission_of
from carrel.domain.errors import (
    AgentCrashed,
    AgentError,
    ContinuationNotFound,
    Interrupted,
    ModelNotSupported,
)
from carrel.domain.turns import (
    AgentEventType,
    AgentSetup,
    Permission,
    Stage,
    Told,
    TurnRequest,
    TurnResult,
)

QUIET = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}
DIALOGS = frozenset({"select", "confirm", "input", "editor"})


class PiDriver:
    """Implements `Driver`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def __call__(self, request: TurnRequest, setup: AgentSetup, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, setup), stage, request.answer_s)
        folder = open_folder(request, setup)
        for server in setup.servers:
            stage.tell(lines.log(f"The MCP server {server.name} is left out: Pi takes none."))
        env = environment(request, setup, QUIET) | {"PI_CODING_AGENT_DIR": str(folder.agent)}
        argv = [*self._argv, "--mode", "rpc", *configure(folder, request, env)]
        argv += _permission(permissions.mode, folder, setup)
        async with child(argv, setup.workspace, env, "Pi") as pi:
            turn = _Turn(pi, stage, permissions)
            listens = listening(stage, permissions, turn.inbox, turn.interrupt)
            async with turn.answers, listens:
                return await turn.run(folder, requests.prompt(request, setup))


def _permission(mode: Permission, folder: PiFolder, setup: AgentSetup) -> list[str]:
    """The project's own settings and extensions are loaded only where somebody has agreed to them,
    and where they have nothing to decide. In its own folder anything that ran in the space may have
    put some."""
    if mode is Permission.SANDBOXED and ".pi" in setup.agreed:
        return ["--approve"]
    options = ["--no-approve", "--no-extensions"]
    match mode:
        case Permission.SANDBOXED:
            return options
        case Permission.DENY:
            return [*options, "--tools", ",".join(READS)]
    file = folder.agent / FILE
    file.write_text(EXTENSION)
    return [*options, "--extension", str(file)]


class _Turn:
    def __init__(self, pi: ChildProcess, stage: Stage, permissions: Permissions) -> None:
        self._pi = pi
        self._lines = JsonLines(pi, stage, "Pi")
        self._stage = stage
        self._permissions = permissions
        self._translator = PiTranslator()
        self.answers = PendingAnswers()
        self.inbox = InputQueue()
        self._asks = False
        self._started = False
        self._interrupted = False

    async def interrupt(self) -> None:
        """Not before it has begun: that would stop nothing."""
        self._interrupted = True
        if self._started:
            await self._lines.send({"type": "abort"})

    async def run(self, folder: PiFolder, prompt: str) -> TurnResult:
        await self._meet(folder)
        said: str | None = prompt
        while said is not None:
            self._started = False
            await self._lines.send({"type": "prompt", "message": said})
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
        await self._lines.send({"type": "get_state"})
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
                    await self._lines.send({"type": "abort"})
            if event.get("command") == "prompt" and not lines.flag(event, "success"):
                raise problem_of(lines.text(event, "error"))

    def _tell(self, event: lines.Object) -> None:
        if event.get("type") == "extension_ui_request":
            self._asks = self._asks or is_there(event)
            if event.get("method") in DIALOGS:
                self.answers.begin(lines.text(event, "id"), self._answer(event))
            return
        for told in self._translator.event(event):
            self._stage.tell(told)

    async def _answer(self, event: lines.Object) -> None:
        await self._lines.send(await answer(event, self._permissions))

    async def _next(self) -> lines.Object:
        try:
            return await self._lines.next()
        except AgentCrashed as error:
            if "No session found" in self._pi.said:
                raise ContinuationNotFound("Pi has no such conversation.") from error
            raise


# Pi's folders: one for each conversation, with its settings and sessions. Settings are of one
# conversation, for two may have different endpoints.

PROVIDER = "carrel"
"""Pi's name for the endpoint that the turn's environment says."""

USUAL = "openai"
"""Pi's name for the provider of models that are named without one."""

DEFAULT_MODEL = "default"
"""For an endpoint that has one model, whatever it is called."""

ENDPOINTS = {
    "OPENAI_BASE_URL": ("openai-completions", "$OPENAI_API_KEY"),
    "ANTHROPIC_BASE_URL": ("anthropic-messages", "$ANTHROPIC_API_KEY"),
}
"""How the variable's endpoint is spoken to, and where the key for it is."""

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PiFolder:
    key: str
    path: Path
    session: Path | None
    """The file of the conversation that is gone on with."""

    @property
    def agent(self) -> Path:
        return self.path / "agent"

    @property
    def sessions(self) -> Path:
        return self.path / "sessions"


def open_folder(request: TurnRequest, setup: AgentSetup) -> PiFolder:
    """Raises `ContinuationNotFound`."""
    root = Path(setup.state, "pi")
    if request.continuation is not None:
        return _known(root, request.continuation.key)
    key = _new_key(root, request)
    folder = PiFolder(key, root / key, None)
    folder.sessions.mkdir(parents=True)
    folder.agent.mkdir()
    return folder


def configure(folder: PiFolder, request: TurnRequest, env: Mapping[str, str]) -> list[str]:
    """Writes down the endpoint and the system prompt of this turn; gives Pi's options."""
    # What ran in the space may have left settings in it, with a shell of its own, or extensions.
    if folder.agent.is_dir() and not folder.agent.is_symlink():
        shutil.rmtree(folder.agent)
    else:
        folder.agent.unlink(missing_ok=True)
    folder.agent.mkdir()
    options = _model(folder, request, env)
    if request.system_prompt:
        prompt = folder.agent / "system-prompt.md"
        prompt.write_text(request.system_prompt)
        options += ["--append-system-prompt", str(prompt)]
    if folder.session is not None:
        return [*options, "--session", str(folder.session)]
    return [*options, "--session-dir", str(folder.sessions)]


def _model(folder: PiFolder, request: TurnRequest, env: Mapping[str, str]) -> list[str]:
    models = folder.agent / "models.json"
    named = next((name for name in ENDPOINTS if env.get(name)), None)
    if named is None:
        models.unlink(missing_ok=True)
        if not request.model:
            return ["--provider", USUAL]
        return ["--model", request.model if "/" in request.model else f"{USUAL}/{request.model}"]
    model = request.model.removeprefix(f"{PROVIDER}/") or DEFAULT_MODEL
    api, key = ENDPOINTS[named]
    provider = {"baseUrl": env[named], "api": api, "apiKey": key, "models": [{"id": model}]}
    models.write_text(json.dumps({"providers": {PROVIDER: provider}}))
    return ["--model", f"{PROVIDER}/{model}"]


def _known(root: Path, key: str) -> PiFolder:
    path = root / key
    if not _KEY.fullmatch(key) or not path.is_dir():
        raise ContinuationNotFound(f"There is no conversation {key!r} here.")
    files = sorted(path.glob("sessions/**/*.jsonl"))
    if not files:
        raise ContinuationNotFound(
            "Pi kept nothing of this conversation: it ended before the first reply."
        )
    return PiFolder(key, path, files[-1])


def _new_key(root: Path, request: TurnRequest) -> str:
    """From the session's id; of the run too when that has a conversation, which is neither
    gone on with nor lost without being asked for."""
    named = request.session_id or uuid.uuid4().hex
    key = hashlib.sha256(named.encode()).hexdigest()
    if not (root / key).exists():
        return key
    more = f"{named}\0{request.run_id or uuid.uuid4().hex}"
    return hashlib.sha256(more.encode()).hexdigest()


# Permissions. Pi itself asks for nothing: an extension of ours runs in it and asks by Pi's dialogs,
# and the driver answers these.

READS = ("read", "grep", "find", "ls")
"""Its tools that need no permission."""

MARK = "carrel"
"""How the extension's own requests are known from those of others."""

FILE = "carrel-asking.ts"

EXTENSION = """\
const mark = MARK;
const reads = new Set(READS);

export default function (pi) {
  pi.on("session_start", async (_event, ctx) => {
    ctx.ui.setStatus(mark, "asks");
  });
  pi.on("tool_call", async (event, ctx) => {
    if (reads.has(event.toolName)) return undefined;
    const asked = { id: event.toolCallId, name: event.toolName, input: event.input };
    const allowed = await ctx.ui.confirm(mark, JSON.stringify(asked), { signal: ctx.signal });
    return allowed === true ? undefined : { block: true, reason: "Permission was denied." };
  });
}
""".replace("MARK", json.dumps(MARK)).replace("READS", json.dumps(READS))
"""It says that it is there: without it Pi would ask for nothing."""


def is_there(event: lines.Object) -> bool:
    return event.get("method") == "setStatus" and event.get("statusKey") == MARK


async def answer(event: lines.Object, permissions: Permissions) -> dict[str, object]:
    """To any dialog of an extension; those that are not ours are closed."""
    response = {"type": "extension_ui_response", "id": event.get("id")}
    asked = lines.decode(lines.text(event, "message").encode("utf-8", "replace"))
    if event.get("method") != "confirm" or event.get("title") != MARK or asked is None:
        return {**response, "cancelled": True}
    id, name = lines.text(asked, "id"), lines.text(asked, "name")
    return {**response, "confirmed": await permissions.allowed(id, name, asked.get("input"))}


# The translation of Pi's events

_STATUS = re.compile(r"[45][0-9]{2}\b")
_UNKNOWN_MODEL = re.compile(r"model_not_found|model .{0,200} (does not exist|not found)", re.I)
_QUIET = frozenset(
    {
        "response",
        "agent_start",
        "agent_end",
        "agent_settled",
        "turn_start",
        "turn_end",
        "message_start",
        "tool_execution_update",
        "queue_update",
        "thinking_level_changed",
    }
)


class PiTranslator:
    """Events of one turn. Never raises."""

    def __init__(self) -> None:
        self._said = ""
        self._error: AgentError | None = None
        self._usage: dict[str, float] = {}

    def event(self, event: Object) -> Sequence[Told]:
        match lines.text(event, "type"):
            case "message_update":
                return _update(lines.mapping(event, "assistantMessageEvent"))
            case "message_end":
                return self._message(lines.mapping(event, "message"))
            case "tool_execution_start":
                id, name = lines.text(event, "toolCallId"), lines.text(event, "toolName")
                return (lines.tool_call(id, name, event.get("args", {})),)
            case "tool_execution_end":
                id, output = lines.text(event, "toolCallId"), _texts(event, "result")
                return (lines.tool_result(id, output, lines.flag(event, "isError")),)
            case "auto_retry_start":
                return (_retry(lines.text(event, "errorMessage")),)
            case "auto_retry_end":
                return ()
            case kind if kind in _QUIET:
                return ()
        return (lines.raw(lines.encode(event).encode()),)

    def settled(self) -> tuple[Sequence[Told], TurnResult]:
        """The turn is over: what is still to be told, and how it went."""
        told = (Told(AgentEventType.USAGE, self._usage),) if self._usage else ()
        if self._error is not None:
            return told, failed(self._error)
        return told, TurnResult(True, self._said)

    def _message(self, message: Object) -> Sequence[Told]:
        if message.get("role") != "assistant":
            return ()
        self._count(lines.mapping(message, "usage"))
        # A later answer makes an earlier failure good: that was tried again.
        self._error = _problem(message)
        said = _texts(message)
        if not said:
            return ()
        self._said = said
        return (lines.message(said),)

    def _count(self, usage: Object) -> None:
        cached = lines.number(usage, "cacheRead")
        written = lines.number(usage, "cacheWrite")
        parts = {
            "input_tokens": lines.number(usage, "input") + cached + written,
            "output_tokens": lines.number(usage, "output"),
            "cached_tokens": cached,
            "cost_usd": lines.amount(usage, "cost", "total"),
        }
        for name, value in parts.items():
            self._usage[name] = self._usage.get(name, 0) + value


def problem_of(said: str) -> AgentError:
    if _UNKNOWN_MODEL.search(said):
        return ModelNotSupported(lines.bounded(said, lines.MAX_RAW))
    return AgentCrashed(lines.bounded(said, lines.MAX_RAW) or "Pi gave up without a reason.")


def _problem(message: Object) -> AgentError | None:
    match message.get("stopReason"):
        case "aborted":
            return Interrupted("The turn was interrupted.")
        case "error":
            return problem_of(lines.text(message, "errorMessage"))
    return None


def _update(part: Object) -> Sequence[Told]:
    match part.get("type"):
        case "text_delta":
            said = lines.text(part, "delta")
            return (lines.delta(said),) if said else ()
        case "thinking_end":
            said = lines.text(part, "content")
            return (lines.thought(said),) if said else ()
    return ()


def _retry(why: str) -> Told:
    status = _STATUS.match(why)
    return lines.retry(f"Tries again: {why}", int(status.group()) if status else 0)


def _texts(value: Object, *path: str) -> str:
    """The texts of its content."""
    parts = lines.objects(value, *path, "content")
    return "\n".join(lines.text(part, "text") for part in parts if part.get("type") == "text")
