"""Nothing that is required goes without a test."""

from __future__ import annotations

from tests.hub import (
    test_hearing,
    test_publishing,
    test_registering,
    test_replaying,
    test_requests,
)
from tests.hub.behaviours import REQUIRED, covered

SUITE = (test_hearing, test_publishing, test_registering, test_replaying, test_requests)


def test_every_required_behaviour_is_shown() -> None:
    assert set(covered) == set(REQUIRED)
    tests = {name for module in SUITE for name in vars(module) if name.startswith("test_")}
    assert set().union(*covered.values()) <= tests
