"""Pi's folders: one for each conversation, with its settings and its sessions.

The settings are of a conversation, not of all: two may have different endpoints.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.agents import Seat, TurnRequest
from carrel.domain.errors import ContinuationNotFound

PROVIDER = "carrel"
"""Pi's name for the endpoint that the turn's environment says."""

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


def open_folder(request: TurnRequest, seat: Seat) -> PiFolder:
    """Raises `ContinuationNotFound`."""
    root = Path(seat.state, "pi")
    if request.continuation is not None:
        return _known(root, request.continuation.key)
    key = _new_key(root, request)
    folder = PiFolder(key, root / key, None)
    folder.sessions.mkdir(parents=True)
    folder.agent.mkdir()
    return folder


def configure(folder: PiFolder, request: TurnRequest, env: Mapping[str, str]) -> list[str]:
    """Writes down the endpoint and the system prompt of this turn; gives Pi's options."""
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
        return ["--model", request.model] if request.model else ["--provider", "openai"]
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
        raise ContinuationNotFound("Pi has kept nothing of it: it ended before the first reply.")
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
