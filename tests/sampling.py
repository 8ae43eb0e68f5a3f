"""How much is tried of what could be tried without end: a sample, which is the same in each run,
or all of it with `CARREL_EXHAUSTIVE` set.

`make soak` sets it, and runs the test files that import this module. No other test holds what a
sample leaves out, so it has one of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

VARIABLE = "CARREL_EXHAUSTIVE"
EXHAUSTIVE = bool(os.environ.get(VARIABLE))
whole_only = pytest.mark.exhaustive
"""A test that no sample has."""

Item = TypeVar("Item")


def examples(sample: int, *, exhaustive: int) -> int:
    """How many random examples, cycles or clients."""
    return exhaustive if EXHAUSTIVE else sample


def beyond(*items: Item) -> tuple[Item, ...]:
    """More of a kind that others in the sample speak for."""
    return items if EXHAUSTIVE else ()


def every(step: int, items: Sequence[Item], first: int = 0) -> Sequence[Item]:
    """Every `step`-th, from the one at `first` on."""
    return items if EXHAUSTIVE else items[first::step]
