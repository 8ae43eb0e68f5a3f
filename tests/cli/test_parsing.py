"""The quick parser says the same as click, or nothing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.cli import program as by_click
from carrel.cli.call import Call
from carrel.cli.parsing import parse_program, parse_verb
from carrel.cli.spec import Option, Verb
from carrel.cli.table import GROUPS, VERBS, find_verb

FILES = {file: import_module(f"carrel.cli.verbs.{file}") for file in VERBS.values() if file}
GOOD = {
    "text": ["x", "a b", ""],
    "many": ["x", "*.iso"],
    "pairs": ["a=b", "a="],
    "size": ["512M", "7"],
    "seconds": ["90s", "1h"],
    "number": ["0.5", "2"],
    "whole": ["5"],
}
BAD = ["--nothing", "-Z", "-", "--", "--json=1", "word", "--help", "512Q", "-it"]


def understood(verb: Verb, words: list[str]) -> dict[str, Any] | None:
    """What click makes of it; None for a mistake, or help."""
    found: dict[str, Any] = {}

    def keep(call: Call) -> int:
        found.update(call._values)
        return 0

    command = by_click._command("verb", verb, keep)
    try:
        command.main(words, standalone_mode=False)
    except (click.ClickException, click.exceptions.Exit):
        return None
    return found


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    file = draw(st.sampled_from(sorted(FILES)))
    verb: Verb = FILES[file].VERB
    words: list[str] = []
    for option in draw(st.lists(st.sampled_from(verb.options), max_size=4)):
        words += draw(st.sampled_from(spellings(option)))
    plain = st.sampled_from(["space", "other", "SPACE:path", "-", "ü"])
    for word in draw(st.lists(plain, max_size=4)):
        words.insert(draw(st.integers(0, len(words))), word)
    for word in draw(st.lists(st.sampled_from(BAD), max_size=1)):
        words.insert(draw(st.integers(0, len(words))), word)
    return file, words


def spellings(option: Option) -> list[list[str]]:
    if option.kind == "flag":
        return [[flag] for flag in option.flags]
    found = []
    for value in option.choices or GOOD[option.kind]:
        found += [[flag, value] for flag in option.flags]
        found.append([f"{max(option.flags, key=len)}={value}"])
    return found


@settings(deadline=None, max_examples=400)
@given(lines())
def test_it_agrees_with_click_or_leaves_it_to_click(line: tuple[str, list[str]]) -> None:
    file, words = line
    quick = parse_verb(FILES[file].VERB, words)
    if quick is not None:
        slow = understood(FILES[file].VERB, words)
        assert slow is not None, words
        keep = {name: value for name, value in quick.items() if value not in ([], "")}
        assert keep == {name: value for name, value in slow.items() if value not in ([], "")}


@pytest.mark.parametrize(
    "words",
    [
        "ls",
        "ls --json --no-start -q",
        "ls --state ready --state=failed --label a=b",
        "show x",
        "exec x -- ls -la -- y",
        "exec -it --timeout 1m --env A=1 --env B=2 x ls",
        "new . --memory 4G --cpus 0.5 --network none",
        "rm -f a b c",
        "run wait ru_x --timeout 5",
        "--data /d --no-start ls",
        "--data=/d ls",
    ],
)
def test_plain_lines_need_no_click(words: str) -> None:
    parsed = parse_program(words.split())
    assert parsed is not None
    found = find_verb(parsed[1])
    assert found is not None
    assert parse_verb(FILES[found[0]].VERB, found[1]) is not None


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nothing",
        "run",
        "run nothing",
        "run show",
        "ls --help",
        "ls extra",
        "ls --js",
        "-h ls",
        "exec x",
        "exec -x y z",
        "new --memory",
        "new --memory big",
        "new --network maybe",
    ],
)
def test_whatever_needs_explaining_is_left_to_click(words: str) -> None:
    parsed = parse_program(words.split())
    found = parsed and find_verb(parsed[1])
    assert not found or parse_verb(FILES[found[0]].VERB, found[1]) is None


@pytest.mark.parametrize("file", sorted(FILES))
def test_every_verb_is_described(file: str) -> None:
    verb: Verb = FILES[file].VERB
    assert verb.summary.endswith(".") and len(verb.summary) <= 90
    assert {"--json", "--no-start"} <= {flag for one in verb.options for flag in one.flags}
    flags = [flag for one in verb.options for flag in one.flags]
    assert len(flags) == len(set(flags))
    assert all(one.help.endswith((".", ")")) for one in verb.options)
    assert (FILES[file].__doc__ or "").startswith("carrel ")


def test_groups_have_verbs() -> None:
    for group in GROUPS:
        assert [name for name in VERBS if name.startswith(f"{group} ")]
