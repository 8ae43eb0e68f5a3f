"""The quick parser says the same as click, or nothing."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.cli.commands import COMMANDS, GROUPS, find_command, load
from carrel.cli.parser import parse_program, parse_verb
from carrel.cli.program import make_command
from carrel.cli.spec import Option, Verb
from tests.sampling import examples

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

    copy = Verb(*verb.arguments, *verb.options[:-2])
    command = make_command("verb", copy(lambda call: found.update(call._values)))
    try:
        command.main(words, standalone_mode=False)
    except (click.ClickException, click.exceptions.Exit):
        return None
    return found


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    verb = load(name)
    words: list[str] = []
    for option in draw(st.lists(st.sampled_from(verb.options), max_size=4)):
        words += draw(st.sampled_from(spellings(option)))
    plain = st.sampled_from(["space", "other", "SPACE:path", "-", "ü"])
    for word in draw(st.lists(plain, max_size=4)):
        words.insert(draw(st.integers(0, len(words))), word)
    for word in draw(st.lists(st.sampled_from(BAD), max_size=1)):
        words.insert(draw(st.integers(0, len(words))), word)
    return name, words


def spellings(option: Option) -> list[list[str]]:
    if option.kind == "flag":
        return [[flag] for flag in option.flags]
    found = []
    for value in option.choices or GOOD[option.kind]:
        found += [[flag, value] for flag in option.flags]
        found.append([f"{max(option.flags, key=len)}={value}"])
    return found


@settings(deadline=None, max_examples=examples(150, exhaustive=400))
@given(lines())
def test_it_agrees_with_click_or_leaves_it_to_click(line: tuple[str, list[str]]) -> None:
    name, words = line
    quick = parse_verb(load(name), words)
    if quick is not None:
        slow = understood(load(name), words)
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
    found = find_command(parsed[1])
    assert found is not None
    assert parse_verb(load(found[0]), found[1]) is not None


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
    found = parsed and find_command(parsed[1])
    assert not found or parse_verb(load(found[0]), found[1]) is None


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_verb_is_described(name: str) -> None:
    verb = load(name)
    assert verb.summary.endswith(".") and len(verb.summary) <= 90
    assert {"--json", "--no-start"} <= {flag for one in verb.options for flag in one.flags}
    flags = [flag for one in verb.options for flag in one.flags]
    assert len(flags) == len(set(flags))
    assert all(one.help.endswith((".", ")")) for one in verb.options)


def test_groups_have_verbs() -> None:
    for group in GROUPS:
        assert [name for name in COMMANDS if name.startswith(f"{group} ")]
