"""Claude Code, by its own program: headless for turns, interactive for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from uuid import UUID, uuid5

from carrel.agents.frontends import requests
from carrel.agents.frontends.claude_stream import ClaudeTranslator
from carrel.agents.locating import Locator, install_command
from carrel.agents.permitting import permission_of
from carrel.domain.agents import (
    FoundFrontend,
    FrontendKind,
    Permission,
    Prepared,
    Provider,
    Seat,
    TurnRequest,
)

NAME = "claude-code"
PROGRAM = "claude"

KNOWN_GAPS = ("`ask` is `deny` in a headless turn: nobody can answer its questions yet.",)

MODELS = ("fable", "opus", "sonnet", "haiku")
"""Names that it maps to its newest; it takes full names too."""

FOLDER = "claude"
"""In the agent's state: its settings and conversations."""

QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}

KEEP_DAYS = 3650
"""It deletes conversations after a month by itself; continuations are the caller's."""

OAUTH_PREFIX = "sk-ant-oat"
"""Of a subscription's token, as `claude setup-token` gives it; goes by another variable."""

APPROVED_TAIL = 20
"""So many last characters of a key are how it notes that the key may be used."""

_SESSIONS = UUID("6f0d3a0e-5c0b-4f5e-9d53-0d2f3c1b8a77")


class ClaudeCode:
    """Implements `Frontend` and `Interactive`."""

    name = NAME
    provider = Provider.ANTHROPIC
    kind = FrontendKind.CLI
    needs_network = True
    credentials = ("anthropic",)

    def __init__(self, locator: Locator) -> None:
        self._locator = locator

    def find(self) -> FoundFrontend:
        found = self._locator.find(NAME, PROGRAM)
        version = self._locator.version(found) if found else ""
        return FoundFrontend(
            NAME,
            Provider.ANTHROPIC,
            FrontendKind.CLI,
            installed=bool(version),
            version=version,
            path=str(found.path) if found else "",
            models=MODELS,
            install=install_command(NAME),
            problem="It does not say its version." if found and not version else "",
        )

    def binds(self) -> tuple[str, ...]:
        found = self._locator.find(NAME, PROGRAM)
        return found.binds() if found else ()

    def prepare(self, request: TurnRequest, seat: Seat) -> Prepared:
        argv = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
        return self._prepared(request, seat, argv, requests.prompt(request, seat).encode())

    def prepare_terminal(self, request: TurnRequest, seat: Seat) -> Prepared:
        prepared = self._prepared(request, seat, [], b"")
        files = {**prepared.files, f"{FOLDER}/.claude.json": _onboarded(seat, prepared.env)}
        said = ("--", requests.prompt(request, seat)) if request.prompt else ()
        return Prepared(
            argv=(*prepared.argv, *said),
            env=prepared.env,
            files=files,
            secret=prepared.secret,
        )

    def translator(self, request: TurnRequest) -> ClaudeTranslator:
        return ClaudeTranslator(requests.asked_key(request))

    def _prepared(
        self, request: TurnRequest, seat: Seat, mode: list[str], first: bytes
    ) -> Prepared:
        requests.check(request, NAME, Provider.ANTHROPIC)
        permission = permission_of(request, seat)
        session = _session(request)
        program = self._locator.require(NAME, PROGRAM)
        env = _environment(request, seat, permission)
        options = [*mode, *session, *_options(request, seat), *_permission(permission)]
        return Prepared(
            argv=(*program.argv, *options),
            env=env,
            files=_files(request, seat),
            first=first,
            secret=requests.secret_names(env, seat.mcp_env),
        )


def session_key(request: TurnRequest) -> str:
    """The conversation that the turn will be of; empty when the program chooses. Known before
    it starts, so that a terminal that dies early can be gone on with."""
    asked = requests.asked_key(request)
    return asked or (str(uuid5(_SESSIONS, request.run_id)) if request.run_id else "")


def _session(request: TurnRequest) -> list[str]:
    asked = requests.asked_uuid(request)
    if asked:
        # What was recorded of the system prompt would win over what this turn says.
        fresh = ["--system-prompt-snapshot", "off"] if request.system_prompt else []
        return ["--resume", asked, *fresh]
    key = session_key(request)
    return ["--session-id", key] if key else []


def _options(request: TurnRequest, seat: Seat) -> list[str]:
    """Texts go by files: what is in argv is in process lists."""
    options = ["--strict-mcp-config"]
    if seat.mcp:
        options += ["--mcp-config", f"{seat.state}/{FOLDER}/mcp.json"]
    if requests.has_context(seat):
        options += ["--add-dir", seat.context]
    if request.system_prompt:
        options += ["--append-system-prompt-file", f"{seat.state}/{FOLDER}/system-prompt.md"]
    if request.model:
        options += ["--model", request.model]
    return options


def _permission(permission: Permission) -> list[str]:
    if permission is Permission.SANDBOXED:
        return ["--dangerously-skip-permissions"]
    return ["--permission-mode", "default" if permission is Permission.ASK else "dontAsk"]


def _environment(request: TurnRequest, seat: Seat, permission: Permission) -> dict[str, str]:
    given = seat.credentials.get("anthropic", "")
    oauth = given.startswith(OAUTH_PREFIX)
    name = "CLAUDE_CODE_OAUTH_TOKEN" if oauth else "ANTHROPIC_API_KEY"
    return {
        **QUIET,
        **({name: given} if given else {}),
        **seat.mcp_env,
        **request.env,
        "CLAUDE_CONFIG_DIR": f"{seat.state}/{FOLDER}",
        **({"IS_SANDBOX": "1"} if permission is Permission.SANDBOXED else {}),
    }


def _files(request: TurnRequest, seat: Seat) -> dict[str, bytes]:
    settings = {"cleanupPeriodDays": KEEP_DAYS, "skipDangerousModePermissionPrompt": True}
    files = {f"{FOLDER}/settings.json": json.dumps(settings).encode()}
    if request.system_prompt:
        files[f"{FOLDER}/system-prompt.md"] = request.system_prompt.encode()
    if seat.mcp:
        command, *args = seat.mcp
        # The values stay in the environment: files are kept.
        env = {name: f"${{{name}}}" for name in seat.mcp_env}
        server = {"command": command, "args": args, "env": env}
        files[f"{FOLDER}/mcp.json"] = json.dumps({"mcpServers": {"carrel": server}}).encode()
    return files


def _onboarded(seat: Seat, env: Mapping[str, str]) -> bytes:
    """What it notes of a user who has answered all its questions."""
    key = env.get("ANTHROPIC_API_KEY", "")
    approved = [key[-APPROVED_TAIL:]] if key else []
    # Where nothing confines it, whether a folder is trusted is a person's decision.
    trusted = {"hasTrustDialogAccepted": seat.confined, "hasCompletedProjectOnboarding": True}
    return json.dumps(
        {
            "hasCompletedOnboarding": True,
            "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": approved, "rejected": []},
            "projects": {seat.workspace: trusted},
        }
    ).encode()
