"""`carrel diff`: what a person sees of a space's work, in a terminal and elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.cli.verbs.review import DiffColours
from tests.cli.program import Program, in_terminal

SCRIPT = r"""
printf 'read me\nand more\n' > README.md
printf 'new\n' > new.txt
printf '\033[8mhidden\033[0m\a\tx\r\n' > evil
printf 'x\n' > "$(printf 'odd\033[2J')"
mkdir docs; printf 'd\n' > docs/page
"""


@pytest.fixture
def worked(carrel: Program, project: Path) -> Iterator[str]:
    name = carrel.good("new", str(project), "--name", "worked").strip()
    carrel.good("exec", name, "--", "sh", "-c", SCRIPT)
    yield name
    carrel("rm", "--force", name)


def test_forms(carrel: Program, worked: str) -> None:
    text = carrel.good("diff", worked)
    assert " read me\n+and more\n" in text and "\x1b[8mhidden" in text, "as it is, in a pipe"
    names = carrel.good("diff", worked, "--name-only").splitlines()
    assert sorted(names) == sorted(["README.md", "docs/page", "evil", "new.txt", "odd\x1b[2J"])
    stat = carrel.good("diff", worked, "--stat")
    assert " README.md " in stat and "new.txt (untracked)" in stat and "\\x1b[2J" in stat
    assert stat.endswith(" 5 files changed, 5 insertions(+)\n")
    found = carrel.json("diff", worked, "docs", "new.txt")
    assert [file["path"] for file in found["files"]] == ["docs/page", "new.txt"]
    assert found["total"] == 2 and found["added"] == 2
    done = carrel("diff", worked, "no-such", "--json")
    assert done.code != 0 and json.loads(done.err)["code"] == "path_not_found"
    assert carrel("diff", "no-such-space").code != 0


def test_another_space(carrel: Program, project: Path, worked: str) -> None:
    """By its name, unless a file has that name too."""
    carrel.good("new", str(project), "--name", "docs")
    carrel.good("new", str(project), "--name", "second")
    try:
        text = carrel.good("diff", worked, "second")
        assert " read me\n-and more\n" in text
        assert carrel.good("diff", worked, "second", "new.txt").count("diff --git") == 1
        assert carrel.good("diff", "--to", "docs", worked) == text
        done = carrel("diff", worked, "docs")
        assert done.code == 2 and "./docs" in done.err and "--to docs" in done.err
        assert carrel.good("diff", worked, "./docs", "--name-only") == "docs/page\n"
        assert carrel.good("diff", "second", "docs") == ""
    finally:
        carrel.good("rm", "docs", "second")


def test_in_a_terminal(carrel: Program, worked: str) -> None:
    """With colours, in the person's pager, and nothing of a file steers it."""
    carrel.env["PAGER"] = "sed 's/^/> /'"
    with in_terminal(carrel, "diff", worked, cols=200) as terminal:
        text = terminal.rest().decode().replace("\r\n", "\n")
        assert terminal.end() == 0
    assert "> \x1b[32m+and more\x1b[0m\n" in text and "> \x1b[36m@@ " in text
    assert "\\x1b[8mhidden\\x1b[0m\\x07\tx\\r" in text.expandtabs(1).replace(" x\\r", "\tx\\r")
    assert set(re.findall(r"\x1b\[[0-9;]*[A-Za-z]", text)) <= {
        *("\x1b[0m", "\x1b[1m", "\x1b[36m", "\x1b[31m", "\x1b[32m")
    }
    carrel.env["PAGER"] = "head -n 1"
    with in_terminal(carrel, "diff", worked) as terminal:
        text = terminal.rest().decode()
        assert terminal.end() == 0 and text.count("\n") == 1, "who leaves it, ends it"
    carrel.env.update(PAGER="", NO_COLOR="1")
    with in_terminal(carrel, "diff", worked, "--stat", "new.txt") as terminal:
        text = terminal.rest().decode().replace("\r\n", "\n")
    assert text == " new.txt (untracked) | 1 +\n 1 file changed, 1 insertion(+)\n"


def test_lines_that_look_like_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.cli.output.coloured", lambda: True)
    text = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n--- sql\n+++ c\n@x\ndiff --git a b"
    colours = DiffColours()
    found = [colours.line(line)[2:4].rstrip("m") for line in text.split(b"\n")]
    assert found == ["1", "1", "1", "36", "31", "32", "36", "1"]
