"""The table of frontends: those that are built in, and those that others bring along.

A package brings its own by an entry point of the group `carrel.frontends`, which is called
with the `Locator` and gives a `Frontend`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

from carrel.agents import models
from carrel.agents.programs import Locator
from carrel.agents.terminals.frontend import InTerminal, attaching
from carrel.domain.agents import Attaching, FoundFrontend, Frontend, FrontendKind
from carrel.domain.errors import FrontendNotInstalled, UnsupportedFrontend

GROUP = "carrel.frontends"
AT_ONCE = 4
"""Programs that are asked whether they work."""

BUILT_IN: dict[str, str] = {
    "scripted": "carrel.agents.frontends.scripted:Scripted",
    "claude-code": "carrel.agents.frontends.claude_code:ClaudeCode",
    "codex-cli": "carrel.agents.frontends.codex_cli:CodexCli",
    "agent-sdk": "carrel.agents.frontends.agent_sdk:AgentSdk",
    "pi-sdk": "carrel.agents.frontends.pi_sdk:PiSdk",
    "acp": "carrel.agents.frontends.acp:Acp",
    "claude-agent-acp": "carrel.agents.frontends.acp:ClaudeAgentAcp",
    "codex-acp": "carrel.agents.frontends.acp:CodexAcp",
    "gemini": "carrel.agents.frontends.acp:Gemini",
    "opencode": "carrel.agents.frontends.acp:OpenCode",
    "goose": "carrel.agents.frontends.acp:Goose",
    "amazon-q": "carrel.agents.frontends.acp:AmazonQ",
    "kiro-cli": "carrel.agents.frontends.acp:KiroCli",
}
"""`module:name`, imported when it is first asked for."""


class Registry:
    """Implements `carrel.domain.agents.Frontends`."""

    def __init__(
        self,
        locator: Locator,
        unit_s: float = 1.0,
        own: Mapping[str, Callable[[Locator], Frontend]] | None = None,
    ) -> None:
        """`unit_s` is what stands for a second when agents in terminals are started again.
        `own` make those that the settings name."""
        self._locator = locator
        self._own = own or {}
        self._unit_s = unit_s
        self._made: dict[str, Frontend] = {}

    def get(self, name: str) -> Frontend:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(name, self._locator)
        return made

    def require(self, name: str) -> Frontend:
        found = self._find(name, self._locator.unasked())
        if not found.installed:
            raise FrontendNotInstalled(
                f"{name} cannot be used here: {found.problem or 'it is not installed.'}",
                hint=f"Run: {found.install}" if found.install else "`carrel agents` says more.",
                frontend=name,
            )
        return self.get(name)

    def in_terminal(self, name: str) -> Frontend:
        return InTerminal(self.get(name), self._unit_s)

    def check_model(self, name: str, model: str, env: Mapping[str, str]) -> None:
        models.check(model, name, env)

    def attaching(self, state: str, *, read_only: bool, prefix: str) -> Attaching:
        return attaching(state, read_only=read_only, prefix=prefix)

    def names(self) -> Sequence[str]:
        return tuple(dict.fromkeys((*BUILT_IN, *self._own, *sorted(_brought()))))

    def found(self) -> Sequence[FoundFrontend]:
        """All of them as they are on this machine. What a package brought along and cannot be
        used says why, and spoils it for nobody else. Blocking: programs are started, some at the
        same time, for each takes a second or two."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(self._find, self.names()))

    def look(self, path: str) -> None:
        known, there = self._locator.unasked(), self._locator.on_path(path)
        for name in self.names():
            if not self._find(name, known).installed and self._find(name, there).installed:
                self._locator.remember(name, path)

    def _find(self, name: str, locator: Locator | None = None) -> FoundFrontend:
        try:
            return (self._make(name, locator) if locator else self.get(name)).find()
        except UnsupportedFrontend:
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            return FoundFrontend(name, "", FrontendKind.SDK, installed=False, problem=problem)

    def _make(self, name: str, locator: Locator) -> Frontend:
        if name in BUILT_IN:
            module, _, what = BUILT_IN[name].partition(":")
            factory = getattr(importlib.import_module(module), what)
        elif name in self._own:
            factory = self._own[name]
        else:
            entry = _brought().get(name)
            if entry is None:
                raise UnsupportedFrontend(
                    f"There is no frontend {name[:80]!r}.", hint="`carrel agents` lists them."
                )
            factory = entry.load()
        return _call(factory, locator)


def _call(factory: Callable[..., Any], locator: Locator) -> Frontend:
    found: Frontend = factory(locator)
    return found


def _brought() -> dict[str, metadata.EntryPoint]:
    """What is built in is not to be replaced by whoever comes by."""
    entries = metadata.entry_points(group=GROUP)
    return {entry.name: entry for entry in entries if entry.name not in BUILT_IN}
