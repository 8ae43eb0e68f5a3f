"""The types of what is asked and answered. Each is written once, with its limits."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = (
    *("admin", "agents", "checkpoints", "comments", "images", "instances", "landings", "ports"),
    *("races", "requests", "review", "runs"),
    "spaces",
)


def find(name: str) -> Any:
    """The type that a row of the contract names."""
    modules = (import_module(f"{__name__}.{one}") for one in MODULES)
    return next(getattr(one, name) for one in modules if hasattr(one, name))
