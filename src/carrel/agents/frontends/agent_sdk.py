"""The Claude Agent SDK for Python, with the program that it carries."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path

from carrel.agents import models, requests
from carrel.agents.driven import DrivenFrontend
from carrel.agents.frontends import claude_config
from carrel.domain.agents import FoundFrontend
from carrel.domain.errors import FrontendNotInstalled
from carrel.domain.turns import AgentSetup, Provider, TurnRequest

PACKAGE = "claude-agent-sdk"
INSTALL = "pip install 'carrel[agents]'"


class AgentSdk(DrivenFrontend):
    name = "agent-sdk"
    provider = Provider.ANTHROPIC
    credentials = ("anthropic",)
    # It is started without all settings but ours.
    brought = ()
    keeps = claude_config.KEEPS
    driver = "carrel.agents.frontends.agent_sdk_driver:AgentSdkDriver"

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        program = bundled()
        if program is None:
            raise FrontendNotInstalled(
                "The Claude Agent SDK is not installed.", hint=f"Run: {INSTALL}"
            )
        return {"program": str(program)}

    def check(self, request: TurnRequest, setup: AgentSetup) -> None:
        super().check(request, setup)
        requests.asked_uuid(request)

    def find(self) -> FoundFrontend:
        program, known = bundled(), models.of(self.name)
        return FoundFrontend(
            self.name,
            self.provider,
            self.kind,
            installed=program is not None,
            version=metadata.version(PACKAGE) if program else "",
            path=str(program or ""),
            models=known.known,
            default_model=known.default,
            install=INSTALL,
        )


def bundled() -> Path | None:
    """The program in the package; found without loading that."""
    spec = util.find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "_bundled" / "claude"
    return program if program.exists() else None
