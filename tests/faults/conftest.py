"""Long trials, and those that show what is still to be mended, are run by `make soak`."""

from __future__ import annotations

import os

collect_ignore_glob = (
    []
    if os.environ.get("CARREL_FAULTS")
    else [
        "test_kill_in_write.py",
        "test_lost_input.py",
        "test_machine*.py",
        "test_random_kills.py",
        "test_recording_races.py",
        "test_reused_numbers.py",
        "test_kill_in_proof.py",
    ]
)
