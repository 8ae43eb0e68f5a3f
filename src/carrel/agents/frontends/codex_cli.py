"""Codex, by its own program: `codex exec` for turns, the full screen for a terminal."""

from __future__ import annotations

from dataclasses import replace

from carrel.agents import requests
from carrel.agents.driven import DrivenTranslator, driven_by
from carrel.agents.frontends import codex_config
from carrel.agents.frontends.codex_driver import CodexTranslator
from carrel.agents.programs import AgentProgram, Locator, found
from carrel.agents.turns import permission_of
from carrel.domain.agents import FoundFrontend, FrontendKind, Prepared, Translator
from carrel.domain.turns import KEY, AgentSetup, Permission, Provider, TurnRequest

NAME = "codex-cli"
PROGRAM = "codex"

KNOWN_GAPS = (
    "`deny` is a sandbox of its own that lets it read only; a refused command is a failed one, or "
    "is not told at all, and is no `permission` event.",
    "With `deny`, when the agent's state is below a temporary folder, no command runs.",
    "The usage of a resumed turn is that of the whole conversation (`scope`).",
)

DRIVER = "carrel.agents.frontends.codex_driver:CodexAskingDriver"
"""Of turns that ask; the others are the program alone."""

FOLDER = "codex"
"""In the agent's state: its settings and conversations."""

LOGIN = f"{FOLDER}/auth.json"
"""In the agent's state: what it takes the login of a subscription from, and nothing else."""


class CodexCli:
    """Implements `Frontend`, `Interactive`, `Confiding` and `KeepsLogin`."""

    name = NAME
    provider = Provider.OPENAI
    kind = FrontendKind.CLI
    needs_network = True
    credentials = ("openai",)
    brought = codex_config.BROUGHT
    goes_without = True
    login_file = LOGIN

    def __init__(self, locator: Locator) -> None:
        self._locator = locator

    def find(self) -> FoundFrontend:
        return found(self._locator, (NAME, self.provider, self.kind), PROGRAM)

    def binds(self) -> tuple[str, ...]:
        return self._locator.binds(NAME, PROGRAM)

    def prepare(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        permission, asked, program = self._checked(request, setup)
        if request.permission is Permission.ASK:
            plain = _prepared(request, setup, (*program.argv, "app-server"), b"")
            driven = driven_by(DRIVER, {"argv": plain.argv}, request, setup)
            return replace(plain, argv=driven.argv, first=driven.first, duplex=True)
        before, options = _permission(permission)
        argv = [*before, "exec", "--json", "--skip-git-repo-check", *options]
        argv += [*_options(request), *(("resume", asked) if asked else ()), "-"]
        first = requests.prompt(request, setup).encode("utf-8", "replace")
        return _prepared(request, setup, (*program.argv, *argv), first)

    def prepare_terminal(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        permission, asked, program = self._checked(request, setup)
        # The hooks are our own; it would ask whether they may be trusted.
        argv = ["--no-daemon", "--no-alt-screen", "--dangerously-bypass-hook-trust"]
        command = (*program.argv, *argv, *_terminal(permission), *_options(request))
        resume = ("resume", asked) if asked else ()
        said = ("--", requests.prompt(request, setup)) if request.prompt else ()
        prepared = _prepared(request, setup, (*command, *resume, *said), b"")
        # It tells of its start with the first thing that is said to it. A folder that nobody
        # vouched for it asks about.
        return replace(prepared, again=(*command, "resume", KEY), silent=setup.confined)

    def translator(self, request: TurnRequest) -> Translator:
        if request.permission is Permission.ASK:
            return DrivenTranslator()
        return CodexTranslator(requests.asked_key(request))

    def _checked(
        self, request: TurnRequest, setup: AgentSetup
    ) -> tuple[Permission, str, AgentProgram]:
        requests.check(request, NAME, Provider.OPENAI)
        permission = permission_of(request, setup)
        return permission, requests.asked_uuid(request), self._locator.require(NAME, PROGRAM)


def _prepared(
    request: TurnRequest, setup: AgentSetup, argv: tuple[str, ...], first: bytes
) -> Prepared:
    env = _environment(request, setup)
    own = setup.imported.files if setup.imported else {}
    files = {
        **codex_config.EMPTIED,
        **own,
        "config.toml": codex_config.text(request, setup, env),
    }
    login = codex_config.auth(setup)
    return Prepared(
        argv=argv,
        env=env,
        files={f"{FOLDER}/{name}": data for name, data in files.items()},
        secrets={} if login is None else {LOGIN: login},
        keeps={f"{FOLDER}/{name}": kept for name, kept in codex_config.IMPORTED.items()},
        first=first,
        notes=codex_config.left_out(setup),
        conversation=requests.asked_key(request),
    )


def _permission(permission: Permission) -> tuple[list[str], list[str]]:
    """What stands before `exec`, and after it."""
    if permission is Permission.SANDBOXED:
        return [], ["--dangerously-bypass-approvals-and-sandbox"]
    return ["-a", "never"], ["-s", "read-only"]


def _terminal(permission: Permission) -> list[str]:
    """With a person at hand, who answers there what it asks."""
    if permission is Permission.ASK:
        return ["-a", "on-request", "-s", "read-only"]
    before, after = _permission(permission)
    return [*before, *after]


def _options(request: TurnRequest) -> list[str]:
    model = ["-m", request.model] if request.model else []
    return [*model, *(f"--image={path}" for path in requests.images(request))]


def _environment(request: TurnRequest, setup: AgentSetup) -> dict[str, str]:
    """Its own provider takes the key by another name than everybody's."""
    keys = setup.imported.keys if setup.imported else {}
    env = {**keys, **setup.mcp_env, **setup.server_env}
    key = request.env.get(codex_config.KEY) or setup.credentials.get("openai", "")
    if key:
        env |= {codex_config.KEY: key, "CODEX_API_KEY": key}
    own = {**codex_config.NO_GIT, "CODEX_HOME": f"{setup.state}/{FOLDER}"}
    return {**env, **request.env, **own}
