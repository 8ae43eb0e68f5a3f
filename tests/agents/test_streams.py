"""What was recorded of real programs is whole, and says nothing of the machine it came from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

STREAMS = Path(__file__).with_name("streams")
RECORDINGS = sorted(path.relative_to(STREAMS) for path in STREAMS.glob("*/*.jsonl"))

_MACHINE = re.compile(r'"/(tmp|home|root|work)/|carrel-stream|\bsk-[a-z]+-not')


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_a_recording_is_whole_and_of_no_machine(recording: Path) -> None:
    stream = (STREAMS / recording).read_text()
    beside = (STREAMS / recording).with_suffix(".json").read_text()

    assert all(isinstance(json.loads(line), dict) for line in stream.splitlines())
    assert {"argv", "exit"} <= json.loads(beside).keys()
    assert not _MACHINE.search(stream + beside)
