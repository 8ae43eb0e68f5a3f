"""Drivers by name: loaded when one is used, and nothing before."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from carrel.domain.agents import Driver
from carrel.domain.errors import FrontendNotInstalled


def load(name: str, options: Mapping[str, object]) -> Driver:
    """The driver that `module:name` makes. Raises `FrontendNotInstalled`."""
    module, _, attribute = name.partition(":")
    try:
        driver: Driver = getattr(import_module(module), attribute)(**options)
    except ImportError as error:
        raise FrontendNotInstalled(f"Its driver cannot be loaded: {error}") from error
    return driver
