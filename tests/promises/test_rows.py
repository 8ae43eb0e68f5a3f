"""Each command and option of the program is used by a check of this folder, and is on a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from carrel.cli.commands import COMMANDS, DEFAULTS, GROUPS, find_command, load
from carrel.cli.parser import PROGRAM_OPTIONS
from carrel.cli.spec import JSON, Option
from tests.promises.spoken import Line, in_text, said_in, without_program_options

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
EVERYWHERE = {flag for one in (*PROGRAM_OPTIONS, JSON) for flag in one.flags} | {"--help", "-h"}
"""Options of all commands; `test_every_command_has_help_and_json` and others use them."""
NOT_ON_A_PAGE = {"ssh-proxy": "OpenSSH calls it, by what `carrel ssh-config` prints"}
ROW = re.compile(r"^\| (?P<first>`carrel [^|]*(?:\\\|[^|]*)*) \|(?P<rest>.*)\|$", re.M)
COMMAND = re.compile(r"(?:^|[|;&(] ?)carrel ([a-z-][^|;&]*)")
CODE = re.compile(r"`([^`]+)`")


@cache
def said(folder: Path = HERE) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for name, words in said_in(folder):
        found.setdefault(name, []).append(words)
    return found


def used(lines: Iterable[Line]) -> set[str]:
    """The options in them, short ones that stand together too."""
    words = {word.partition("=")[0] for line in lines for word in line if word.startswith("-")}
    short = {f"-{one}" for word in words if not word.startswith("--") for one in word[1:]}
    return words | short


def unused(name: str, lines: Iterable[Line]) -> list[str]:
    found = used(lines)
    own: list[Option] = [one for one in load(name).options if not EVERYWHERE & {*one.flags}]
    return [one.flags[-1] for one in own if not found & {*one.flags}]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_check(name: str) -> None:
    assert name in said(), f"no check calls `carrel {name}`"
    assert not unused(name, said()[name]), f"no check uses these of `carrel {name}`"


def test_what_no_check_uses_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "def test(carrel):\n"
        '    """Not by words: carrel top --disk."""\n'
        "    assert 'carrel df' in carrel.good('ls', '-aq', *('--label', 'a=b'))\n"
        "    for more in (('--ttl', '1h'), ('--keep', '2h')):\n"
        "        helper(carrel, 'desk', *more)\n"
        "def helper(carrel, desk, *words):\n"
        "    carrel('--no-start', 'update', desk, *words)\n"
        "    carrel('exec', desk, '--', 'sh', '-c', 'cd /; carrel log half --percent 50')\n"
    )
    found = said(tmp_path)
    assert {*found} == {"ls", "update", "exec", "log"}
    assert unused("ls", found["ls"]) == ["--state", "--long"]
    assert unused("update", found["update"]) == [
        *("--name", "--label", "--no-label", "--ssh-agent", "--idle")
    ]
    assert unused("log", found["log"]) == ["--category"]


def command_lines(page: Path) -> list[Line]:
    """Those of the page's blocks for a shell, and of its text."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    blocks += [one for one in CODE.findall(re.sub(r"```.*?```", "", text, flags=re.S))]
    found: list[Line] = []
    for one in blocks:
        for line in one.replace("\\|", "/").splitlines():
            for said in COMMAND.findall(line.partition("#")[0]):
                found += in_text([f"carrel {said}"])
    return found


@pytest.mark.parametrize(
    "page", [DOCS.parent / "README.md", *sorted(DOCS.glob("**/*.md"))], ids=lambda page: page.name
)
def test_what_a_page_says_is_a_command_line_of_the_program(page: Path) -> None:
    for line in command_lines(page):
        words = without_program_options(line)
        if not words or (words[0] in GROUPS and words[1:] in ([], ["…"])):
            continue
        if any(word.endswith(":") for word in words[:2]):
            # What it says, not what is said to it.
            continue
        known = find_command([words[0], *(word.partition("/")[0] for word in words[1:])])
        assert known is not None, line
        name, rest = known
        rest = rest[: rest.index("--")] if "--" in rest else rest
        flags = {flag for one in load(name).options for flag in one.flags} | EVERYWHERE
        for word in rest:
            plain = word.strip("[]")
            if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", plain):
                assert plain.partition("=")[0] in flags, (name, line)


def rows() -> list[tuple[str, set[str], set[str]]]:
    """Of the tables of commands in docs/cli.md: a row, its commands and its options."""
    found = []
    for row in ROW.finditer((DOCS / "cli.md").read_text()):
        group, names, options = "", set(), set()
        for code in CODE.findall(row["first"]):
            words = code.replace("\\|", "|").split()
            plain = [one for one in words if one != "carrel"]
            group = plain[0] if words[0] == "carrel" else group
            tried = (plain, [group, *plain])
            names |= {known[0] for one in tried if (known := find_command(one)) is not None}
        for code in CODE.findall(row.group()):
            options |= {one for one in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", code)}
        if names:
            found.append((row["first"], names, options))
    return found


def test_the_page_has_rows() -> None:
    assert len(rows()) > 70
    listed = {name for _, names, _ in rows() for name in names}
    assert {"new", "request answer", "service install", "config get", "hub follow"} <= listed


@pytest.mark.parametrize(("row", "names", "options"), rows(), ids=[row[:40] for row, *_ in rows()])
def test_a_row_promises_what_the_program_has(row: str, names: set[str], options: set[str]) -> None:
    known = {flag for name in names for one in load(name).options for flag in one.flags}
    others = {flag for one in (*PROGRAM_OPTIONS, JSON) for flag in one.flags}
    others |= {
        flag for name in ("exec", "logs") for one in load(name).options for flag in one.flags
    }
    assert options <= known | others, (row, options - known - others)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_on_a_page(name: str) -> None:
    if name in NOT_ON_A_PAGE:
        return
    listed = {each for _, names, _ in rows() for each in names}
    text = "".join(file.read_text() for file in DOCS.glob("**/*.md"))
    bare = name.removesuffix(f" {DEFAULTS.get(name.partition(' ')[0], '')}")
    bare = "config" if name == "config show" else bare
    assert name in listed or re.search(rf"`?carrel {bare}\b", text), name
