"""ACP agents that are known by name: how they start, and where they keep their own things."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from carrel.agents import models
from carrel.agents.frontends import claude_config, codex_config
from carrel.domain.turns import AgentSetup, Permission, TurnRequest


@dataclass(frozen=True)
class Preset:
    program: str
    args: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    """Variables that name a folder of its own, below the agent's state."""
    env: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[Permission, str] = field(default_factory=dict)
    """Of its session modes, the one that fits; where there is none, its own stays."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """Variables that make one ask which would not, where it must."""
    install: str = ""
    """Empty: `carrel agents install` knows it."""
    brought: tuple[str, ...] = ()
    """What it reads in a project beside texts."""
    without: Mapping[str, object] = field(default_factory=dict)
    """What a session is told, that it does not read that; empty where nothing helps."""
    keeps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of its own things, from turn to turn; see `Prepared`."""
    settings: str = ""
    """Below the agent's state, a file that says which model it takes when none is named."""
    provider_by: str = ""
    model_by: str = ""
    """Variables by which it takes both."""


_XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")


_ASK = {"edit": "ask", "bash": "ask", "webfetch": "ask"}

KNOWN_GAPS = (
    "`ask` and `deny` hold for agents that ask before they act; one that is given by its command "
    "may not.",
    "gemini and opencode were tried out by hand and are in no suite; goose, amazon-q and kiro-cli "
    "were not tried at all.",
    "gemini 0.61 writes over a conversation as it loads it, so going on with one mostly fails.",
    "What gemini tells again of a loaded conversation may reach into the turn.",
)


def _below(name: str) -> dict[str, str]:
    return {variable: f"{name}/{variable[4:-5].lower()}" for variable in _XDG}


PRESETS: Mapping[str, Preset] = {
    "claude-agent-acp": Preset(
        "claude-agent-acp",
        credentials=("anthropic",),
        folders={"CLAUDE_CONFIG_DIR": claude_config.FOLDER},
        env=claude_config.QUIET,
        modes={Permission.SANDBOXED: "bypassPermissions"},
        brought=claude_config.BROUGHT,
        keeps=claude_config.KEEPS,
        without={"claudeCode": {"options": {"settingSources": ["user"], "strictMcpConfig": True}}},
    ),
    "codex-acp": Preset(
        "codex-acp",
        credentials=("openai",),
        folders={"CODEX_HOME": "codex"},
        env=codex_config.NO_GIT,
        # It trusts every project itself.
        brought=codex_config.BROUGHT,
        modes={
            Permission.SANDBOXED: "agent-full-access",
            Permission.ASK: "read-only",
            Permission.DENY: "read-only",
        },
    ),
    "gemini": Preset(
        "gemini",
        ("--acp",),
        credentials=("gemini",),
        folders={"GEMINI_CLI_HOME": "gemini"},
        # It refuses `yolo` in a folder that nobody has said to trust.
        env={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
        asks={"GEMINI_CLI_TRUST_WORKSPACE": "false"},
        modes={Permission.SANDBOXED: "yolo"},
        install="npm install -g @google/gemini-cli",
        brought=(".gemini", ".env"),
        keeps={"gemini": (".gemini",), "gemini/.gemini": ("tmp", "history")},
    ),
    "opencode": Preset(
        "opencode",
        ("acp",),
        credentials=("anthropic", "openai"),
        folders=_below("opencode"),
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        asks={"OPENCODE_PERMISSION": json.dumps(_ASK)},
        install="npm install -g opencode-ai",
        brought=(".opencode", "opencode.json", "opencode.jsonc", ".env"),
        keeps={"opencode/config": (), "opencode/cache": ()},
        settings="opencode/config/opencode/opencode.json",
    ),
    "goose": Preset(
        "goose",
        ("acp",),
        credentials=("anthropic", "openai"),
        folders=_below("goose"),
        env={"GOOSE_TELEMETRY_ENABLED": "false", "GOOSE_MODE": "auto"},
        asks={"GOOSE_MODE": "approve"},
        install="see https://block.github.io/goose",
        brought=(".goose", ".env"),
        keeps={"goose/config": (), "goose/cache": ()},
        provider_by="GOOSE_PROVIDER",
        model_by="GOOSE_MODEL",
    ),
    "amazon-q": Preset(
        # `q` hands this on to it, where there is nothing else of that short name.
        "qchat",
        ("acp",),
        folders=_below("amazon-q"),
        install="see https://github.com/aws/amazon-q-developer-cli",
        brought=(".amazonq",),
        keeps={"amazon-q/config": (), "amazon-q/cache": ()},
    ),
    "kiro-cli": Preset(
        "kiro-cli",
        ("acp",),
        credentials=("kiro",),
        folders=_below("kiro"),
        install="see https://kiro.dev/docs/cli",
        brought=(".kiro",),
        keeps={"kiro/config": (), "kiro/cache": ()},
    ),
}


def environment_of(preset: Preset, setup: AgentSetup, mode: Permission) -> dict[str, str]:
    """Its folders are made: some agents do not make them."""
    folders = {variable: f"{setup.state}/{name}" for variable, name in preset.folders.items()}
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    # What this process says of itself is not to be inherited: Claude's programs believe it.
    if mode is Permission.SANDBOXED:
        return {**preset.env, **folders, "IS_SANDBOX": "1"}
    return {**preset.env, **preset.asks, **folders, "IS_SANDBOX": ""}


def environment_of_model(name: str, request: TurnRequest, env: Mapping[str, str]) -> dict[str, str]:
    """Goose has no provider of its own choice, and takes a model by a variable in each version."""
    preset, (provider, model) = PRESETS.get(name), models.by_key(name, env)
    if preset is None or not preset.model_by or not provider:
        return {}
    by = {preset.provider_by: provider, preset.model_by: request.model or model}
    return {variable: value for variable, value in by.items() if variable not in request.env}


def write_settings(
    name: str, request: TurnRequest, setup: AgentSetup, env: Mapping[str, str]
) -> None:
    """Codex takes its endpoint from a file only. OpenCode would take a service of its own, whatever
    key it has; what its other settings say comes before this."""
    preset = PRESETS.get(name, Preset(""))
    if preset.settings and (model := models.by_key(name, env)[1]):
        path = Path(setup.state, preset.settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"model": model}))
    home = preset.folders.get("CODEX_HOME")
    if home is not None:
        # The space's server is given to it by the protocol, and the system prompt with the
        # prompt, as to every other.
        bare = replace(request, system_prompt="")
        settings = codex_config.text(bare, replace(setup, mcp=()), env)
        for name, data in {"config.toml": settings, **codex_config.EMPTIED}.items():
            Path(setup.state, home, name).write_bytes(data)
