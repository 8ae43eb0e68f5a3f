"""Comments, from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import carrel as library
from tests.cli.program import Program

pytestmark = pytest.mark.usefixtures("tidy")


def test_comment_and_send(carrel: Program, project: Path) -> None:
    (project / "a:b.txt").write_text("one\ntwo\x1b[2K\nthree\n")
    name = carrel.good("new", str(project)).strip()
    for place in ("a.txt", "a.txt:", "a.txt:0", ":3", "a.txt:x", "a.txt:-1"):
        assert carrel("comment", name, place, "?").code == 2, place
    assert carrel("comment", name, "none.txt:1", "?").code == 3
    refused = carrel("comment", name, "a:b.txt:4", "?")
    assert refused.code == 4 and "has 3 lines" in refused.err
    made = carrel.good("comment", name, "a:b.txt:2", "write seen.txt yes").strip()
    gone = carrel.good("comment", name, "a:b.txt:1", "Never mind").strip()
    carrel.good("comments", name, "--remove", gone)
    assert carrel("comments", name, "--remove", gone).code == 3
    carrel.good("exec", name, "--", "sed", "-i", "1i zero", "a:b.txt")
    shown = carrel.good("comments", name)
    assert f"{made} a:b.txt:3\n" in shown and ">     3 | two" in shown and "\x1b" not in shown
    assert "has no agent" in carrel("comments", name, "--send").err
    turn = carrel.good("comments", name, "--send", "--agent", "scripted").strip()
    told = json.loads(carrel.good("turn", "show", turn, "--json").splitlines()[-1])
    assert "> 3 | two" in told["prompt"]
    assert carrel("comments", name, "--send").code == 4
    assert carrel("comments", name).err == "There are no open comments.\n"
    [sent] = json.loads(carrel.good("comments", name, "--all", "--json"))["comments"]
    assert (sent["state"], sent["turn"]) == ("sent", turn)
    assert "comments were sent" in carrel.good("events", "--space", name)

    with library.Client(data=carrel.data) as client:
        space = client.get(name)
        first = space.comment("a:b.txt", 1, "Hm.")
        assert space.comments()[-1].id == first.id and first.line == 1
        space.remove_comment(first.id)
        space.comment("a:b.txt", 1, "say done")
        assert "say done" in space.send_comments(frontend="scripted", queue=True).prompt
