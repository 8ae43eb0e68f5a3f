"""The models that are known of each frontend: those of its pinned version. Of agents that Carrel
does not install, some that their services have.

A frontend takes names beyond these: its provider's later ones (`more`), and any at all of a service
that the turn's environment names. What is certain to be another provider's, or a slip, is refused
before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from carrel.domain.errors import ModelNotSupported
from carrel.domain.keys import VARIABLES, names_service


@dataclass(frozen=True)
class Models:
    known: tuple[str, ...] = ()
    """Empty: only the agent itself can tell."""
    default: str = ""
    """What it takes when none is named. Empty: only its own settings say."""
    more: str = ""
    """A pattern of other names that it takes."""
    by_key: Mapping[str, str] = field(default_factory=dict)
    """What it is told to take when none is named, by the key that it has; the first one that is
    there. Without being told it would take none, or that of a service without a key."""


_CLAUDE = ("opus", "sonnet", "haiku", "fable")
"""Names for the newest of each."""
_CLAUDE_MORE = r"(?:opus|sonnet|haiku|fable|default|best|opusplan|claude-[\w.@:-]+)(?:\[\w+\])?"

_CODEX = (
    *("gpt-6.1-sol", "gpt-6.1-terra", "gpt-6-astra", "gpt-6-sol", "gpt-6-luna"),
    *("gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna", "gpt-5.5"),
)
_OPENAI_MORE = r"(?:gpt-|chatgpt-|codex-|o[0-9])[\w.:-]*"

_PI = (
    *("gpt-6-astra", "gpt-6-sol", "gpt-6-luna", "gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna"),
    *("gpt-5.5", "gpt-5.5-pro", "gpt-5.4", "gpt-5.4-mini", "gpt-5.3-codex", "gpt-4.1", "o4-mini"),
)
_PI_MORE = rf"[a-z][a-z0-9-]*/\S+|{_OPENAI_MORE}"
"""Any provider of its own, or one of the settings that it is given."""

_CLAUDE_FULL = ("claude-opus-5-5", "claude-opus-5", "claude-sonnet-5", "claude-haiku-4-5")
_OPENAI_FULL = ("gpt-6-sol", "gpt-5.5")
_BY_KEY = {"anthropic": "claude-sonnet-5", "openai": "gpt-5.5"}
_GEMINI = (
    *("auto", "gemini-3.1-pro-preview", "gemini-3-flash-preview", "gemini-2.5-pro"),
    *("gemini-3.8-flash", "gemini-3.5-flash-lite"),
)
_KIRO = (
    *("auto", "claude-opus-4.7", "claude-opus-4.6", "claude-opus-4.5", "claude-sonnet-4.6"),
    *("claude-sonnet-4.5", "claude-sonnet-4", "claude-haiku-4.5"),
)


def _prefixed(names: Iterable[str], provider: str) -> tuple[str, ...]:
    return tuple(f"{provider}/{name}" for name in names)


OF: Mapping[str, Models] = {
    "scripted": Models(("scripted",), "scripted"),
    "claude-code": Models(_CLAUDE, "opus", _CLAUDE_MORE),
    "agent-sdk": Models(_CLAUDE, "opus", _CLAUDE_MORE),
    "codex-cli": Models(_CODEX, "gpt-6.1-sol", _OPENAI_MORE),
    "pi-sdk": Models(_prefixed(_PI, "openai"), "openai/gpt-5.5", _PI_MORE),
    "claude-agent-acp": Models(("default", *_CLAUDE), "default", _CLAUDE_MORE),
    "codex-acp": Models(_CODEX, "gpt-6.1-sol", _OPENAI_MORE),
    "gemini": Models(_GEMINI, "auto", r"auto\S*|(?:models/)?gem(?:ini|ma)-\S+"),
    "opencode": Models(
        (*_prefixed(_CLAUDE_FULL, "anthropic"), *_prefixed(_OPENAI_FULL, "openai")),
        "anthropic/claude-sonnet-5",
        r"[\w.-]+/\S+",
        {provider: f"{provider}/{name}" for provider, name in _BY_KEY.items()},
    ),
    "goose": Models((*_CLAUDE_FULL, *_OPENAI_FULL), "claude-sonnet-5", r"\S+", _BY_KEY),
    "amazon-q": Models(
        ("claude-sonnet-4.5", "claude-sonnet-4", "claude-3.7-sonnet"), "claude-sonnet-4", r"\S+"
    ),
    "kiro-cli": Models(_KIRO, "auto", r"\S+"),
}


def of(frontend: str) -> Models:
    return OF.get(frontend, Models())


def by_key(frontend: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Of the first key that is in an environment, the provider, and the model to take when none is
    named; two empty ones where an agent is not to be told."""
    for name, model in of(frontend).by_key.items():
        if any(env.get(variable) for variable in VARIABLES[name]):
            return name, model
    return "", ""


def check(name: str, frontend: str, env: Mapping[str, str]) -> None:
    """Raises `ModelNotSupported`."""
    models = of(frontend)
    if name.startswith("-") or not name.isprintable():
        # It is a word of a command.
        raise ModelNotSupported(f"{name[:80]!r} cannot be a model's name.")
    if not name or not models.known or name in models.known or names_service(env):
        return
    if not re.fullmatch(models.more, name):
        raise ModelNotSupported(
            f"{frontend} has no model {name[:80]!r}. Known are: {', '.join(models.known)}.",
            hint="Name one of them, or none for the default.",
            known=list(models.known),
        )
