"""Agents that speak the Agent Client Protocol: by command, by name, or as the settings say."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import util
from typing import ClassVar

from carrel.agents.driven import DrivenFrontend
from carrel.agents.frontends.acp_presets import PRESETS, Preset
from carrel.agents.programs import AgentProgram, found
from carrel.domain.agents import FoundFrontend, FrontendKind, Prepared
from carrel.domain.errors import FrontendNotInstalled
from carrel.domain.turns import AgentSetup, Provider, TurnRequest

COMMAND = "CARREL_ACP_COMMAND"
"""In a turn's environment: the agent's command, or the name of one that is known."""

INSTALL = "pip install 'carrel[agents]'"


class Acp(DrivenFrontend):
    """The agent that the turn's environment names."""

    name = "acp"
    provider = Provider.ANY
    kind = FrontendKind.ACP
    driver = "carrel.agents.frontends.acp_driver:AcpDriver"

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        require_library()
        words = shlex.split(request.env.get(COMMAND, ""))
        if not words:
            raise FrontendNotInstalled(
                "The frontend acp was not told which agent to start.",
                hint=f"Set {COMMAND} in the turn's environment to its command, or to one of: "
                f"{', '.join(PRESETS)}.",
            )
        if len(words) == 1 and words[0] in PRESETS:
            return _options(words[0], self.locator.require(words[0], PRESETS[words[0]].program))
        program = shutil.which(words[0])
        if program is None:
            raise FrontendNotInstalled(f"There is no program {words[0]!r} here.")
        return {"argv": [program, *words[1:]]}

    def find(self) -> FoundFrontend:
        installed = util.find_spec("acp") is not None
        return FoundFrontend(self.name, self.provider, self.kind, installed, install=INSTALL)


class KnownAcp(DrivenFrontend):
    """One of the presets; each has its class below."""

    provider = Provider.ANY
    kind = FrontendKind.ACP
    driver = Acp.driver
    preset: ClassVar[Preset]

    def __init_subclass__(cls) -> None:
        cls.preset = PRESETS[cls.name]
        cls.credentials = cls.preset.credentials
        cls.brought = cls.preset.brought
        cls.goes_without = bool(cls.preset.without)
        cls.keeps = cls.preset.keeps

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        require_library()
        return _options(self.name, self.locator.require(self.name, self.preset.program))

    def binds(self) -> tuple[str, ...]:
        return self.locator.binds(self.name, self.preset.program)

    def find(self) -> FoundFrontend:
        known = found(self.locator, (self.name, self.provider, self.kind), self.preset.program)
        install = self.preset.install or known.install
        problem = self._problem()
        # Not all of them say their version.
        installed = bool(known.path) and not problem
        return replace(known, installed=installed, install=install, problem=problem)

    def _problem(self) -> str:
        preset, program = self.preset, self.locator.find(self.name, self.preset.program)
        if program is None:
            return ""
        if util.find_spec("acp") is None:
            return f"The library for ACP is not installed. Run: {INSTALL}"
        return self.locator.trial(program, preset.args, preset.env, preset.folders)


class ClaudeAgentAcp(KnownAcp):
    name = "claude-agent-acp"


class CodexAcp(KnownAcp):
    name = "codex-acp"


class Gemini(KnownAcp):
    name = "gemini"


class OpenCode(KnownAcp):
    name = "opencode"


class Goose(KnownAcp):
    name = "goose"


class AmazonQ(KnownAcp):
    name = "amazon-q"


class KiroCli(KnownAcp):
    name = "kiro-cli"


def _options(name: str, program: AgentProgram) -> Mapping[str, object]:
    return {"argv": [*program.argv, *PRESETS[name].args], "preset": name}


def require_library() -> None:
    if util.find_spec("acp") is None:
        raise FrontendNotInstalled("The library for ACP is not installed.", hint=f"Run: {INSTALL}")


# ACP agents that the settings name: each is a frontend of its own


@dataclass(frozen=True)
class OwnAgent:
    """`command[0]` is a path or on PATH. `credentials` are variables by the names of keys,
    `binds` what the sandbox must show beside the program."""

    command: tuple[str, ...]
    provider: Provider = Provider.ANY
    credentials: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[str, ...] = ()
    network: bool = True
    env: Mapping[str, str] = field(default_factory=dict)


class OwnAcp(DrivenFrontend):
    """Made for being derived from: see `frontend_of`."""

    kind = FrontendKind.ACP
    driver = Acp.driver
    about: ClassVar[OwnAgent]

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        require_library()
        if problem := self._problem():
            raise FrontendNotInstalled(
                f"{self.name}: {problem}",
                hint="Correct this agent in the daemon's settings, then restart the daemon: "
                "carrel down",
            )
        program = self._program()
        assert program is not None
        return {"argv": [*program.argv, *self.about.command[1:]]}

    def prepare(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        """Keys go by the variables that the settings say."""
        own = self.about.credentials
        named = {own[name]: value for name, value in setup.credentials.items()}
        prepared = super().prepare(request, replace(setup, credentials=named))
        return replace(prepared, env={**self.about.env, **prepared.env})

    def binds(self) -> tuple[str, ...]:
        shown = self.locator.binds(self.name, self.about.command[0])
        there = (path for path in self.about.binds if os.path.exists(path))
        return tuple(dict.fromkeys((*shown, *there)))

    def find(self) -> FoundFrontend:
        about = (self.name, self.provider, self.kind)
        known = found(self.locator, about, self.about.command[0])
        problem = self._problem() or self._trial()
        # Not all of them say their version.
        return replace(known, installed=not problem, install="", problem=problem)

    def _program(self) -> AgentProgram | None:
        return self.locator.find(self.name, self.about.command[0])

    def _problem(self) -> str:
        if self._program() is None:
            return f"There is no program {self.about.command[0]!r} here."
        missing = [path for path in self.about.binds if not os.path.exists(path)]
        return f"{missing[0]} is not there." if missing else ""

    def _trial(self) -> str:
        program = self._program()
        assert program is not None
        return self.locator.trial(program, self.about.command[1:], self.about.env)


def frontend_of(name: str, about: OwnAgent) -> type[OwnAcp]:
    says = {
        "name": name,
        "about": about,
        "provider": about.provider,
        "needs_network": about.network,
        "credentials": tuple(about.credentials),
    }
    return type(f"Own({name})", (OwnAcp,), says)
