"""What agents ask permission for, answered from the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.program import TIMEOUT_S, Program, in_terminal

POLL_S = 0.02


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    """A space with the scripted agent."""
    name = carrel.good("new", "--empty", "--agent", "scripted").strip()
    yield name
    carrel("rm", "--force", name)


def ask(carrel: Program, desk: str, *options: str) -> str:
    """A turn that waits for a permission."""
    turn = carrel.good("send", desk, "write a.txt hi", "--permission", "ask", *options).strip()
    until = time.monotonic() + TIMEOUT_S
    while not waiting(carrel, desk):
        assert time.monotonic() < until
        time.sleep(POLL_S)
    return turn


def waiting(carrel: Program, desk: str) -> list[dict[str, Any]]:
    found = carrel.json("permit", desk)["permissions"]
    return list(found)


def ended(carrel: Program, desk: str) -> dict[str, Any]:
    """The last turn, when it has ended."""
    until = time.monotonic() + TIMEOUT_S
    while (turn := carrel.json("turns", desk)["turns"][0])["state"] == "running":
        assert time.monotonic() < until
        time.sleep(POLL_S)
    return dict(turn)


def test_seen_and_permitted(carrel: Program, desk: str) -> None:
    turn = ask(carrel, desk)
    expected = {"id": "call-1-1", "name": "write", "input": {"path": "a.txt", "text": "hi"}}
    assert carrel.json("permit", desk) == {"turn": turn, "permissions": [expected]}
    head, row = carrel.good("permit", desk).splitlines()
    assert head.split() == ["ID", "TOOL", "WITH"]
    assert row.split()[:2] == ["call-1-1", "write"] and "a.txt" in row
    assert "does not wait" in carrel.bad(4, "permit", desk, "call-9-9")
    assert carrel.good("permit", desk, "call-1-1") == ""
    assert ended(carrel, desk)["result"]["success"]
    assert carrel.good("exec", desk, "--", "cat", "a.txt").strip() == "hi"


def test_denied(carrel: Program, desk: str) -> None:
    ask(carrel, desk)
    assert carrel.json("permit", desk, "--all", "--deny")["space"]
    ended(carrel, desk)
    assert carrel("exec", desk, "--", "cat", "a.txt").code == 1


def test_not_answered_in_time(carrel: Program, desk: str) -> None:
    done = carrel(
        "send", desk, "write a.txt hi", "--permission", "ask", "--answer", "300ms", "--wait"
    )
    assert f"carrel permit {desk} call-1-1" in done.err, done
    assert carrel("exec", desk, "--", "cat", "a.txt").code == 1


def test_who_waits_is_told_how(carrel: Program, desk: str) -> None:
    """The command that it names, as it stands there."""
    words = ["send", desk, "write a.txt hi\nsay done", "--permission", "ask", "--wait"]
    with in_terminal(carrel, *words, cols=200) as terminal:
        shown = terminal.until(b" [--deny]").decode()
        carrel.good(*shown.partition("carrel ")[2].removesuffix(" [--deny]").split())
        terminal.until(b"done")
        assert terminal.end() == 0


def test_nothing_waits(carrel: Program, desk: str) -> None:
    assert carrel.json("permit", desk) == {"turn": None, "permissions": []}
    assert "Nothing waits" in carrel("permit", desk).err
    assert "No agent works" in carrel.bad(4, "permit", desk, "call-1-1")
    assert "together" in carrel.bad(2, "permit", desk, "x", "--all")
    assert "--deny needs" in carrel.bad(2, "permit", desk, "--deny")
