"""Any agent that speaks the Agent Client Protocol: by command, or by name."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from importlib import util
from typing import ClassVar

from carrel.agents.driven import DrivenFrontend
from carrel.agents.frontends.acp_presets import PRESETS, Preset
from carrel.agents.frontends.finding import found
from carrel.agents.locating import Program
from carrel.domain.agents import FoundFrontend, FrontendKind, Provider, TurnRequest
from carrel.domain.errors import FrontendNotInstalled

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
                "It is not said which ACP agent is meant.",
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

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        require_library()
        return _options(self.name, self.locator.require(self.name, self.preset.program))

    def binds(self) -> tuple[str, ...]:
        found = self.locator.find(self.name, self.preset.program)
        return (*super().binds(), *(found.binds() if found else ()))

    def find(self) -> FoundFrontend:
        known = found(self.locator, (self.name, self.provider, self.kind), self.preset.program)
        has_library = util.find_spec("acp") is not None
        # Not all of them say their version.
        installed = bool(known.path) and has_library
        install = self.preset.install or known.install
        return replace(known, installed=installed, install=install, problem="")


class ClaudeAgentAcp(KnownAcp):
    name = "claude-agent-acp"
    preset = PRESETS[name]
    credentials = preset.credentials


class CodexAcp(KnownAcp):
    name = "codex-acp"
    preset = PRESETS[name]
    credentials = preset.credentials


class Gemini(KnownAcp):
    name = "gemini"
    preset = PRESETS[name]
    credentials = preset.credentials


class OpenCode(KnownAcp):
    name = "opencode"
    preset = PRESETS[name]
    credentials = preset.credentials


class Goose(KnownAcp):
    name = "goose"
    preset = PRESETS[name]
    credentials = preset.credentials


def _options(name: str, program: Program) -> Mapping[str, object]:
    return {"argv": [*program.argv, *PRESETS[name].args], "preset": name}


def require_library() -> None:
    if util.find_spec("acp") is None:
        raise FrontendNotInstalled("The library for ACP is not installed.", hint=f"Run: {INSTALL}")
