"""Claude Code, by its own program: headless for turns, interactive for a terminal."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid5

from carrel.agents import requests
from carrel.agents.driven import DrivenTranslator, driven_by
from carrel.agents.frontends import claude_config, claude_driver
from carrel.agents.frontends.claude_driver import ClaudeTranslator
from carrel.agents.programs import Locator, found
from carrel.agents.turns import permission_of
from carrel.domain.agents import FoundFrontend, FrontendKind, Prepared, Translator
from carrel.domain.turns import (
    KEY,
    AgentSetup,
    InteractionMode,
    Permission,
    Provider,
    TurnRequest,
)

NAME = "claude-code"
PROGRAM = "claude"

DRIVER = "carrel.agents.frontends.claude_driver:ClaudeAskingDriver"
"""Of turns that ask; the others are the program alone."""

HEADLESS = ("-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages")

_LOCAL = ("`.claude/settings.local.json` is not used: `.git` leads to another checkout.",)

_SESSIONS = UUID("6f0d3a0e-5c0b-4f5e-9d53-0d2f3c1b8a77")


class ClaudeCode:
    """Implements `Frontend`, `Interactive` and `Confiding`."""

    name = NAME
    provider = Provider.ANTHROPIC
    kind = FrontendKind.CLI
    needs_network = True
    credentials = ("anthropic",)
    brought = claude_config.BROUGHT
    goes_without = True

    def __init__(self, locator: Locator) -> None:
        self._locator = locator

    def find(self) -> FoundFrontend:
        return found(self._locator, (NAME, self.provider, self.kind), PROGRAM)

    def binds(self) -> tuple[str, ...]:
        return self._locator.binds(NAME, PROGRAM)

    def prepare(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        asks = request.permission is Permission.ASK
        mode = [*HEADLESS, *(claude_driver.OPTIONS if asks else ())]
        first = requests.prompt(request, setup).encode("utf-8", "replace")
        plain = self._prepared(request, setup, mode, first)
        noted = claude_config.unattended_files(permission_of(request, setup), setup)
        files = {**plain.files, **noted}
        if not asks:
            return replace(plain, files=files)
        driven = driven_by(DRIVER, {"argv": plain.argv}, request, setup)
        return replace(plain, argv=driven.argv, files=files, first=driven.first, duplex=True)

    def prepare_terminal(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        watched = request.mode is InteractionMode.INTERACTIVE
        if watched:
            # It tells which conversation it begins; a number of ours could be used only once, and
            # a start that failed is made again.
            request = replace(request, run_id="")
        prepared = self._prepared(request, setup, _terminal(setup), b"")
        said = ("--", requests.prompt(request, setup)) if request.prompt else ()
        env = claude_config.terminal_environment(prepared.env)
        return replace(
            prepared,
            argv=(*prepared.argv, *said),
            env=env,
            files={**prepared.files, **claude_config.terminal_files(setup, env, watched)},
            again=self._again(request, setup),
        )

    def _again(self, request: TurnRequest, setup: AgentSetup) -> tuple[str, ...]:
        """Whatever it is called then."""
        program = self._locator.require(NAME, PROGRAM)
        options = [*_terminal(setup), *_resuming(KEY, request), *_options(request, setup)]
        return (*program.argv, *options, *_permission(permission_of(request, setup)))

    def translator(self, request: TurnRequest) -> Translator:
        if request.permission is Permission.ASK:
            return DrivenTranslator()
        return ClaudeTranslator(requests.asked_key(request))

    def _prepared(
        self, request: TurnRequest, setup: AgentSetup, mode: list[str], first: bytes
    ) -> Prepared:
        requests.check(request, NAME, Provider.ANTHROPIC)
        permission = permission_of(request, setup)
        session = _session(request)
        program = self._locator.require(NAME, PROGRAM)
        env = claude_config.environment(request, setup, permission)
        options = [*mode, *session, *_options(request, setup), *_permission(permission)]
        return Prepared(
            argv=(*program.argv, *options),
            env=env,
            files=claude_config.files(request, setup),
            keeps=claude_config.KEEPS,
            notes=_LOCAL if ".git" in setup.untrusted else (),
            first=first,
            conversation=session_key(request),
        )


def session_key(request: TurnRequest) -> str:
    """The conversation that the turn will be of; empty when the program chooses. Known before
    it starts, so that a turn that dies early can be gone on with."""
    asked = requests.asked_key(request)
    return asked or (str(uuid5(_SESSIONS, request.run_id)) if request.run_id else "")


def _session(request: TurnRequest) -> list[str]:
    asked = requests.asked_uuid(request)
    if asked:
        return _resuming(asked, request)
    key = session_key(request)
    return ["--session-id", key] if key else []


def _resuming(key: str, request: TurnRequest) -> list[str]:
    # What was recorded of the system prompt would win over what this turn says.
    fresh = ["--system-prompt-snapshot", "off"] if request.system_prompt else []
    return ["--resume", key, *fresh]


def _terminal(setup: AgentSetup) -> list[str]:
    return ["--settings", f"{setup.state}/{claude_config.TERMINAL}"]


def _options(request: TurnRequest, setup: AgentSetup) -> list[str]:
    """Texts go by files: what is in argv is in process lists."""
    options = ["--strict-mcp-config"]
    has_servers = bool(claude_config.servers(setup))
    configs = [f"{setup.state}/{claude_config.FOLDER}/mcp.json"] if has_servers else []
    configs += [f"{setup.workspace}/{one}" for one in (".mcp.json",) if one in setup.agreed]
    if configs:
        options += ["--mcp-config", *configs]
    if ".claude" in setup.untrusted:
        options += ["--setting-sources", "user"]
    elif ".git" in setup.untrusted:
        # It takes `settings.local.json` from the checkout that a worktree belongs to.
        options += ["--setting-sources", "user,project"]
    if setup.mcp:
        # The space's own tools need no permission.
        options += ["--allowedTools=mcp__carrel"]
    for folder in requests.readable(setup):
        options += ["--add-dir", folder]
    if request.system_prompt:
        options += [
            "--append-system-prompt-file",
            f"{setup.state}/{claude_config.FOLDER}/system-prompt.md",
        ]
    if request.model:
        options += ["--model", request.model]
    return options


def _permission(permission: Permission) -> list[str]:
    if permission is Permission.SANDBOXED:
        return ["--dangerously-skip-permissions"]
    return ["--permission-mode", "default" if permission is Permission.ASK else "dontAsk"]
