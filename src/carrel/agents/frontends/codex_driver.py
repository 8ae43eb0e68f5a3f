"""One turn by Codex that asks, and the translation of what Codex tells.

The driver speaks with `codex app-server`. Its conversations are those of `codex exec`: each goes on
with the other's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from carrel.agents import requests
from carrel.agents.events import TurnSoFar, failed, judge, key_refused, last_line
from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object
from carrel.agents.processes import JsonLines, PendingAnswers, child
from carrel.agents.turns import (
    DENIED,
    InputQueue,
    Permissions,
    listening,
    permission_of,
)
from carrel.domain.errors import (
    AgentCrashed,
    AgentError,
    ContinuationNotFound,
    Interrupted,
    ModelNotSupported,
)
from carrel.domain.turns import AgentEventType, AgentSetup, Stage, Told, TurnRequest, TurnResult

OPENING = {"approvalPolicy": "untrusted", "sandbox": "read-only"}
"""It asks for every command that it does not know to be harmless. A conversation that may write
from the start would make the project a trusted one, whose own rules count."""
WALLS = {"type": "dangerFullAccess"}
"""Of its turns: what was allowed is not stopped once more by walls of its own."""


class CodexAskingDriver:
    """Implements `Driver`, for a process of its own: `argv` gets all that this one has."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def __call__(self, request: TurnRequest, setup: AgentSetup, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, setup), stage, request.answer_s)
        async with child(self._argv, setup.workspace, os.environ, "Codex") as codex:
            json_lines = JsonLines(codex, stage, "Codex")
            turn = _Turn(
                json_lines, stage, permissions, CodexTranslator(requests.asked_key(request))
            )
            listens = listening(stage, permissions, turn.inbox, turn.interrupt)
            async with turn.answers, listens:
                return await turn.run(request, setup)


class _Turn:
    def __init__(
        self,
        json_lines: JsonLines,
        stage: Stage,
        permissions: Permissions,
        translator: CodexTranslator,
    ) -> None:
        self._rpc = CodexRpc(json_lines, self._hear)
        self._stage = stage
        self._permissions = permissions
        self._translator = translator
        self.answers = PendingAnswers()
        self.inbox = InputQueue()
        self._thread = ""
        self._turn = ""
        """The one that runs now; Codex may have several below one of ours."""
        self._done: lines.Object = {}
        self._interrupted = False
        self._used: lines.Object = {}
        self._changes: dict[str, lines.Object] = {}

    async def interrupt(self) -> None:
        """Not before it has begun: that would stop nothing."""
        self._interrupted = True
        if self._turn:
            params = {"threadId": self._thread, "turnId": self._turn}
            await self._rpc.post("turn/interrupt", params)

    async def run(self, request: TurnRequest, setup: AgentSetup) -> TurnResult:
        await self._rpc.meet()
        await self._open(request, setup)
        said: str | None = requests.prompt(request, setup)
        images = requests.images(request)
        while said is not None:
            await self._take(said, images)
            if self._done.get("status") == "interrupted":
                return failed(Interrupted("The turn was interrupted."))
            if self._done.get("status") != "completed":
                self._tell({"type": "turn.failed", "error": lines.mapping(self._done, "error")})
                return self._translator.ended(1, "")
            said, images = self.inbox.next(), []
        self._tell(completed(self._used))
        return self._translator.ended(0, "")

    async def _open(self, request: TurnRequest, setup: AgentSetup) -> None:
        """Whether this is the conversation that was asked for, whoever conducts the turn sees."""
        how: dict[str, object] = {**OPENING, "cwd": setup.workspace, "model": request.model or None}
        if request.continuation is None:
            opened = await self._rpc.call("thread/start", how)
        else:
            asked = {"threadId": request.continuation.key, "excludeTurns": True}
            try:
                opened = await self._rpc.call("thread/resume", {**how, **asked})
            except AgentError as error:
                if _OTHER_ENDPOINT.search(error.message):
                    raise _elsewhere(request.continuation.key) from error
                raise ContinuationNotFound(
                    f"Codex cannot resume the conversation: {error.message}"
                ) from error
        self._thread = lines.text(opened, "thread", "id")
        self._tell({"type": "thread.started", "thread_id": self._thread})

    async def _take(self, said: str, images: Sequence[str]) -> None:
        """Until it is done with that."""
        text = {"type": "text", "text": said, "text_elements": []}
        pictures = [{"type": "localImage", "path": path} for path in images]
        self._done = {}
        params = {"threadId": self._thread, "input": [text, *pictures], "sandboxPolicy": WALLS}
        begun = await self._rpc.call("turn/start", params)
        self._turn = lines.text(begun, "turn", "id")
        if self._interrupted:
            await self.interrupt()
        while not self._done:
            await self._rpc.listen()
        self._turn = ""

    def _hear(self, message: lines.Object) -> None:
        """Agents that it starts itself have threads of their own, and ask all the same."""
        if "id" in message:
            self.answers.begin(str(message["id"]), self._decide(message))
            return
        method, params = lines.text(message, "method"), lines.mapping(message, "params")
        if params.get("threadId", self._thread) != self._thread:
            return
        match method:
            case "turn/completed":
                self._done = lines.mapping(params, "turn")
            case "thread/tokenUsage/updated":
                self._used = lines.mapping(params, "tokenUsage", "total")
            case "serverRequest/resolved":
                self.answers.drop(str(params.get("requestId")))
            case "item/agentMessage/delta":
                self._stage.tell(lines.delta(lines.text(params, "delta")))
            case _:
                self._item(method, params)

    def _item(self, method: str, params: lines.Object) -> None:
        item = lines.mapping(params, "item")
        if item.get("type") == "fileChange":
            self._changes[lines.text(item, "id")] = {"changes": item.get("changes")}
        said = as_exec(method, params)
        if said is not None:
            self._tell(said)

    def _tell(self, said: lines.Object) -> None:
        for told in self._translator.line(lines.encode(said).encode()):
            self._stage.tell(told)

    async def _decide(self, request: lines.Object) -> None:
        asked = question(request, self._changes)
        if asked is None:
            await self._rpc.answer(request["id"], nothing_for(request))
            return
        allow = await self._permissions.allowed(asked.id, asked.name, asked.input)
        await self._rpc.answer(request["id"], asked.answer(allow))


