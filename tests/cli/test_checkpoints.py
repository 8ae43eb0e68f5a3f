"""Checkpoints, rewinds and forks at the command line, and the way back of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.usefixtures("tidy")


def test_kept_put_back_and_forked(carrel: Program, project: Path) -> None:
    first = ("-m", "write idea.txt a first idea", "--wait")
    carrel.good("new", str(project), "--name", "desk", "--agent", "scripted", *first)
    carrel.good("send", "desk", "again", "--continue", "--wait")
    kept = carrel.good("checkpoint", "desk", "-m", "before I try").strip()
    listed = carrel.good("checkpoints", "desk")
    assert kept in listed and "before I try" in listed and "after a turn" in listed
    carrel.good("exec", "desk", "--", "sh", "-c", "rm idea.txt; echo x > x.txt")
    since = carrel.good("diff", "desk", "--since", kept)
    assert "-a first idea" in since and "+++ b/x.txt" in since
    assert carrel.good("diff", "desk", "--since", kept[:8], "--name-only") == "idea.txt\nx.txt\n"
    assert carrel.good("diff", "desk", "--since", "start") == carrel.good("diff", "desk")
    for words in (("--since", "ck_none"), ("--since", kept, "--to", "desk")):
        assert carrel("diff", "desk", *words).code in (2, 3)
    done = carrel("rewind", "desk")
    assert done.code == 0 and kept in done.err
    assert carrel.good("exec", "desk", "--", "cat", "idea.txt") == "a first idea\n"
    # The way back, and the way back of a removal.
    carrel.good("undo")
    assert carrel.good("exec", "desk", "--", "cat", "x.txt") == "x\n"
    names = carrel.good("fork", "desk", "--count", "2", "--checkpoint", kept).split()
    assert names == ["desk-2", "desk-3"]
    said = carrel.good("send", "desk-2", "on", "--continue", "--wait")
    assert "turn 3: on" in said
    carrel.good("rm", "--force", "desk-3")
    listed = json.loads(carrel.good("undo", "--list", "--json"))["landings"]
    assert (listed[0]["kind"], listed[0]["name"]) == ("removal", "desk-3")
    carrel.good("undo")
    assert carrel.good("exec", "desk-3", "--", "cat", "idea.txt") == "a first idea\n"
    lost = carrel("rewind", "desk", "ck_nothing")
    assert lost.code == 3 and "carrel checkpoints desk" in lost.err
