"""What is a key, and what looks like one: by the name of its variable, or by its shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY", "CODEX_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "kiro": ("KIRO_API_KEY",),
}
"""By which programs take a credential, by its name in `carrel auth`; the first is the usual one."""

HIDDEN = "<hidden>"
"""What is shown instead of a value."""

_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|HEADERS|COOKIE|(?:^|_)(?:PAT|PASS|AUTH)$",
    re.IGNORECASE,
)
_SHAPE = re.compile(
    r"""\b(?:
        (?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}             # Anthropic, OpenAI, Stripe
      | gh[opsur]_[A-Za-z0-9]{16,} | github_pat_\w{16,} | glpat-[\w-]{16,}
      | xox[abeoprs]-[\w-]{8,} | hf_[A-Za-z0-9]{16,} | npm_[A-Za-z0-9]{16,} | pypi-[\w-]{16,}
      | A[KS]IA[A-Z0-9]{12,} | AIza[\w-]{20,} | ya29\.[\w.-]{8,}
      | eyJ[\w-]{8,}\.[\w-]{8,}\.                    # a JSON web token
    )
    | -----BEGIN[ A-Z]*PRIVATE[ ]KEY
    | ://[^/\s:@]*:[^/\s@]+@                          # a password in an address
    """,
    re.VERBOSE,
)


def named_like_key(name: str) -> bool:
    return _NAME.search(name) is not None


def looks_like_key(name: str, value: str) -> bool:
    return bool(value) and (named_like_key(name) or _SHAPE.search(value) is not None)


def keys_in(text: str) -> Iterator[str]:
    """All in it that has the shape of a key."""
    return (found[0] for found in _SHAPE.finditer(text))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """For people and for answers: without the values that look like keys."""
    return {name: HIDDEN if looks_like_key(name, value) else value for name, value in env.items()}


# Variables that say which service an agent speaks to

_ADDRESSES = re.compile(
    r"(?:ANTHROPIC|CLAUDE|OPENAI|CODEX|GEMINI|GOOGLE|VERTEX|AZURE|AWS|BEDROCK|OPENROUTER|MISTRAL"
    r"|GROQ|XAI|DEEPSEEK|OLLAMA|LITELLM|OPENCODE|GOOSE|PI|LLM)_?(?:\w*_)?"
    r"(?:BASE_?UR[IL]|API_?BASE|API_?URL|API_?HOST|ENDPOINT|ENDPOINT_URL\w*|URL|HOST)",
    re.IGNORECASE,
)

_CLOUDS = re.compile(r"CLAUDE_CODE_(?:USE|SKIP)_\w+")
"""By these an agent logs in with the service of a cloud."""


def is_address(name: str) -> bool:
    """A variable of that name says where a model is."""
    return _ADDRESSES.fullmatch(name) is not None


def names_address(env: Mapping[str, str]) -> bool:
    """Whether somebody says where the model is."""
    return any(value and is_address(name) for name, value in env.items())


def names_service(env: Mapping[str, str]) -> bool:
    """Whether it is another service than the agent's usual one."""
    return names_address(env) or any(_CLOUDS.fullmatch(name) for name in env)
