"""Drivers by name: loaded when one is used, and nothing before."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from carrel.domain.agents import Driver


def load(name: str, options: Mapping[str, object]) -> Driver:
    """The driver that `module:name` makes."""
    module, _, attribute = name.partition(":")
    driver: Driver = getattr(import_module(module), attribute)(**options)
    return driver
