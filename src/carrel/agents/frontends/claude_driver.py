"""One turn by Claude Code that asks, and the translation of its `stream-json`.

The program is spoken to in both directions: beside what it tells of the turn it sends requests,
and takes some (`control_request`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from carrel.agents import requests
from carrel.agents.events import NO_LOGIN, TurnSoFar, judge, key_refused
from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object
from carrel.agents.processes import ChildProcess, JsonLines, PendingAnswers, child
from carrel.agents.turns import (
    DENIED,
    OWN_TOOLS,
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

OPTIONS = ("--input-format", "stream-json", "--permission-prompt-tool", "stdio")
"""Beside those of every headless turn."""


class ClaudeAskingDriver:
    """Implements `Driver`, for a process of its own: `argv` gets all that this one has."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def __call__(self, request: TurnRequest, setup: AgentSetup, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, setup), stage, request.answer_s)
        translator = ClaudeTranslator(requests.asked_key(request))
        async with child(self._argv, setup.workspace, os.environ, "Claude Code") as claude:
            turn = _Turn(claude, stage, permissions, translator)
            listens = listening(stage, permissions, turn.inbox, turn.interrupt)
            async with turn.answers, listens:
                return await turn.run(requests.prompt(request, setup))


class _Turn:
    def __init__(
        self,
        claude: ChildProcess,
        stage: Stage,
        permissions: Permissions,
        translator: ClaudeTranslator,
    ) -> None:
        self._claude = claude
        self._stage = stage
        self._permissions = permissions
        self._translator = translator
        self._lines = JsonLines(claude, stage, "Claude Code")
        self.answers = PendingAnswers()
        self.inbox = InputQueue()

    async def interrupt(self) -> None:
        request = {"subtype": "interrupt"}
        await self._lines.send(
            {"type": "control_request", "request_id": "interrupt", "request": request}
        )

    async def run(self, prompt: str) -> TurnResult:
        said: str | None = prompt
        while said is not None:
            message = {"role": "user", "content": said}
            await self._lines.send({"type": "user", "message": message})
            if not await self._follow():
                return await self._ended()
            said = self.inbox.next()
        return self._translator.ended(0, "")

    async def _follow(self) -> bool:
        """Until it has done what it was told; False when it has ended, or gives up."""
        while line := await self._lines.line():
            event = lines.decode(line) or {}
            match event.get("type"):
                case "control_request":
                    self._asked(event)
                case "control_cancel_request":
                    self.answers.drop(lines.text(event, "request_id"))
                case "control_response":
                    continue
                case _:
                    for told in self._translator.line(line):
                        self._stage.tell(told)
            if event.get("type") == "result":
                return not lines.flag(event, "is_error")
        return False

    async def _ended(self) -> TurnResult:
        """It ends by itself once it has given up, else it is ended with the turn."""
        self._claude.stdin.close()
        await self._claude.ending("Claude Code")
        code = self._claude.exited.result() if self._claude.exited.done() else 1
        return self._translator.ended(None if code < 0 else code, self._claude.said)

    def _asked(self, event: lines.Object) -> None:
        id, asked = lines.text(event, "request_id"), lines.mapping(event, "request")
        if asked.get("subtype") == "can_use_tool":
            self.answers.begin(id, self._decide(id, asked))
        else:
            problem = {"subtype": "error", "request_id": id, "error": "This is not supported."}
            self.answers.begin(id, self._respond(problem))

    async def _decide(self, id: str, asked: lines.Object) -> None:
        name, given = lines.text(asked, "tool_name"), asked.get("input", {})
        call = lines.text(asked, "tool_use_id") or id
        own = name.startswith(OWN_TOOLS)
        self._translator.decided(call)
        decision: dict[str, object] = {"behavior": "deny", "message": DENIED}
        if own or await self._permissions.allowed(call, name, given):
            decision = {"behavior": "allow", "updatedInput": given}
        await self._respond({"subtype": "success", "request_id": id, "response": decision})

    async def _respond(self, response: Mapping[str, object]) -> None:
        await self._lines.send({"type": "control_response", "response": response})


# The translation of Claude Code's `stream-json`

INTERRUPTED = "[Request interrupted by user"
"""How its record of a conversation says that somebody stopped it."""

SYNTHETIC = "<synthetic>"
"""The model of messages that no model wrote: errors, mostly."""