# JSON-RPC with `codex app-server`

NOT_SUPPORTED = {"code": -32601, "message": "This is not supported."}


class CodexRpc:
    """`hear` gets all that is no answer, as it comes."""

    def __init__(self, json_lines: JsonLines, hear: Callable[[lines.Object], None]) -> None:
        self._lines = json_lines
        self._hear = hear
        self._calls = 0

    async def meet(self) -> None:
        about = {"name": "carrel", "title": "Carrel", "version": "1"}
        await self.call("initialize", {"clientInfo": about, "capabilities": None})
        await self._lines.send({"method": "initialized"})

    async def call(self, method: str, params: Mapping[str, object]) -> lines.Object:
        """What it answers. Raises `AgentError` when it refuses."""
        id = await self.post(method, params)
        while "method" in (message := await self._lines.next()) or message.get("id") != id:
            self._take(message)
        if "error" in message:
            raise problem_of(lines.text(message, "error", "message"))
        return lines.mapping(message, "result")

    async def post(self, method: str, params: Mapping[str, object]) -> int:
        """As `call`, but nobody waits for the answer."""
        self._calls += 1
        await self._lines.send({"id": self._calls, "method": method, "params": params})
        return self._calls

    async def listen(self) -> None:
        """For the next thing that it says."""
        self._take(await self._lines.next())

    async def answer(self, id: object, result: Mapping[str, object] | None) -> None:
        """None: what it asks for cannot be had."""
        outcome = {"error": NOT_SUPPORTED} if result is None else {"result": result}
        await self._lines.send({"id": id, **outcome})

    def _take(self, message: lines.Object) -> None:
        if "method" in message:
            self._hear(message)


# Questions about permissions, and their answers

Answer = Mapping[str, object]


@dataclass(frozen=True)
class CodexQuestion:
    """Of a permission; `answer` says it in Codex's words."""

    id: str
    name: str
    input: Object
    answer: Callable[[bool], Answer]


