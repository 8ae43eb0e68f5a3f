"""How a client begins, answered without the SDK: a pure machine of lines.

What a server is and what it offers is the same for every client of a version of the protocol,
so the answers are files that the server itself made. Clients begin in one of two ways: by
`initialize`, which the server has to hear of later, or with an envelope on every request.
Anything that is not beyond doubt is the server's to answer.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]
    Answers = dict[str, dict[str, Any]]

FOLDER = os.path.join(os.path.dirname(__file__), "answers")
INITIALIZE, INITIALIZED = "initialize", "notifications/initialized"
PREFIX = "io.modelcontextprotocol/"
VERSION, CLIENT = f"{PREFIX}protocolVersion", f"{PREFIX}clientInfo"
CAPABILITIES = f"{PREFIX}clientCapabilities"
HIGHEST = 2**53
"""Numbers beyond are not the same to every reader of JSON."""

_NAMES: dict[str, Any] = {"*": {}}
_CAPABILITIES = {
    "roots": {"listChanged": (bool,)},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "experimental": _NAMES,
    "extensions": _NAMES,
}
_CLIENT = dict.fromkeys(("name", "version", "title", "description", "websiteUrl"), (str,))
_TOKEN = {"progressToken": (int, str)}
_OPENING = {"protocolVersion": (str,), "capabilities": _CAPABILITIES, "clientInfo": _CLIENT}
_ENVELOPE = {VERSION: (str,), CLIENT: _CLIENT, CAPABILITIES: _CAPABILITIES, **_TOKEN}
_MESSAGE = {"jsonrpc": (str,), "id": (int, str), "method": (str,), "params": (dict,)}
"""What may be there, of which type. A `*` is any name."""


def load(name: str) -> Answers:
    """By version and method."""
    answers: Answers = {}
    with open(f"{FOLDER}/{name}.json", encoding="utf-8") as file:
        for entry in json.load(file):
            for version in entry["versions"]:
                answers.setdefault(version, {})[entry["method"]] = entry["result"]
    return answers


class Handshake:
    """`unsaid` is an id that the client will not use: the server gives its answer to `replay`
    by that, and the client has it already."""

    def __init__(self, answers: Answers, unsaid: str) -> None:
        self.unsaid = unsaid
        self.replay = b""
        """The lines from which the server knows what was agreed."""
        self._answers = answers
        self._agreed = ""
        self._enveloped = False
        self._told = False

    def take(self, line: bytes) -> bytes | None:
        """What to answer, which may be nothing; None when the server has to."""
        message = _read(line)
        if message is None:
            return None
        if "id" not in message:
            return self._hear(message)
        if message["method"] == INITIALIZE:
            version = self._initialize(message.get("params", {}))
        else:
            version = self._version(message.get("params", {}))
        result = self._answers.get(version, {}).get(message["method"])
        if result is None:
            return None
        if not self._agreed:
            self._agreed = version
            self.replay = _line({**message, "id": self.unsaid})
        return _line({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _hear(self, message: Message) -> bytes | None:
        """Nothing is being worked on, so what else a client might tell is of no effect."""
        if not self._agreed or not message["method"].startswith("notifications/"):
            return None
        if message["method"] == INITIALIZED and not self._told:
            self._told = True
            self.replay += _line(message)
        return b""

    def _initialize(self, params: Message) -> str:
        """The version that is agreed on; nothing when the server has to say."""
        known = _fits(params, _OPENING, ("protocolVersion", "capabilities", "clientInfo"))
        if self._agreed or not known or not _is_client(params["clientInfo"]):
            return ""
        return str(params["protocolVersion"])

    def _version(self, params: Message) -> str:
        """In which it is asked. Who began in one way may not go on in the other."""
        if self._agreed and not self._enveloped:
            return self._agreed if _fits(params, {"_meta": _TOKEN}) else ""
        envelope = params.get("_meta")
        known = _fits(params, {"_meta": _ENVELOPE}, ("_meta",)) and _fits(
            envelope, _ENVELOPE, (VERSION, CLIENT, CAPABILITIES)
        )
        if not known or not envelope or not _is_client(envelope[CLIENT]):
            return ""
        self._enveloped = True
        return str(envelope[VERSION])


def _read(line: bytes) -> Message | None:
    """A request or a notification, if it is a plain one."""
    # Escapes may make half a character, and a return ends a line for some.
    if b"\\u" in line or b"\r" in line.removesuffix(b"\r"):
        return None
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not _fits(found, _MESSAGE, ("jsonrpc", "method")) or found["jsonrpc"] != "2.0":
        return None
    return found if _is_id(found.get("id", 0)) else None


def _is_id(value: int | str) -> bool:
    return value.isascii() if isinstance(value, str) else abs(value) < HIGHEST


def _is_client(value: Message) -> bool:
    return "name" in value and "version" in value


def _fits(value: Any, shape: Any, needed: tuple[str, ...] = ()) -> bool:
    if isinstance(shape, tuple):
        return type(value) in shape
    if not isinstance(value, dict) or any(name not in value for name in needed):
        return False
    names = [(one, shape.get(one, shape.get("*"))) for one in value]
    return all(inner is not None and _fits(value[name], inner) for name, inner in names)


def _line(message: Message) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
