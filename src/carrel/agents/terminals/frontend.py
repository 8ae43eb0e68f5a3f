"""A frontend in its own terminal, as a frontend like others: its driver is the supervisor."""

from __future__ import annotations

from dataclasses import replace

from carrel.agents.driven import DrivenTranslator, driven_by
from carrel.agents.terminals.hook import FOLDER
from carrel.agents.terminals.tmux import SESSION, SOCKET
from carrel.domain.agents import (
    PREFIX,
    PROJECT_SETTINGS,
    Attaching,
    Confiding,
    FoundFrontend,
    Frontend,
    FrontendKind,
    Interactive,
    Prepared,
)
from carrel.domain.errors import MessageInvalid, UnsupportedFrontend
from carrel.domain.turns import AgentSetup, Provider, TurnRequest

DRIVER = "carrel.agents.terminals.supervisor:TerminalSupervisor"
MAX_PROMPT = 100_000
"""Characters: it is a word of the program's command."""


class InTerminal:
    """Implements `Frontend`. `unit_s` is what stands for a second between two starts."""

    def __init__(self, frontend: Frontend, unit_s: float = 1.0) -> None:
        if not isinstance(frontend, Interactive):
            raise UnsupportedFrontend(
                f"{frontend.name} has no terminal of its own.", hint="Use `carrel send`."
            )
        self._frontend = frontend
        self._interactive: Interactive = frontend
        self._unit_s = unit_s

    @property
    def name(self) -> str:
        return self._frontend.name

    @property
    def provider(self) -> Provider:
        return self._frontend.provider

    @property
    def kind(self) -> FrontendKind:
        return self._frontend.kind

    @property
    def needs_network(self) -> bool:
        return self._frontend.needs_network

    @property
    def credentials(self) -> tuple[str, ...]:
        return self._frontend.credentials

    @property
    def brought(self) -> tuple[str, ...]:
        own = self._frontend
        return own.brought if isinstance(own, Confiding) else PROJECT_SETTINGS

    @property
    def goes_without(self) -> bool:
        return isinstance(self._frontend, Confiding) and self._frontend.goes_without

    def find(self) -> FoundFrontend:
        return self._frontend.find()

    def binds(self) -> tuple[str, ...]:
        return self._frontend.binds()

    def prepare(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        if len(request.prompt) > MAX_PROMPT:
            raise MessageInvalid(
                f"A terminal takes a prompt of {MAX_PROMPT} characters at most.",
                hint="Put the text into a file, and name the file in the prompt.",
            )
        own = self._interactive.prepare_terminal(request, setup)
        options = {
            "first": own.argv,
            "again": own.again,
            "silent": own.silent,
            "unit_s": self._unit_s,
        }
        # What it is told first is in its command.
        driven = driven_by(DRIVER, options, replace(request, prompt=""), setup)
        return replace(
            driven,
            env=own.env,
            files=own.files,
            secrets=own.secrets,
            keeps=own.keeps,
            notes=own.notes,
        )

    def translator(self, request: TurnRequest) -> DrivenTranslator:
        return DrivenTranslator()


def attaching(state: str, *, read_only: bool, prefix: str = "") -> Attaching:
    """In the folder of its socket, by whose name alone it is found there."""
    how = ("-r",) if read_only else ()
    attach = ("attach-session", *how, "-t", SESSION)
    argv = ("tmux", "-N", "-u", "-S", SOCKET, *_with_prefix(prefix), *attach)
    return Attaching(argv, f"{state}/{FOLDER}")


def _with_prefix(key: str) -> tuple[str, ...]:
    """Adds a second prefix to the session, and says so on its screen. The first one stays, for the
    others who are attached."""
    if key in ("", PREFIX):
        return ()
    said = key.replace("C-", "Ctrl-").replace("M-", "Alt-")
    return (
        *("set-option", "-t", SESSION, "prefix2", key, ";"),
        *("bind-key", key, "send-prefix", "-2", ";"),
        *("set-option", "-t", SESSION, "status-right", f" {said} d detaches ", ";"),
    )