def question(request: Object, changes: Mapping[str, Object]) -> CodexQuestion | None:
    """None: this is no permission, and cannot be given. `changes` are those of files that were
    told of so far, by the id of their item."""
    params = lines.mapping(request, "params")
    item = lines.text(params, "itemId")
    reason = lines.text(params, "reason")
    why = {"reason": reason} if reason else {}
    match request.get("method"):
        case "item/commandExecution/requestApproval":
            id = lines.text(params, "approvalId") or item
            command = {"command": lines.text(params, "command"), **why}
            return CodexQuestion(id, "shell", command, _decision)
        case "item/fileChange/requestApproval":
            change = {**changes.get(item, {}), **why}
            return CodexQuestion(item, "apply_patch", change, _decision)
        case "item/permissions/requestApproval":
            wanted = lines.mapping(params, "permissions")
            return CodexQuestion(
                item,
                "permissions",
                {"permissions": wanted, **why},
                lambda allow: _grant(allow, wanted),
            )
        case "mcpServer/elicitation/request":
            return _elicitation(f"mcp-{request.get('id')}", params)
    return None


def nothing_for(request: Object) -> Answer | None:
    """The answer to what is no permission, where there is one: nobody is there who knows."""
    match request.get("method"):
        case "item/tool/requestUserInput":
            return {"answers": {}}
        case "mcpServer/elicitation/request":
            return _elicited(False)
    return None


def _decision(allow: bool) -> Answer:
    """Once rather than always: the next question is asked again."""
    return {"decision": "accept" if allow else "decline"}


def _grant(allow: bool, wanted: Object) -> Answer:
    return {"permissions": wanted if allow else {}, "scope": "turn"}


def _elicitation(id: str, params: Object) -> CodexQuestion | None:
    """Codex asks for a tool of an MCP server as if that server had; a form of the server's own
    has nobody who could fill it in."""
    meta = lines.mapping(params, "_meta")
    if meta.get("codex_approval_kind") != "mcp_tool_call":
        return None
    given = {"message": lines.text(params, "message"), "input": meta.get("tool_params")}
    return CodexQuestion(id, f"mcp__{lines.text(params, 'serverName')}", given, _elicited)


def _elicited(allow: bool) -> Answer:
    return {"action": "accept" if allow else "decline", "content": None, "_meta": None}


# `codex app-server` tells the same as `codex exec --json`, by other names: its notifications become
# lines of the latter, so that one translator does for both.

_ITEMS = {
    "agentMessage": "agent_message",
    "commandExecution": "command_execution",
    "fileChange": "file_change",
    "mcpToolCall": "mcp_tool_call",
    "reasoning": "reasoning",
    "webSearch": "web_search",
}
_WARNINGS = frozenset({"warning", "guardianWarning", "configWarning", "deprecationNotice"})
_QUIET_METHODS = (
    "account/",
    "app/",
    "hook/",
    "mcpServer/",
    "model/",
    "rawResponse",
    "remoteControl/",
    "serverRequest/",
    "skills/",
    "thread/",
    "turn/",
)
"""How what has no meaning for a turn begins."""
_QUIET_ITEMS = frozenset({"userMessage", "hookPrompt"})


def as_exec(method: str, params: Object) -> Object | None:
    """A line of `codex exec`; None when that would have said nothing."""
    if method in ("item/started", "item/completed"):
        item = _item(lines.mapping(params, "item"))
        return None if item is None else {"type": method.replace("/", "."), "item": item}
    if method == "error":
        return {"type": "error", "message": lines.text(params, "error", "message")}
    if method in _WARNINGS:
        said = lines.text(params, "message") or lines.text(params, "summary")
        return {"type": "error", "message": said}
    if method == "turn/plan/updated":
        return {"type": "item.completed", "item": {"type": "todo_list", "items": _plan(params)}}
    if method.startswith(_QUIET_METHODS) or method.startswith("item/"):
        return None
    return {"type": method, "params": params}


