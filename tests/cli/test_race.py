"""Races, from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import carrel as library
from carrel.domain.errors import RaceNotFound
from tests.cli.program import Program

TASK = "run echo idea > idea.txt; mkdir one 2> /dev/null; ls"

pytestmark = pytest.mark.usefixtures("tidy")


def test_a_race(carrel: Program, project: Path) -> None:
    words = ("race", str(project), "-m", TASK)
    for more in ((), ("--agents", ","), ("--agents", "nobody"), ("--agents", "scripted", "--wait")):
        assert carrel(*words, *more).code == 2, more
    assert carrel("race", "--show", "rc_none").code == 3
    assert carrel("race", "--show", "rc_none", "-m", "x").code == 2
    asked = (*words, "--agents", "scripted,scripted", "--name", "sprint")
    done = carrel(*asked, "--check", "cat idea.txt")
    assert done.code == 0, done.err
    head, *rows = done.out.splitlines()
    assert head.split() == [
        "NAME",
        "AGENT",
        "OUTCOME",
        "CHECK",
        "FILES",
        "LINES",
        "TIME",
        "TOKENS",
        "COST",
    ]
    assert [row.split()[:5] for row in rows] == [
        ["sprint-scripted", "scripted", "complete", "passed", "1"],
        ["sprint-scripted-2", "scripted", "complete", "passed", "1"],
    ]
    for hint in ("carrel diff NAME", "carrel land NAME", "--into OTHER", "carrel rm"):
        assert hint in done.err
    race = done.err.split()[1].rstrip(":")
    carrel.good("exec", "sprint-scripted-2", "--", "rm", "idea.txt")
    carrel.good("send", "sprint-scripted-2", "run true", "--wait")
    before = carrel("race", "--show", race)
    assert before.code == 0 and "Not all have ended" in before.err
    after = carrel("race", "--show", race, "--wait")
    assert after.code == 0 and "what its check wrote: carrel logs ru_" in after.err
    told = json.loads(carrel.good("race", "--show", race, "--json"))
    assert [one["check"] for one in told["racers"]] == ["passed", "failed"]
    assert [one["files"] for one in told["racers"]] == [1, 0]


def test_from_python(carrel: Program, project: Path) -> None:
    with library.Client(data=carrel.data) as client:
        race = client.race(
            project, TASK, ["scripted"], count=2, check="false", space={"name": "py"}
        )
        assert race.ended and [one.name for one in race.racers] == ["py-scripted", "py-scripted-2"]
        assert [(one.check, one.check_code) for one in race.racers] == [("failed", 1)] * 2
        begun = client.race(project, TASK, ["scripted"], wait=False, turn={"timeout_s": 60.0})
        assert client.wait_for_race(begun.id).ended
        with pytest.raises(RaceNotFound):
            client.show_race("rc_none")
