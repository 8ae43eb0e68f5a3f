"""The frontends that the suite runs on: how each is told the same things, and its known gaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from carrel.domain.turns import Provider
from tests.agents.standins import UNKNOWN_MODEL

PROGRAMS = Path(__file__).parents[2] / "tools" / "agents"
MODULES = PROGRAMS / "node_modules"
"""Where `make setup` puts the real ones."""

NO_MODELS = "it has no models"


@dataclass(frozen=True)
class Case:
    """One frontend. `gaps` says, by the name of a test, why it cannot pass there."""

    name: str
    provider: Provider
    base_url: str = ""
    """The variable with the address of its API; `{url}` with what follows."""
    url: str = "{url}"
    key: str = ""
    """The credential that it is given."""
    model: str = ""
    """Empty: its default. Codex offers models that it knows other tools than its usual ones."""
    gaps: dict[str, str] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    """Variables beside that one."""
    image: bool = False
    """It works in a space with an image that has neither its interpreter nor its libraries."""

    def __str__(self) -> str:
        return f"{self.name}-image" if self.image else self.name

    @property
    def scripted(self) -> bool:
        return not self.base_url

    @property
    def by_npm(self) -> bool:
        """It is a program that `make setup` installs with npm."""
        return self.name not in ("scripted", "agent-sdk")

    def env(self, url: str) -> dict[str, str]:
        return {} if self.scripted else {self.base_url: self.url.format(url=url), **self.more}

    def write(self, path: str, text: str) -> str:
        return f"write {path} {text}" if self.scripted else f"WRITE {path} {text}"

    def wait(self, seconds: float) -> str:
        return f"sleep {seconds}" if self.scripted else f"SLEEP {seconds}"

    def run(self, command: str) -> str:
        return f"run {command}" if self.scripted else f"RUN {command}"

    @property
    def unknown_model(self) -> str:
        return UNKNOWN_MODEL


SCRIPTED = Case(
    "scripted",
    Provider.ANY,
    gaps={
        "keys": NO_MODELS,
        "usage": NO_MODELS,
        "attachments": "its prompt is the script, and nothing else",
    },
)
CLAUDE = Case("claude-code", Provider.ANTHROPIC, "ANTHROPIC_BASE_URL", key="anthropic")
CODEX = Case(
    "codex-cli", Provider.OPENAI, "OPENAI_BASE_URL", "{url}/v1", key="openai", model="small"
)
SDK = Case("agent-sdk", Provider.ANTHROPIC, "ANTHROPIC_BASE_URL", key="anthropic")
PI = Case(
    "pi-sdk",
    Provider.OPENAI,
    "OPENAI_BASE_URL",
    "{url}/v1",
    key="openai",
    model="small",
)
CLAUDE_ACP = Case(
    "claude-agent-acp",
    Provider.ANY,
    "ANTHROPIC_BASE_URL",
    key="anthropic",
    more={"CLAUDE_CODE_EXECUTABLE": f"{MODULES}/@anthropic-ai/claude-code/bin/claude.exe"},
)
CODEX_ACP = Case(
    "codex-acp",
    Provider.ANY,
    "OPENAI_BASE_URL",
    "{url}/v1",
    key="openai",
    model="gpt-5.5",
    gaps={"ask": "it asks only when the model itself wants to do more than reading"},
)
CASES = (SCRIPTED, CLAUDE, CODEX, SDK, PI, CLAUDE_ACP, CODEX_ACP)

IN_IMAGES = (replace(SCRIPTED, image=True), replace(CLAUDE, image=True))
ALL = (*CASES, *IN_IMAGES)


def able(what: str) -> list[Case]:
    """Those without a known gap of that name."""
    return [case for case in ALL if what not in case.gaps]


def together(cases: Iterable[Case], *more: str) -> list[ParameterSet]:
    """As parameters of tests; all of one frontend go to one worker, which has its turns."""
    return [
        pytest.param(
            *(case, *more),
            marks=pytest.mark.xdist_group(f"frontend {case}"),
            id="-".join((str(case), *more)),
        )
        for case in cases
    ]