def completed(usage: Object) -> Object:
    """The end of a turn, with what the conversation has used."""
    return {
        "type": "turn.completed",
        "usage": {
            "input_tokens": lines.number(usage, "inputTokens"),
            "output_tokens": lines.number(usage, "outputTokens"),
            "cached_input_tokens": lines.number(usage, "cachedInputTokens"),
        },
    }


def _item(item: Object) -> Object | None:
    kind = lines.text(item, "type")
    if kind in _QUIET_ITEMS:
        return None
    said: dict[str, object] = {**item, "type": _ITEMS.get(kind, kind)}
    if kind == "commandExecution":
        denied = DENIED if item.get("status") == "declined" else ""
        said["aggregated_output"] = lines.text(item, "aggregatedOutput") or denied
        said["exit_code"] = item.get("exitCode")
    elif kind == "fileChange":
        said["changes"] = changes(item)
    elif kind == "reasoning":
        said["text"] = _thoughts(item)
    return said


def changes(item: Object) -> list[Object]:
    """Of files, in the words of `codex exec`."""
    found = lines.objects(item, "changes")
    return [{"path": one.get("path"), "kind": lines.text(one, "kind", "type")} for one in found]


def _thoughts(item: Object) -> str:
    for name in ("summary", "content"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return "\n".join(str(part) for part in parts)
    return ""


def _plan(params: Object) -> list[Object]:
    return [
        {"text": lines.text(one, "step"), "completed": one.get("status") == "completed"}
        for one in lines.objects(params, "plan")
    ]


# The translation of the lines of `codex exec --json`

_UNKNOWN_THREAD = re.compile(r"no rollout found|thread/resume failed|no saved session")
_OTHER_ENDPOINT = re.compile(r"modelProvider(?:Mismatch|NotConfigured)|This chat uses ")
_REFUSED_KEY = re.compile(r"\b401 Unauthorized\b|access token could not be refreshed")
_UNKNOWN_MODEL = re.compile(
    r"\bmodel\b.*(does not exist|not supported|not found)|model_not_found", re.DOTALL
)
_FAILED = re.compile(r"^Error\b|panicked", re.MULTILINE)
_REFUSED = re.compile(r"requires approval")
RECONNECTING = "Reconnecting..."
"""How what it says of another attempt begins."""
_STATUS = re.compile(r"(?<=status )[45][0-9]{2}\b")
_QUIET = frozenset({"turn.started", "item.updated"})


class CodexTranslator:
    """Implements `Translator`."""

    def __init__(self, asked: str = "") -> None:
        self._heard = TurnSoFar(asked)
        self._started = False
        self._called: set[str] = set()

    def line(self, line: bytes) -> Sequence[Told]:
        if not line.strip():
            return ()
        event = lines.decode(line)
        if event is None:
            return (lines.raw(line),)
        kind = lines.text(event, "type")
        match kind:
            case "thread.started":
                key = self._heard.meet(lines.text(event, "thread_id"))
                return (lines.log("Codex", key),)
            case "item.started" | "item.completed":
                return self._item(lines.mapping(event, "item"), kind == "item.completed", line)
            case "turn.completed":
                self._heard.finished = True
                return (_usage(event, bool(self._heard.asked)),)
            case "turn.failed":
                said = lines.text(event, "error", "message")
                self._heard.error = problem_of(said)
                return (lines.problem(said),)
            case "error":
                return (_complaint(lines.text(event, "message")),)
        self._started = self._started or kind == "turn.started"
        return () if kind in _QUIET else (lines.raw(line),)

    def ended(self, code: int | None, stderr: str) -> TurnResult:
        heard = self._heard
        if heard.error is None and not heard.finished:
            if _OTHER_ENDPOINT.search(stderr):
                heard.error = _elsewhere(heard.asked)
            elif _UNKNOWN_THREAD.search(stderr):
                heard.error = ContinuationNotFound(
                    "Codex has no such conversation.", asked=heard.asked
                )
            elif code and _UNKNOWN_MODEL.search(last_line(stderr)):
                heard.error = ModelNotSupported(last_line(stderr))
            elif code == 1 and self._started and not _FAILED.search(stderr):
                # Its way to end when it is interrupted; every failure has a word of its own.
                heard.interrupted = True
        return judge(heard, code, stderr)

    def _item(self, item: Object, completed: bool, line: bytes) -> Sequence[Told]:
        match lines.text(item, "type"):
            case "agent_message":
                said = lines.text(item, "text")
                self._heard.said = said or self._heard.said
                return (lines.message(said),) if said and completed else ()
            case "reasoning":
                return (lines.thought(lines.text(item, "text")),) if completed else ()
            case "error":
                return (_complaint(lines.text(item, "message")),) if completed else ()
            case "todo_list":
                return (lines.log(_todo(item)),) if completed else ()
            case "command_execution":
                given = {"command": lines.text(item, "command")}
                return self._tool(item, "shell", given, completed)
            case "file_change":
                given_changes = {"changes": item.get("changes", [])}
                return self._tool(item, "apply_patch", given_changes, completed)
            case "web_search":
                query = {"query": lines.text(item, "query")}
                return self._tool(item, "web_search", query, completed)
            case "mcp_tool_call":
                name = f"mcp__{lines.text(item, 'server')}__{lines.text(item, 'tool')}"
                return self._tool(item, name, item.get("arguments"), completed)
        return (lines.raw(line),)

    def _tool(self, item: Object, name: str, given: object, completed: bool) -> Sequence[Told]:
        """Some are told when they begin and when they end, some only then."""
        id = lines.text(item, "id")
        told: list[Told] = []
        if id not in self._called:
            self._called.add(id)
            self._heard.acted = True
            told.append(lines.tool_call(id, name, given))
        if completed:
            output = _output(item)
            if _REFUSED.search(output) and item.get("error"):
                asked = {"id": id, "name": name, "input": given, "decision": "deny"}
                told.append(Told(AgentEventType.PERMISSION, asked))
            told.append(lines.tool_result(id, output, _is_error(item)))
        return told


def _complaint(said: str) -> Told:
    """What went wrong; Codex says in the same way that it tries again."""
    if not said.startswith(RECONNECTING):
        return lines.problem(said)
    status = _STATUS.search(said)
    return lines.retry(said, int(status.group()) if status else 0)


def _elsewhere(asked: str) -> ContinuationNotFound:
    """Codex notes with a conversation which kind of endpoint it has."""
    return ContinuationNotFound(
        "This conversation of Codex began with another endpoint, and cannot change it.",
        hint="Set OPENAI_BASE_URL as it was then (or leave it out), or begin a new conversation.",
        asked=asked,
    )


def problem_of(said: str) -> AgentError:
    if _UNKNOWN_MODEL.search(said):
        return ModelNotSupported(said)
    if _REFUSED_KEY.search(said):
        return key_refused("Codex", "openai", "codex-cli")
    return AgentCrashed(lines.bounded(said, lines.MAX_RAW) or "Codex gave up without a reason.")


def _is_error(item: Object) -> bool:
    code = item.get("exit_code")
    failed = isinstance(code, int) and code != 0
    return failed or lines.text(item, "status") in ("failed", "declined") or bool(item.get("error"))


def _output(item: Object) -> str:
    """Of whichever kind of tool it is."""
    said = lines.text(item, "aggregated_output") or lines.text(item, "error", "message")
    if said:
        return said
    parts = lines.objects(item, "result", "content")
    return "\n".join(lines.text(part, "text") or f"({part.get('type')})" for part in parts)


def _todo(item: Object) -> str:
    marks = [
        f"[{'x' if lines.flag(one, 'completed') else ' '}] {lines.text(one, 'text')}"
        for one in lines.objects(item, "items")
    ]
    return "\n".join(marks)


def _usage(event: Object, resumed: bool) -> Told:
    """Codex counts from the conversation's beginning: `scope` says so where that is more than
    this turn."""
    usage = lines.mapping(event, "usage")
    payload: dict[str, object] = {
        "input_tokens": lines.number(usage, "input_tokens"),
        "output_tokens": lines.number(usage, "output_tokens"),
        "cached_tokens": lines.number(usage, "cached_input_tokens"),
    }
    if resumed:
        payload["scope"] = "conversation"
    return Told(AgentEventType.USAGE, payload)
