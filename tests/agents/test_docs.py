"""What the pages on agents say is so: the examples, the commands, a page for each frontend."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.agents.frontends import acp
from carrel.agents.registry import BUILT_IN
from carrel.cli.commands import find_command, load
from carrel.domain.turns import AgentEventType
from tests import test_docs as examples
from tests.agents.plugins import EXAMPLE

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "agents.md", *sorted((ROOT / "docs" / "agents").glob("*.md"))]
OPERATORS = frozenset(";&|()<>\n")

place = examples.place


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def test_the_own_frontend_is_the_example() -> None:
    page = ROOT / "docs" / "agents" / "own.md"
    assert blocks(page, "python") == [(EXAMPLE / "shell_frontend.py").read_text()]
    assert blocks(page, "toml") == [(EXAMPLE / "pyproject.toml").read_text()]
    lines = [line for line in blocks(page, "python")[0].splitlines() if line.strip()]
    assert len(lines) <= 50


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_frontend_has_a_page(name: str) -> None:
    """Those that are known by name share the page of their protocol."""
    title = name
    if BUILT_IN[name].startswith(f"{acp.__name__}:"):
        title = "ACP"
    page = ROOT / "docs" / "agents" / f"{title.lower()}.md"
    text = page.read_text()
    assert text.startswith(f"# {title}\n") and (title == name or f"| `{name}` |" in text)
    overview = PAGES[0].read_text()
    assert f"`{name}`" in overview and f"(agents/{page.name})" in overview


def test_every_event_has_an_example() -> None:
    table = PAGES[0].read_text()
    lines = [line for block in blocks(PAGES[0], "json") for line in block.splitlines()]
    envelopes = [json.loads(line) for line in lines if line.startswith('{"type": "agent.')]
    assert sorted(one["type"] for one in envelopes) == sorted(f"agent.{t}" for t in AgentEventType)
    for type in AgentEventType:
        assert f"| `{type}` |" in table


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def commands(page: Path) -> Iterator[list[str]]:
    """What stands in code and begins with `carrel`, as words."""
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    named = re.findall(r"`(carrel [^`]+)`", prose.replace("\\|", "/"))
    for code in (*blocks(page, "sh"), *(" ".join(one.split()) for one in named)):
        yield from _words(code)


def _words(code: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(re.sub(r"[][…]", "", code), posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    found: list[str] | None = None
    for word in lexer:
        if found is not None and (word == "carrel" or set(word) <= OPERATORS):
            yield found
            found = None
        if word == "carrel":
            found = []
        elif found is not None:
            found.append(word)
    if found is not None:
        yield found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_known(page: Path) -> None:
    for words in commands(page):
        said = f"carrel {' '.join(words)}"
        found = find_command(words)
        assert found is not None, said
        name, rest = found
        flags = {flag for option in load(name).options for flag in option.flags}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert given <= flags, said
        if name == "agents":
            known = rest in ([], ["install"]) or (rest[0], len(rest)) == ("install", 2)
            assert known or rest[0] == "import", said


def test_commands_are_found() -> None:
    code = "a=$(carrel send desk 'x; y')  # carrel no\nKEY=1 carrel ls | grep x; carrel rm d"
    assert [words[0] for words in _words(code)] == ["send", "ls", "rm"]
    verbs = {words[0] for words in commands(PAGES[0])}
    assert verbs >= {"new", "send", "turns", "interrupt", "agents", "auth"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES[1:] if examples.blocks(page)], ids=lambda page: page.name
)
def test_the_examples_run(page: Path, place: dict[str, str]) -> None:
    """Those of the overview are run with the other pages'."""
    examples.test_examples(page, place)