_UNKNOWN_SESSION = re.compile(r"No conversation found|--resume requires a valid session")
_UNKNOWN_MODEL = re.compile(r"issue with the selected model|model_not_found|unrecognized_model")
_QUIET_SYSTEM = frozenset({"status", "post_turn_summary", "files_persisted"})
_QUIET_STREAM = frozenset(
    {
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_stop",
        "ping",
    }
)


class ClaudeTranslator:
    """Implements `Translator`."""

    def __init__(self, asked: str = "") -> None:
        self._heard = TurnSoFar(asked)
        self._error = ""
        """The API's own name for what went wrong."""
        self._calls: dict[str, tuple[str, object]] = {}
        self._denied: set[str] = set()

    def line(self, line: bytes) -> Sequence[Told]:
        if not line.strip():
            return ()
        event = lines.decode(line)
        if event is None:
            return (lines.raw(line),)
        match event.get("type"):
            case "system":
                return self._system(event, line)
            case "stream_event":
                return self._stream(event, line)
            case "assistant":
                return self._assistant(event, line)
            case "user":
                return self._user(event, line)
            case "result":
                return self._result(event)
            case "rate_limit_event":
                return (lines.log(rate_limit(event)),)
        return (lines.raw(line),)

    def ended(self, code: int | None, stderr: str) -> TurnResult:
        if self._heard.error is None and not self._heard.finished:
            if _UNKNOWN_SESSION.search(stderr):
                self._heard.error = _unknown_session(self._heard.asked)
            elif code and _UNKNOWN_MODEL.search(stderr):
                self._heard.error = ModelNotSupported("Claude Code does not know this model.")
        return judge(self._heard, code, stderr)

    def decided(self, id: str) -> None:
        """What became of this call's permission has been told by somebody else."""
        self._denied.add(id)

    def _key(self, event: Object) -> str:
        return self._heard.meet(lines.text(event, "session_id"))

    def _system(self, event: Object, line: bytes) -> Sequence[Told]:
        key = self._key(event)
        subtype = lines.text(event, "subtype")
        if subtype == "init":
            model = lines.text(event, "model")
            version = lines.text(event, "claude_code_version")
            return (lines.log(f"Claude Code {version} with {model}", key),)
        if subtype == "api_retry":
            return (lines.retry(retry(event), lines.number(event, "error_status"), key),)
        if subtype == "permission_denied":
            id = lines.text(event, "tool_use_id")
            return self._deny(id, lines.text(event, "tool_name"), lines.text(event, "message"))
        return () if subtype in _QUIET_SYSTEM else (lines.raw(line, key),)

    def _stream(self, event: Object, line: bytes) -> Sequence[Told]:
        key = self._key(event)
        part = lines.mapping(event, "event")
        kind = lines.text(part, "type")
        if kind == "content_block_delta":
            said = lines.text(part, "delta", "text")
            return (lines.delta(said, key),) if said and not _is_inner(event) else ()
        return () if kind in _QUIET_STREAM else (lines.raw(line, key),)

    def _assistant(self, event: Object, line: bytes) -> Sequence[Told]:
        key = self._key(event)
        message = lines.mapping(event, "message")
        blocks = lines.objects(message, "content")
        if lines.flag(event, "is_api_error_message") or message.get("model") == SYNTHETIC:
            self._error = lines.text(event, "error") or self._error
            return [lines.problem(lines.text(block, "text"), key) for block in blocks]
        inner = _is_inner(event)
        return [told for block in blocks for told in self._block(block, key, inner)]

    def _block(self, block: Object, key: str, inner: bool) -> Iterable[Told]:
        """One part of a message. What agents of an agent say is not its own message."""
        match block.get("type"):
            case "text":
                said = lines.text(block, "text")
                if inner:
                    return (lines.log(said, key),)
                self._heard.said = said or self._heard.said
                return (lines.message(said, key),) if said else ()
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                id, name = lines.text(block, "id"), lines.text(block, "name")
                given = block.get("input", {})
                self._heard.acted = True
                self._calls[id] = (name, given)
                return (lines.tool_call(id, name, given, key),)
            case "thinking":
                said = lines.text(block, "thinking")
                return (lines.thought(said, key),) if said else ()
            case "redacted_thinking":
                return ()
        return self._results(block, key)

    def _user(self, event: Object, line: bytes) -> Sequence[Told]:
        key = self._key(event)
        message = lines.mapping(event, "message")
        whole = lines.text(message, "content")
        blocks = [{"type": "text", "text": whole}] if whole else lines.objects(message, "content")
        told: list[Told] = []
        for block in blocks:
            if block.get("type") == "text":
                said = lines.text(block, "text")
                if said.startswith(INTERRUPTED) and not _is_inner(event):
                    self._heard.interrupted = True
                told.append(lines.log(said, key))
            else:
                told.extend(self._results(block, key))
        return told

    def _results(self, block: Object, key: str) -> Iterable[Told]:
        id = lines.text(block, "tool_use_id")
        if not id:
            return (lines.raw(lines.encode(block).encode(), key),)
        self._calls.pop(id, None)
        shown = output(block.get("content"))
        return (lines.tool_result(id, shown, lines.flag(block, "is_error"), key),)

    def _deny(self, id: str, name: str, reason: str, given: object = None) -> Sequence[Told]:
        if id in self._denied:
            return ()
        self._denied.add(id)
        known = self._calls.get(id, (name, given))
        payload = {"id": id, "name": name or known[0], "input": known[1], "decision": "deny"}
        return (Told(AgentEventType.PERMISSION, {**payload, "reason": reason}),)

    def _result(self, event: Object) -> Sequence[Told]:
        self._heard.finished = True
        told = list(usage(event, bool(self._heard.asked)))
        for one in lines.objects(event, "permission_denials"):
            id, name = lines.text(one, "tool_use_id"), lines.text(one, "tool_name")
            told.extend(self._deny(id, name, "", one.get("tool_input")))
        if lines.flag(event, "is_error"):
            self._heard.error = self._problem(event)
        elif not self._heard.said:
            self._heard.said = lines.text(event, "result")
        return told

    def _problem(self, event: Object) -> AgentError:
        errors = event.get("errors")
        whole = " ".join(str(one) for one in errors) if isinstance(errors, list) else ""
        said = lines.bounded(lines.text(event, "result") or whole, lines.MAX_RAW)
        if _UNKNOWN_SESSION.search(whole):
            return _unknown_session(self._heard.asked)
        if self._error == "model_not_found" or _UNKNOWN_MODEL.search(said):
            return ModelNotSupported(said or "Claude Code does not know this model.")
        if lines.text(event, "terminal_reason").startswith("aborted"):
            return Interrupted("The turn was interrupted.")
        if self._error == "authentication_failed" or NO_LOGIN.search(said):
            return key_refused("Claude Code", "anthropic", "claude-code")
        details = {
            "subtype": lines.text(event, "subtype"),
            "error": self._error,
            "status": lines.number(event, "api_error_status"),
        }
        shown = {name: value for name, value in details.items() if value}
        return AgentCrashed(said or "Claude Code gave up without a reason.", hint="", **shown)


