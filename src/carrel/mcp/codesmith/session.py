"""What a client says, line by line, and what that means: a pure machine.

Clients begin in one of two ways: by `initialize`, or with an envelope on every request. The
tests ask the SDK's own server the same and compare.
"""

from __future__ import annotations

import json

from carrel import __version__
from carrel.mcp.codesmith.tool import INSTRUCTIONS, SERVER, TOOL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeGuard

    Message = dict[str, Any]
    Answers = dict[str, dict[str, Any]]

INITIALIZE = "initialize"
PREFIX = "io.modelcontextprotocol/"
VERSION, CLIENT = f"{PREFIX}protocolVersion", f"{PREFIX}clientInfo"
CAPABILITIES = f"{PREFIX}clientCapabilities"
HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions in which clients begin by `initialize`."""
MODERN = ("2026-07-28",)
"""Versions in which each request has an envelope."""
INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, NO_VERSION = -32600, -32601, -32602, -32022
CALL, LIST, CANCELLED, PING, DISCOVER = (
    "tools/call",
    "tools/list",
    "notifications/cancelled",
    "ping",
    "server/discover",
)
SERVER_INFO = f"{PREFIX}serverInfo"


def answers() -> Answers:
    """What is always the same, by version and method."""
    server = {"name": SERVER, "version": __version__}
    about = {"capabilities": {"tools": {"listChanged": False}}, "instructions": INSTRUCTIONS}
    tools = {"tools": [TOOL]}
    found: Answers = {}
    for version in HANDSHAKES:
        opened = {**about, "protocolVersion": version, "serverInfo": server}
        found[version] = {INITIALIZE: opened, PING: {}, LIST: tools}
    whole = {
        "cacheScope": "private",
        "resultType": "complete",
        "ttlMs": 0,
        "_meta": {SERVER_INFO: server},
    }
    for version in MODERN:
        discovered = {**about, **whole, "supportedVersions": list(MODERN)}
        found[version] = {DISCOVER: discovered, LIST: {**tools, **whole}}
    return found


class Called:
    """The tool is wanted. `token` is by which progress is told; None: nobody asked for that."""

    __slots__ = ("arguments", "id", "modern", "name", "token")

    def __init__(self, id: int | str, params: Message, *, modern: bool) -> None:
        self.id = id
        self.name: str = params["name"]
        self.arguments: Message = params.get("arguments") or {}
        self.modern = modern
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        self.token = token if is_id(token) else None


class GivenUp:
    """The client does not want the answer any more."""

    __slots__ = ("id",)

    def __init__(self, id: int | str) -> None:
        self.id = id


class Unheard:
    """A line that is no message."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class Refused(Exception):
    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class CodesmithSession:
    def __init__(self) -> None:
        self._answers = answers()
        self._agreed = ""
        """By `initialize`."""
        self._enveloped = False

    def take(self, line: bytes) -> Message | Called | GivenUp | Unheard | None:
        """An answer; what else it means; None when it means nothing."""
        try:
            found = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return Unheard("no JSON") if line.strip() else None
        if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
            return Unheard("no message")
        method, params = found.get("method"), found.get("params", {})
        if not isinstance(method, str):
            # An answer, to nothing that was asked.
            return Unheard("no request")
        if "id" not in found:
            return self._hear(method, params)
        if not is_id(found["id"]):
            return Unheard("a request without an id")
        try:
            if not isinstance(params, dict):
                raise _wrong()
            return self._asked(found["id"], method, params)
        except Refused as refused:
            return {"jsonrpc": "2.0", "id": found["id"], "error": refused.error}

    def _hear(self, method: str, params: object) -> GivenUp | None:
        if method != CANCELLED or not isinstance(params, dict):
            return None
        id = params.get("requestId")
        return GivenUp(id) if is_id(id) else None

    def _asked(self, id: int | str, method: str, params: Message) -> Message | Called:
        version = self._initialize(params) if method == INITIALIZE else self._version(params)
        if not version and method != PING:
            raise _wrong()
        if version and method == CALL:
            return _called(id, params, modern=version in MODERN)
        result = self._answers.get(version, {}).get(method) if version else {}
        if result is None:
            raise Refused(NO_METHOD, "Method not found", method)
        return {"jsonrpc": "2.0", "id": id, "result": result}

    def _initialize(self, params: Message) -> str:
        wanted, about = params.get("protocolVersion"), params.get("clientInfo")
        known = isinstance(wanted, str) and isinstance(params.get("capabilities"), dict)
        named = isinstance(about, dict) and all(
            isinstance(about.get(name), str) for name in ("name", "version")
        )
        if not known or not named:
            raise _wrong()
        if self._enveloped:
            raise Refused(
                NO_VERSION,
                "this connection has begun without the initialize handshake",
                {"supported": list(MODERN), "requested": wanted},
            )
        self._agreed = wanted if wanted in HANDSHAKES else max(HANDSHAKES)
        return self._agreed

    def _version(self, params: Message) -> str:
        """In which it is asked; nothing before anything is agreed on."""
        meta = params.get("_meta")
        envelope = meta if isinstance(meta, dict) and VERSION in meta else None
        if self._agreed:
            if envelope is not None:
                raise Refused(INVALID_REQUEST, "this connection has begun with initialize")
            return self._agreed
        if envelope is None:
            if self._enveloped:
                raise Refused(INVALID_PARAMS, f"params._meta must have {VERSION}")
            return ""
        version = envelope[VERSION]
        if version not in MODERN:
            raise Refused(
                NO_VERSION,
                "Unsupported protocol version",
                {"supported": list(MODERN), "requested": version},
            )
        if not isinstance(envelope.get(CAPABILITIES), dict):
            raise Refused(INVALID_PARAMS, f"params._meta must have {CAPABILITIES}")
        self._enveloped = True
        return str(version)

    def about(self) -> Any:
        """The server, as answers of the newer kind name it."""
        return self._answers[MODERN[-1]][DISCOVER]["_meta"]


def is_id(value: object) -> TypeGuard[int | str]:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _called(id: int | str, params: Message, *, modern: bool) -> Called:
    named = isinstance(params.get("name"), str)
    if not named or not isinstance(params.get("arguments"), dict | None):
        raise _wrong()
    return Called(id, params, modern=modern)


def _wrong() -> Refused:
    return Refused(INVALID_PARAMS, "Invalid request parameters", "")