def _unknown_session(asked: str) -> AgentError:
    return ContinuationNotFound("Claude Code has no such conversation.", asked=asked)


def _is_inner(event: Object) -> bool:
    """Of an agent that the agent itself has started."""
    return bool(event.get("parent_tool_use_id"))


# Parts of its events


def retry(event: Object) -> str:
    number, most = lines.number(event, "attempt"), lines.number(event, "max_retries")
    why = lines.text(event, "error") or "unknown"
    status = lines.number(event, "error_status")
    return f"Try {number} of {most} again: {why}{f' ({status})' if status else ''}"


def rate_limit(event: Object) -> str:
    status = lines.text(event, "rate_limit_info", "status") or "unknown"
    return f"Rate limit: {status}"


def output(content: object) -> str:
    """What a tool gave back: a text, or parts of which some are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else lines.encode(content)
    all = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
    return "\n".join(lines.text(part, "text") or f"({part.get('type')})" for part in all)


def usage(event: Object, resumed: bool) -> Sequence[Told]:
    """The total cost is that of the conversation, so a resumed turn's is summed from its
    models'. Cached tokens are apart from the input here, and part of it in our events."""
    usage = lines.mapping(event, "usage")
    cached = lines.number(usage, "cache_read_input_tokens")
    written = lines.number(usage, "cache_creation_input_tokens")
    payload: dict[str, object] = {
        "input_tokens": lines.number(usage, "input_tokens") + written + cached,
        "output_tokens": lines.number(usage, "output_tokens"),
        "cached_tokens": cached,
    }
    models = lines.mapping(event, "model_usage_since_last_result")
    costs = [lines.amount(models, name, "costUSD") for name in models]
    if "model_usage_since_last_result" in event:
        payload["cost_usd"] = sum(costs)
    elif not resumed and "total_cost_usd" in event:
        payload["cost_usd"] = lines.amount(event, "total_cost_usd")
    return (Told(AgentEventType.USAGE, payload),) if any(payload.values()) else ()
